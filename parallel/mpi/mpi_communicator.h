// The Communicator over MPI point-to-point calls. Every call is non-blocking and made under one mutex, which
// is what MPI_THREAD_SERIALIZED asks for.
//
// With fault tolerance MPI goes on after an error, in the communicator of the next epoch. So whoever gives up
// sees all requests to their end first: revoked, one that no peer has answered ends at once, one that is
// under way ends when the peer, who hears of the revocation, moves it on or dies. A receive that a peer left
// unfinished when it died stays in MPI for the life of the process.
#pragma once

#include <mpi.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"

namespace holdfast::inline parallel {

class MpiCommunicator final : public Communicator {
 public:
  // MPI counts are int: a longer message travels as several, in order.
  static constexpr std::size_t part_bytes_max = std::size_t{256} << 20;

  // How long requests may take to end after an error.
  static constexpr std::int64_t drain_timeout_ms = 5'000;

  // MPI_ERRORS_RETURN is set on `communicator`, whose ranks have these numbers in the run, ascending. With
  // fault tolerance an error on one rank becomes one on all (MPIX_Comm_revoke), so that nobody waits for a
  // rank that waits for nobody.
  // `listener`: hears of the wait for requests to end; null: nobody does. `cut_off`: ShrinkingWorld::watch();
  // it outlives this object.
  MpiCommunicator(Env& env, MPI_Comm communicator, bool fault_tolerant, std::vector<int> launched_ranks,
                  WaitListener* listener, const std::function<std::string()>& cut_off);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int global_rank(int rank) const override { return launched_ranks_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& launched_ranks() const { return launched_ranks_; }
  MPI_Comm handle() const { return communicator_; }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override;
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override;
  Result<bool> test(Request request) override;
  Result<void> check_peers() override;
  Result<void> check_peers_among(std::span<const int> ranks) override;
  void abandon() override;
  // Returns whether all requests of an abandoned one have ended, but for receives from the dead. If not, MPI
  // must not be called any more: a peer that hangs could write into memory that was given back.
  bool drained() const { return drained_; }
  // As abandon(), for a process that ends now: no request is seen to its end.
  void revoke_only();
  void close();  // MPI is about to be finalised: every later call is an error
  // Frees the table of requests (about 230 KB) of an epoch that is over, if none of them is under way. MPI's
  // own handle stays for the life of the process (mpi_world.h), and this object with it.
  void release_requests();
  bool abandoned() override;
  bool reported_by_peer();  // ShrinkingWorld

 private:
  struct Slot {  // one part of a message
    MPI_Request request = MPI_REQUEST_NULL;
    Request next = -1;  // the following part, -1: last
    int peer = 0;
    int tag = 0;
    bool receiving = false;
  };
  template <typename Post>
  Result<Request> post(std::size_t bytes, int peer, int tag, bool receiving, const Post& post_part);
  Error left() const;
  // Called with the mutex held. The death of a rank that is not missed is no error.
  Result<void> look_at_peers(const std::function<bool(int)>& is_missed);
  bool awaits(int rank) const;  // whether a request to or from it is under way
  Error error_of(int code, const Slot& slot);
  // Called with the mutex held. No request of this communicator moves a byte after it, but that what a dead
  // rank of another host had sent may still arrive where its receive was, for as long as it is under way.
  void give_up();
  bool drain();
  std::string why_cut_off();
  Error leave_cut_off(const std::string& why);

  std::mutex mutex_;
  Env* env_;
  MPI_Comm communicator_;
  bool fault_tolerant_;
  WaitListener* listener_;
  const std::function<std::string()>* cut_off_;
  std::int64_t looked_around_ns_ = 0, looked_at_peers_ns_ = 0, asked_for_failed_ns_ = 0;
  int rank_ = 0, size_ = 0;
  std::vector<int> launched_ranks_;
  bool abandoned_ = false, drained_ = false, told_by_another_ = false;
  std::vector<Slot> slots_;
  std::vector<Request> free_;
};

}  // namespace holdfast::inline parallel
