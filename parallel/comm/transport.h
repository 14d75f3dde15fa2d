// Transport: moves the device's memory between the ranks of one group, in numbered exchanges. Gradients and
// parameters travel through it; the words of control (votes, agreements) travel through Communicator.
//
// The unit is the exchange and not the message. All ranks of the group open the same exchanges in the same
// order; in exchange n rank a sends rank b what b receives from a in exchange n: at most one message of each
// direction with each peer, of equal length at both ends and never empty. A rank may have nothing to send or
// to receive.
//
//   HF_TRY(const Transport::Number number, transport.open(incoming));   // receives may be posted long before
//   HF_TRY_VOID(transport.send(number, outgoing));                     // when the bytes are written
//   while (transport.oldest() <= number) HF_TRY_VOID(outcome_of(transport.advance()));
//
// Why not Communicator: its messages are posted one by one and matched by tags. NCCL has no tags, and what is
// issued on one of its communicators runs in the order issued: two ranks that each send to the other first
// wait for each other for ever, unless both messages of each rank are issued as one group. So whoever moves
// the bytes must know what belongs together, and all ranks must issue the groups in one order. A host
// communicator can do that too, so this is what the lane reduction is written for.
//
// No deadlock: of all exchanges that some rank has not finished, take the lowest. Everything before it is
// finished everywhere, so it has a free slot on every rank, is the next to be issued there, and waits for
// nothing but that every rank gives its sends, which must not depend on a later exchange. The messages of one
// exchange proceed together.
//
// Implementations: HostTransport (over any Communicator, of memory that the host can read), PinnedTransport
// (of a GPU's memory, by way of the host's) and NcclTransport (nccl/), with GuardedTransport around it.
// Threads: one thread calls it; abandoned() any. Errors: ExitCode::communication, and the transport is
// abandoned. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/comm/collectives.h"
#include "runtime/core/result.h"

namespace holdfast::inline parallel {

class Transport {
 public:
  using Number = std::uint64_t;           // 0, 1, 2, ... over the life of the group
  static constexpr int ranks_max = 1536;  // of a group

  struct Incoming {
    std::span<std::byte> target;
    int peer = 0;
  };
  struct Outgoing {
    std::span<const std::byte> source;
    int peer = 0;
  };

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What a rank of the group is called in sentences: its number in the whole run.
  virtual int global_rank(int rank) const { return rank; }

  // Whether another exchange may be opened now; always when none is open.
  virtual bool can_open() const = 0;
  // Opens the next exchange with what this rank receives in it. Targets stay untouched until it is received.
  virtual Result<Number> open(std::span<const Incoming> incoming) = 0;
  // What this rank sends in an open exchange, once, perhaps nothing; in any order of the numbers. The bytes
  // are there already and stay until the exchange is finished.
  virtual Result<void> send(Number number, std::span<const Outgoing> outgoing) = 0;
  // Moves things on without waiting; whether anything moved.
  virtual Result<bool> advance() = 0;

  // Whether what `peer` sends in an exchange is whole here; so is everything it sent in lower numbers.
  virtual bool received(Number number, int peer) const = 0;
  // The lowest number that is not finished: of every lower one all messages of both directions are done.
  virtual Number oldest() const = 0;

  // For a sentence: what the oldest exchange waits for.
  struct Awaited {
    Number number = 0;
    int peer = -1;  // -1: one of its peers, it is not known which
    bool receiving = false;
  };
  virtual Awaited awaited() const = 0;

  // Gives up everything that is open, so that its memory may go; from then on every call is an error.
  virtual void abandon() = 0;
  virtual bool abandoned() = 0;
};

// Until every exchange below `end` is finished; when nothing moves for the waiter's timeout the transport is
// abandoned, and the error names the operation and the peer.
Result<void> finish_exchanges(Transport& transport, const Waiter& waiter, Transport::Number end,
                              const char* operation);

// What a listener of waits is told of an exchange: the operation, and the peer as a rank of the run.
Awaited awaited_of(const Transport& transport, const char* operation);

// For whoever waits himself: after nothing moved for the waiter's timeout, what finish_exchanges() does then.
Error give_up_exchange(Transport& transport, const Waiter& waiter, const char* operation);

// Between the two ranks of a group: `bytes` of the one that sends become those of the other, whole when it
// returns. Nothing happens when they are none, which both ends know.
Result<void> pass_on(Transport& pair, const Waiter& waiter, std::span<std::byte> bytes, bool sends,
                     const char* operation);

}  // namespace holdfast::inline parallel
