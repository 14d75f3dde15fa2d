#include "parallel/data/pinned_transport.h"

#include <algorithm>
#include <array>

#include "kernels/elementwise.h"
#include "parallel/data/gather_exchange.h"

namespace holdfast::parallel {
namespace {

constexpr std::size_t slot_count = 2;  // one is filled while the other is sent

}  // namespace

std::uint64_t largest_exchange_bytes(const BucketPlan& buckets, const LaneExchange& reduction,
                                     std::size_t parameter_bytes) {
  std::uint64_t largest = 0;
  std::vector<LaneExchange::Message> messages;
  const int waves = reduction.schedule().waves();
  // Waves are alike but for where their blocks lie, and the first one has the most lanes.
  for (int wave = 0; wave < (reduction.sums_blocks() ? waves : 1); ++wave) {
    for (int position = 0; position < reduction.count(wave); ++position) {
      messages.clear();
      reduction.incoming(wave, reduction.at(wave, position), messages);
      reduction.outgoing(wave, reduction.at(wave, position), messages);
      std::uint64_t bytes = 0;
      for (const LaneExchange::Message& message : messages)
        bytes += PinnedTransport::bytes_of_message(message.range.size() * sizeof(float));
      largest = std::max(largest, bytes);
    }
  }
  // The stages of two buckets share an exchange of a gather. Bytes that are sent to several are copied once.
  const GatherExchange gather(buckets, reduction);
  std::array<std::uint64_t, 2> largest_of_stage = {};
  for (const auto stage : {GatherExchange::Stage::between, GatherExchange::Stage::inside}) {
    std::uint64_t& most = largest_of_stage[stage == GatherExchange::Stage::between ? 0 : 1];
    for (int bucket = 0; bucket < static_cast<int>(buckets.buckets().size()); ++bucket) {
      messages.clear();
      gather.outgoing(stage, bucket, messages);
      if (messages.size() > 1) messages.resize(1);
      gather.incoming(stage, bucket, messages);
      std::uint64_t bytes = 0;
      for (const GatherExchange::Message& message : messages)
        bytes += PinnedTransport::bytes_of_message(message.range.size() * parameter_bytes);
      most = std::max(most, bytes);
    }
  }
  return std::max(largest, largest_of_stage[0] + largest_of_stage[1]);
}

std::uint64_t PinnedTransport::bytes_of_message(std::uint64_t bytes) {
  constexpr std::uint64_t alignment = MemoryPlan::alignment_bytes;
  return (bytes + alignment - 1) / alignment * alignment;
}

PinnedTransport::PinnedTransport(Transport& host, Device& device, std::uint64_t largest_bytes,
                                 MemoryPlan& plan)
    : host_(&host),
      device_(&device),
      memory_slot_(plan.reserve("exchange.buffers", MemoryClass::communication, slot_count * largest_bytes,
                                MemoryKind::host_visible)),
      slot_bytes_(largest_bytes),
      slots_(slot_count),
      whole_(index_of(host.size())),
      next_(host.oldest()),
      oldest_(next_) {
  std::ranges::fill(whole_, next_);
  for (Slot& slot : slots_) {
    slot.arrivals.resize(whole_.size());
    slot.outgoing.reserve(whole_.size());
  }
  posted_.reserve(whole_.size());
}

void PinnedTransport::bind(const MemoryArena& arena) {
  const std::span<std::byte> memory = arena.bytes(memory_slot_);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    slots_[i].memory = memory.subspan(i * slot_bytes_, slot_bytes_);
}

std::span<std::byte> PinnedTransport::buffer(Slot& slot, std::size_t bytes) {
  HF_CHECK(slot.used_bytes + bytes <= slot.memory.size(), "an exchange of more than {} bytes", slot_bytes_);
  const std::span<std::byte> result = slot.memory.subspan(slot.used_bytes, bytes);
  slot.used_bytes += bytes_of_message(bytes);
  return result;
}

Result<Transport::Number> PinnedTransport::open(std::span<const Incoming> incoming) {
  HF_CHECK(can_open());
  Slot& slot = slot_of(next_);
  slot.used_bytes = 0;
  slot.copied_out = slot.sent = false;
  slot.out = slot.in = 0;
  std::ranges::fill(slot.arrivals, Arrival{});
  posted_.clear();
  for (const Incoming& message : incoming) {
    const Arrival arrival{.target = message.target, .buffer = buffer(slot, message.target.size())};
    slot.arrivals[index_of(message.peer)] = arrival;
    posted_.push_back({.target = arrival.buffer, .peer = message.peer});
  }
  HF_TRY(const Number number, host_->open(posted_));
  HF_CHECK(number == next_);
  return next_++;
}

Result<void> PinnedTransport::send(Number number, std::span<const Outgoing> outgoing) {
  Slot& slot = slot_of(number);
  HF_CHECK(oldest_ <= number && number < next_ && !slot.copied_out, "exchange {}", number);
  slot.copied_out = true;
  slot.outgoing.clear();
  const std::byte* copied = nullptr;
  for (const Outgoing& message : outgoing) {
    if (message.source.data() == copied) {  // the same bytes go to this peer
      slot.outgoing.push_back({.source = slot.outgoing.back().source, .peer = message.peer});
      continue;
    }
    const std::span<std::byte> target = buffer(slot, message.source.size());
    device_->launch(Copy{.source = message.source.data(),
                         .target = target.data(),
                         .bytes = static_cast<std::int64_t>(target.size())});
    slot.outgoing.push_back({.source = target, .peer = message.peer});
    copied = message.source.data();
  }
  if (!outgoing.empty()) slot.out = device_->ticket();
  return {};
}

Result<bool> PinnedTransport::send_copied() {
  bool moved = false;
  for (Number number = oldest_; number < next_; ++number) {
    Slot& slot = slot_of(number);
    if (slot.sent || !slot.copied_out || !device_->reached(slot.out)) continue;
    HF_TRY_VOID(host_->send(number, slot.outgoing));
    slot.sent = moved = true;
  }
  return moved;
}

bool PinnedTransport::copy_arrived() {
  bool moved = false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    for (Number& whole = whole_[index_of(peer)]; whole < next_ && host_->received(whole, peer); ++whole) {
      Slot& slot = slot_of(whole);
      moved = true;
      const Arrival& arrival = slot.arrivals[index_of(peer)];
      if (arrival.target.empty()) continue;
      device_->launch(Copy{.source = arrival.buffer.data(),
                           .target = arrival.target.data(),
                           .bytes = static_cast<std::int64_t>(arrival.target.size())});
      slot.in = device_->ticket();
    }
  }
  return moved;
}

// Finishes exchanges. The buffers of a slot are free when all data that came through them has reached its
// target.
bool PinnedTransport::finish() {
  const Number before = oldest_;
  while (oldest_ < next_ && host_->oldest() > oldest_ && device_->reached(slot_of(oldest_).in)) ++oldest_;
  return oldest_ > before;
}

Result<bool> PinnedTransport::advance() {
  HF_TRY(const bool sent, send_copied());
  HF_TRY(const bool moved, host_->advance());
  const bool arrived = copy_arrived();
  const bool finished = finish();
  return sent || moved || arrived || finished;
}

}  // namespace holdfast::parallel
