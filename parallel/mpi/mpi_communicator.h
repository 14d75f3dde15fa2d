// The Communicator over MPI point-to-point calls. Every call is non-blocking and made under one mutex, which
// is what MPI_THREAD_SERIALIZED asks for.
#pragma once

#include <mpi.h>

#include <mutex>
#include <vector>

#include "parallel/communicator.h"

namespace holdfast {

class MpiCommunicator final : public Communicator {
 public:
  // MPI counts are int: a longer message travels as several, in order.
  static constexpr std::size_t part_bytes_max = std::size_t{256} << 20;

  // MPI_ERRORS_RETURN is set on `communicator`. With fault tolerance an error on one rank becomes one on all
  // (MPIX_Comm_revoke), so that nobody waits for a rank that waits for nobody.
  MpiCommunicator(MPI_Comm communicator, bool fault_tolerant);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override;
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override;
  Result<bool> test(Request request) override;
  Result<void> check_peers() override;
  void abandon() override;
  void close();  // MPI is about to be finalised: every later call is an error
  bool abandoned() override;

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
  Error error_of(int code, const Slot& slot);
  void give_up();  // with the mutex held. MPI is not called after it, so it moves no more bytes.

  std::mutex mutex_;
  MPI_Comm communicator_;
  bool fault_tolerant_;
  int rank_ = 0, size_ = 0;
  bool abandoned_ = false;
  std::vector<Slot> slots_;
  std::vector<Request> free_;
};

}  // namespace holdfast
