// Transport: moves device memory between the ranks of one group, in numbered exchanges. Gradients and
// parameters travel through it; control messages (votes, agreements) travel through Communicator.
//
// The unit is the exchange and not the message. All ranks of the group open the same exchanges in the same
// order; in exchange n, rank a sends to rank b what b receives from a in exchange n: at most one message in
// each direction with each peer, of equal length at both ends and never empty. A rank may have nothing to
// send or to receive.
//
//   HF_TRY(const Transport::Number number, transport.open(incoming));   // receives may be posted long before
//   HF_TRY_VOID(transport.send(number, outgoing));                     // when the bytes are written
//   while (transport.oldest() <= number) HF_TRY_VOID(outcome_of(transport.advance()));
//
// Communicator does not suffice: its messages are posted one by one and matched by tags. NCCL has no tags,
// and operations on one of its communicators run in the order in which they were issued: two ranks that each
// send to the other first wait for each other for ever, unless both messages of each rank are issued as one
// group. The code that moves the bytes must therefore know which messages belong together, and all ranks must
// issue the groups in one order. A host communicator can do that too, so the lane reduction is written for
// this interface.
//
// It cannot deadlock: take the lowest of all exchanges that some rank has not finished. Every exchange before
// it is finished everywhere, so it has a free slot on every rank, is the next to be issued there, and waits
// only for every rank to post its sends, which must not depend on a later exchange. The messages of one
// exchange proceed together.
//
// A transport whose exchanges are in a queue of the device itself (NCCL's) needs no host between the work that writes
// the bytes, the exchange, and the work that reads them: send_behind() and follow() order all three by events of the
// device. The host then only watches (oldest(), advance(), a deadline of its own), and must go on doing so until the
// exchange is finished: the device's queue waits for it, and only abandon() ends an exchange with a dead peer.
//
// Implementations: HostTransport (over any Communicator, for memory that the host can read), PinnedTransport
// (for a GPU's memory, by way of the host's) and NcclTransport (nccl/), with GuardedTransport around it.
// Threads: one thread calls it; any thread may call abandoned(). Errors: ExitCode::communication, and the
// transport is abandoned. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "parallel/comm/collectives.h"
#include "parallel/comm/traffic.h"
#include "runtime/core/device_event.h"
#include "runtime/core/result.h"

namespace holdfast::parallel {

class Transport {
 public:
  using Number = std::uint64_t;            // 0, 1, 2, ... over the life of the group
  static constexpr int ranks_max = 16384;  // maximum size of a group

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
  // Returns the number in the whole run of a rank of the group, which names it in messages.
  virtual int global_rank(int rank) const { return rank; }

  // Returns whether another exchange may be opened now; always true when none is open.
  virtual bool can_open() const = 0;
  // Opens the next exchange with the messages that this rank receives in it. Targets stay untouched by the
  // caller until they are received.
  virtual Result<Number> open(std::span<const Incoming> incoming) = 0;
  // Posts the messages that this rank sends in an open exchange. It is called once per exchange, also with no
  // messages, and in any order of the numbers. The bytes are there already and stay until the exchange is
  // finished.
  virtual Result<void> send(Number number, std::span<const Outgoing> outgoing) = 0;
  // Advances the exchanges without waiting. Returns whether there was progress.
  virtual Result<bool> advance() = 0;

  // Returns whether the exchanges are in a queue of the device, so that send_behind() and follow() may be called.
  virtual bool is_on_device() const { return false; }
  // Does what send() does where the bytes need not be there yet: on the device the exchange begins behind everything
  // that is in `queue` now, which therefore may also be the last use of the targets.
  virtual Result<void> send_behind(Number /*number*/, std::span<const Outgoing> /*outgoing*/,
                                   DeviceQueue& /*queue*/) {
    HF_CHECK(false, "a transport of the host");
    return {};
  }
  // Makes what is put into `queue` from now on run behind the exchange, as if it were finished. Returns false, and does
  // nothing, while the exchange is not in the device's queue yet, which advance() brings about without waiting for
  // the device or for other ranks.
  virtual Result<bool> follow(Number /*number*/, DeviceQueue& /*queue*/) {
    HF_CHECK(false, "a transport of the host");
    return false;
  }

  // Returns whether all that `peer` sends in this exchange is here; everything it sent in lower numbers then
  // is, too.
  virtual bool received(Number number, int peer) const = 0;
  // Returns the lowest number that is not finished: all messages of lower numbers are done, in both
  // directions.
  virtual Number oldest() const = 0;

  // Message that the oldest exchange waits for, for error messages.
  struct Awaited {
    Number number = 0;
    int peer = -1;  // -1: one of its peers, not known which
    bool receiving = false;
  };
  virtual Awaited awaited() const = 0;

  // Gives up all open exchanges, so that their memory may be released; from then on every call is an error.
  virtual void abandon() = 0;
  virtual bool abandoned() = 0;
};

// Returns when every exchange below `end` is finished. When there is no progress for the waiter's timeout,
// the transport is abandoned, and the error names the operation and the peer.
Result<void> finish_exchanges(Transport& transport, const Waiter& waiter, Transport::Number end,
                              const char* operation);

// Returns what a WaitListener is given for an exchange: the operation, and the peer as a rank of the run.
Awaited awaited_of(const Transport& transport, const char* operation);

// Abandons the transport and returns the error that finish_exchanges() would return, for callers with a wait
// loop of their own that saw no progress for the waiter's timeout.
Error give_up_exchange(Transport& transport, const Waiter& waiter, const char* operation);

// Passes `bytes` from the one rank of a group of two that sends to the other, which has them when it returns.
// Nothing happens when `bytes` is empty, which both ends know.
Result<void> pass_on(Transport& pair, const Waiter& waiter, std::span<std::byte> bytes, bool sends,
                     const char* operation);

// GuardedTransport: ties a transport whose messages do not travel over the host (NCCL) to the host
// communicator of the same ranks, so that the end of either is the end of the other.
//
//   a peer dies or gives up    detected over the communicator while the transport advances, which is then
//                              abandoned: NCCL's kernels would wait for the peer for ever
//   the transport fails        the communicator is abandoned: with fault tolerance all ranks learn of it
//
// An error of a step therefore means the same as where messages travel over the communicator itself.
class GuardedTransport final : public Transport {
 public:
  // `control` has other users, too; messages are added to `traffic`. `control`, `env` and `traffic` outlive
  // this object.
  GuardedTransport(std::unique_ptr<Transport> transport, Communicator& control, Env& env, Traffic& traffic);

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  int global_rank(int rank) const override { return control_->global_rank(rank); }
  bool can_open() const override { return transport_->can_open(); }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override;
  Result<bool> advance() override;
  bool is_on_device() const override { return transport_->is_on_device(); }
  Result<void> send_behind(Number number, std::span<const Outgoing> outgoing, DeviceQueue& queue) override;
  Result<bool> follow(Number number, DeviceQueue& queue) override;
  bool received(Number number, int peer) const override { return transport_->received(number, peer); }
  Number oldest() const override { return transport_->oldest(); }
  Awaited awaited() const override { return transport_->awaited(); }
  void abandon() override;
  bool abandoned() override { return transport_->abandoned() || control_->abandoned(); }

 private:
  Result<void> look_for_peers();
  template <typename T>
  Result<T> guarded(Result<T> outcome);

  std::unique_ptr<Transport> transport_;
  Communicator* control_;
  Env* env_;
  Traffic* traffic_;
  std::int64_t next_look_ns_ = 0;
};

// ReplaceableTransport: passes all calls to a transport that another one of the same ranks may replace: those who
// hold it need not know. Numbers go on from those of the new one.
class ReplaceableTransport final : public Transport {
 public:
  explicit ReplaceableTransport(Transport& first) : now_(&first), next_(first.oldest()) {}
  // Passes calls to `other` from now on, which outlives this object as the first one does. Requires that every exchange
  // is finished, and that all ranks do this between the same two exchanges.
  void replace(Transport& other);

  int rank() const override { return now_->rank(); }
  int size() const override { return now_->size(); }
  int global_rank(int rank) const override { return now_->global_rank(rank); }
  bool can_open() const override { return now_->can_open(); }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override {
    return now_->send(number, outgoing);
  }
  Result<bool> advance() override { return now_->advance(); }
  bool is_on_device() const override { return now_->is_on_device(); }
  Result<void> send_behind(Number number, std::span<const Outgoing> outgoing, DeviceQueue& queue) override {
    return now_->send_behind(number, outgoing, queue);
  }
  Result<bool> follow(Number number, DeviceQueue& queue) override { return now_->follow(number, queue); }
  bool received(Number number, int peer) const override { return now_->received(number, peer); }
  Number oldest() const override { return now_->oldest(); }
  Awaited awaited() const override { return now_->awaited(); }
  void abandon() override { now_->abandon(); }
  bool abandoned() override { return now_->abandoned(); }

 private:
  Transport* now_;
  Number next_;  // of the next exchange
};

// index(): converts a number of a rank, lane, bucket or the like to a vector index. It is not
// negative.
inline std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace holdfast::parallel
