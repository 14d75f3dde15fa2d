#include "runtime/train/snapshot.h"

#include <cstring>

#include "kernels/elementwise.h"
#include "runtime/train/checkpoint_parts.h"

namespace holdfast {
namespace {

// Pieces begin where a disk could take them from without another copy.
constexpr std::uint64_t alignment_bytes = 4096;

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

// The memory plan aligns to less.
std::span<std::byte> aligned(std::span<std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.subspan(padded(address) - address);
}

}  // namespace

std::uint64_t snapshot_bytes(std::span<const ShardSpec> pieces) {
  std::uint64_t bytes = alignment_bytes;
  for (const ShardSpec& piece : pieces) bytes += padded(piece.byte_count());
  return bytes;
}

Snapshot::Snapshot(Worker& worker) : worker_(&worker) {
  std::span<std::byte> room = aligned(worker.snapshot_memory());
  for (const StatePiece& live : saved_state(worker)) {
    HF_CHECK(padded(live.bytes.size()) <= room.size(), "the plan has no room for a snapshot");
    sources_.push_back(live.bytes);
    pieces_.push_back({live.spec, room.first(live.bytes.size())});
    room = room.subspan(padded(live.bytes.size()));
  }
}

Result<void> Snapshot::begin() {
  state_ = worker_->state();
  Device& device = worker_->device();
  if (device.host_sees_memory()) return {};
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    device.launch(Copy{.source = sources_[i].data(),
                       .target = const_cast<std::byte*>(pieces_[i].bytes.data()),
                       .bytes = static_cast<std::int64_t>(sources_[i].size())});
  }
  device.synchronize();
  return worker_->device_outcome();
}

void Snapshot::complete() {
  if (!worker_->device().host_sees_memory()) return;
  HF_FAULT_POINT(worker_->faults(), "snapshot.before_copy");
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (i == pieces_.size() / 2) HF_FAULT_POINT(worker_->faults(), "snapshot.mid_copy");
    std::memcpy(const_cast<std::byte*>(pieces_[i].bytes.data()), sources_[i].data(), sources_[i].size());
  }
  HF_FAULT_POINT(worker_->faults(), "snapshot.after_copy");
}

}  // namespace holdfast
