// Communicator: moves bytes between the ranks of one group. Only point-to-point and non-blocking; everything
// else (collectives.h, host_transport.h) is built on it, so that no library reduction ever decides a bit.
//
// Implementations: local/ (ranks are threads of one process, for tests), mpi/, and GroupCommunicator for some
// of the ranks of another one.
// Threads: one thread per rank calls it. Errors: ExitCode::communication, naming the peer. After an error the
// communicator is unusable: it has abandoned its requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/result.h"

namespace holdfast::inline parallel {

class Communicator {
 public:
  using Request = std::int32_t;  // a slot of a fixed pool; released by the test() that returns true
  static constexpr int request_count_max = 4096;

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What a rank of this communicator is called in sentences: its number in the whole run.
  virtual int global_rank(int rank) const { return rank; }

  // Messages of one (source, target, tag) arrive in order. Buffers stay valid and untouched until test() is
  // true. `peer` may not be this rank. Lengths of both ends must be equal; 0 bytes are legal; over 2 GiB are
  // legal.
  virtual Result<Request> send(std::span<const std::byte> source, int peer, int tag) = 0;
  virtual Result<Request> receive(std::span<std::byte> target, int peer, int tag) = 0;
  virtual Result<bool> test(Request request) = 0;

  // Whether all peers are still there, as far as it can be told now without waiting; the error names one that
  // is not, or says that another rank gave up. For whoever waits for what no request of this group tells.
  virtual Result<void> check_peers() = 0;
  // Does the same for these ranks alone: the death of another is no error where this communicator can tell.
  virtual Result<void> check_peers_among(std::span<const int> ranks) {
    static_cast<void>(ranks);
    return check_peers();
  }

  // Gives up every pending request, so that their buffers may go; whoever stops waiting before test() is true
  // calls it. From then on every call is an error.
  virtual void abandon() = 0;
  // Whether it was abandoned, by its owner or by an error: this rank cannot talk to its peers any more.
  virtual bool abandoned() = 0;

  // The number of a collective that begins, which is the same on all ranks, as they make the same ones in the
  // same order.
  std::uint32_t number_collective() { return ++collectives_; }

 private:
  std::uint32_t collectives_ = 0;
};

// Tags: one space for the tree, so that two users of one communicator never meet.
enum Tag : int { tag_never_sent = 0, tag_collective = 1, tag_exchange = 1000 };

}  // namespace holdfast::inline parallel
