// The Communicator over MPI point-to-point calls. Every call is non-blocking and made under one mutex, which
// is what MPI_THREAD_SERIALIZED asks for.
//
// With fault tolerance MPI goes on after an error, in the communicator of the next epoch. So a rank that
// gives up first waits until all its requests have ended: after the revocation, a request that no peer has
// answered ends at once, and one that is under way ends when the peer, which learns of the revocation,
// completes it or dies. A receive that a peer left unfinished when it died stays in MPI for the life of the
// process.
#pragma once

#include <mpi.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"

namespace holdfast::parallel {

class MpiCommunicator final : public Communicator {
 public:
  // Maximum size of one MPI message: MPI counts are int, so a longer message is sent as several, in order.
  static constexpr std::size_t part_bytes_max = std::size_t{256} << 20;

  // Maximum time for requests to end after an error, before the caller learns of it.
  static constexpr std::int64_t drain_timeout_ms = 5'000;

  // Takes a `communicator` with MPI_ERRORS_RETURN set, whose ranks have these numbers in the run, ascending.
  // With fault tolerance an error on one rank becomes one on all (MPIX_Comm_revoke), so that no rank waits
  // for one that has stopped communicating. `listener`: is notified of the wait for requests to end; null:
  // none. `cut_off`: ShrinkingWorld::watch(); it outlives this object.
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
  bool has_died(int rank) override;
  void abandon() override;
  // Waits until all requests of an abandoned communicator have ended, except receives from dead ranks: one whose
  // peer hangs ends when the guard has ended that peer. Returns false after `timeout_ms`, or at once where members
  // are unreachable; then MPI must not be called any more, because a peer could write into memory that was given
  // back.
  bool finish_draining(std::int64_t timeout_ms);
  // Revokes like abandon(), for a process that ends now: does not wait for any request to end.
  void revoke_only();
  void close();  // before MPI is finalised: every later call is an error
  // Frees the table of requests (about 230 KB) of an epoch that is over, if none of them is under way. MPI's
  // own handle stays for the life of the process (mpi_world.h), and this object with it.
  void release_requests();
  bool abandoned() override;
  bool reported_by_peer();  // ShrinkingWorld

 private:
  struct Slot {  // one part of a message
    MPI_Request request = MPI_REQUEST_NULL;
    Request next = -1;  // index of the following part; -1: last
    int peer = 0;
    int tag = 0;
    bool receiving = false;
  };
  template <typename Post>
  Result<Request> post(std::size_t bytes, int peer, int tag, bool receiving, const Post& post_part);
  Error left() const;
  // Keeps the error of a look at the peers for later calls, because a wait for the device only looks.
  Result<void> noted(Result<void> looked);
  // Checks for dead peers; called with the mutex held. The death of a rank that is not missed is no error.
  Result<void> look_at_peers(const std::function<bool(int)>& is_missed);
  bool awaits(int rank) const;  // whether a request to or from it is under way
  Error error_of(int code, const Slot& slot);
  // Abandons all requests; called with the mutex held. Afterwards no request of this communicator moves a
  // byte, except that data which a dead rank of another host had sent may still arrive in its receive buffer,
  // for as long as it is in transit.
  void give_up();
  bool drain(std::int64_t timeout_ms);
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
  bool abandoned_ = false, drained_ = false, reported_by_peer_ = false;
  std::optional<Error> found_;  // what a look at the peers found
  std::vector<Slot> slots_;
  std::vector<Request> free_;
};

}  // namespace holdfast::parallel
