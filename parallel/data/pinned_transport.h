// PinnedTransport: the Transport for device memory that the host cannot access, by way of host memory.
// Outgoing bytes are copied to pinned buffers and sent over another transport; incoming bytes are copied from
// there to their targets. It is correct over any communicator, also with several ranks on one GPU. NCCL is
// faster where it is available: here, copies come after the rest of backward in the device's one queue.
//
// received() means that the data is complete for everything that is launched from now on. A finished exchange
// is entirely complete.
//
// Memory: a few slots, each for the messages of one exchange in both directions.
#pragma once

#include <vector>

#include "parallel/comm/transport.h"
#include "parallel/data/buckets.h"
#include "parallel/data/lane_exchange.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"

namespace holdfast::parallel {

// Returns the size of all messages that a rank receives and sends in one exchange: the largest that its lane
// reduction (fp32) or a gather of parameters needs.
std::uint64_t largest_exchange_bytes(const BucketPlan& buckets, const LaneExchange& reduction,
                                     std::size_t parameter_bytes);

class PinnedTransport final : public Transport {
 public:
  // Reserves the slots in `plan`. `host` moves host memory and has no other user; it and `device` outlive
  // this object.
  PinnedTransport(Transport& host, Device& device, std::uint64_t largest_bytes, MemoryPlan& plan);
  void bind(const MemoryArena& arena);
  // Returns the number of bytes that a message takes in a slot, aligned.
  static std::uint64_t bytes_of_message(std::uint64_t bytes);

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  int global_rank(int rank) const override { return host_->global_rank(rank); }
  bool can_open() const override { return next_ - oldest_ < slots_.size() && host_->can_open(); }
  Result<Number> open(std::span<const Incoming> incoming) override;
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override;
  Result<bool> advance() override;
  bool received(Number number, int peer) const override { return whole_[index_of(peer)] > number; }
  Number oldest() const override { return oldest_; }
  Awaited awaited() const override { return host_->awaited(); }
  void abandon() override { host_->abandon(); }
  bool abandoned() override { return host_->abandoned(); }

 private:
  struct Arrival {
    std::span<std::byte> target;  // empty: the peer sends nothing
    std::span<std::byte> buffer;
  };
  struct Slot {  // state of an open exchange
    std::span<std::byte> memory;
    std::size_t used_bytes = 0;
    std::vector<Arrival> arrivals;   // by peer
    std::vector<Outgoing> outgoing;  // from the buffers
    bool copied_out = false;         // the copies of what is sent are launched
    bool sent = false;
    Device::Ticket out = 0, in = 0;  // tickets of the last copies, by direction
  };

  static std::size_t index_of(int peer) { return static_cast<std::size_t>(peer); }
  Slot& slot_of(Number number) { return slots_[static_cast<std::size_t>(number % slots_.size())]; }
  std::span<std::byte> buffer(Slot& slot, std::size_t bytes);
  Result<bool> send_copied();
  bool copy_arrived();
  bool finish();

  Transport* host_;
  Device* device_;
  MemoryPlan::Slot memory_slot_;
  std::uint64_t slot_bytes_;
  std::vector<Slot> slots_;
  std::vector<Number> whole_;     // by peer: number of exchanges whose arrivals are copied to their targets
  std::vector<Incoming> posted_;  // of one exchange
  Number next_ = 0, oldest_ = 0;  // the same numbers as host_'s
};

}  // namespace holdfast::parallel
