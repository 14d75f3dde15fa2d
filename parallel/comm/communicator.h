// Communicator: moves bytes between the ranks of one group. It has only non-blocking point-to-point messages;
// everything else (collectives.h, host_transport.h) is built on them, so that no library reduction ever
// decides a bit.
//
// Implementations: local/ (ranks are threads of one process, for tests), mpi/, and GroupCommunicator for some
// of the ranks of another one.
// Threads: one thread per rank calls it. Errors: ExitCode::communication, naming the peer. After an error the
// communicator is unusable: it has abandoned its requests.
//
// Failures have the manners of MPI's ULFM, whatever carries the messages; one that is simulated must have them,
// too, and needs nothing else (tests/parallel/communicator_contract.h holds each of these sentences):
// - No call waits for a peer. Time passes between calls only, by the Env of who polls (PollBackoff), but for
//   abandon(), which may wait as long as MpiCommunicator::drain_timeout_ms for requests to end.
// - A death is an error of the calls that miss the dead rank, and of no others: of test() for a request to or
//   from it, of check_peers(), and of check_peers_among() where it is named. Messages between other ranks
//   arrive until one of them misses the dead rank. The error names it, and follows without a timeout.
// - An abandoned communicator is revoked: from then on check_peers() and check_peers_among() are errors on every
//   rank, whomever they ask for, after finitely many calls, and with nobody's death, too. A pending request may end
//   in an error from then on, and does so at the latest when the rank at its other end has abandoned the communicator or
//   died.
// - A message whose sender dies arrives whole, or its request is an error.
// - After an error or abandon() no peer touches the buffers of this rank's requests. A dead rank of another host
//   is the exception (ShrinkingWorld::shrink).
// - Nothing is agreed on here: two ranks may see a death at different times, or one death and its revocation
//   only. Ranks agree in the communicator that ShrinkingWorld::shrink() makes of those that are left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/result.h"

namespace holdfast::parallel {

class Communicator {
 public:
  using Request = std::int32_t;  // a slot of a fixed pool; released by the test() that returns true
  // Returns the number of requests that may be open at once in a group of so many ranks: enough for two exchanges of
  // each rank with each other in both directions, and for a thousand other messages.
  static constexpr int request_count_max(int size) { return size <= 768 ? 4096 : 4 * size + 1024; }

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns the number in the whole run of a rank of this communicator, which names it in messages.
  virtual int global_rank(int rank) const { return rank; }

  // Posts a message. Messages of one (source, target, tag) arrive in order. Buffers stay valid and untouched
  // until test() is true. `peer` may not be this rank. The lengths at both ends must be equal; 0 bytes are
  // legal; over 2 GiB are legal.
  virtual Result<Request> send(std::span<const std::byte> source, int peer, int tag) = 0;
  virtual Result<Request> receive(std::span<std::byte> target, int peer, int tag) = 0;
  virtual Result<bool> test(Request request) = 0;

  // Checks that all peers are still there, as far as this can be known now without waiting; the error names
  // one that is not, or says that another rank gave up. Callers use it while they wait for something that no
  // request of this group reports.
  virtual Result<void> check_peers() = 0;
  // Checks only these ranks: the death of another is no error where this communicator can tell the
  // difference.
  virtual Result<void> check_peers_among(std::span<const int> ranks) {
    static_cast<void>(ranks);
    return check_peers();
  }

  // Returns whether a rank is known to be dead by now; nothing follows from the question.
  virtual bool has_died(int rank) {
    static_cast<void>(rank);
    return false;
  }

  // Gives up every pending request, so that their buffers may be released. A caller that stops waiting before
  // test() is true calls it. From then on every call is an error.
  virtual void abandon() = 0;
  // Returns whether it was abandoned, by its owner or by an error: this rank cannot communicate with its
  // peers any more.
  virtual bool abandoned() = 0;

  // Returns the number of a collective that begins. It is the same on all ranks, because they call the same
  // collectives in the same order.
  std::uint32_t number_collective() { return ++collectives_; }

 private:
  std::uint32_t collectives_ = 0;
};

// Message tags. The whole source tree shares one space of tags, so that the messages of two users of one
// communicator are never mixed up.
enum Tag : int { tag_never_sent = 0, tag_collective = 1, tag_exchange = 1000 };

}  // namespace holdfast::parallel
