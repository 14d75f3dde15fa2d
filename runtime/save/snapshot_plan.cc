#include "runtime/save/snapshot_plan.h"

#include "checkpoint/snapshot_slot.h"
#include "checkpoint/transfer.h"
#include "kernels/product_plan.h"
#include "runtime/config/document.h"
#include "runtime/rank/watch.h"
#include "runtime/save/save_cadence.h"

namespace holdfast::save {

void SnapshotPlan::reserve(MemoryPlan& plan) {
  if (!save_plan(rank_->config).beside_steps) return;
  bytes_ = bytes_at(rank_->coordinate.data);
  // Number of threads that copy: as many as fill slots as fast as a device delivers its memory (some 8 GB/s
  // each).
  constexpr int staging_count = 4;
  for (int i = 0; i < staging_count && !rank_->device.host_sees_memory(); ++i) {
    staging_slots_.push_back(
        plan.reserve("snapshot.staging", MemoryClass::snapshot, staging_bytes, MemoryKind::host_visible));
  }
  if (wants_shared_memory()) return;
  slot_ = plan.reserve("snapshot", MemoryClass::snapshot, bytes_ + SnapshotSlot::alignment_bytes,
                       MemoryKind::host_visible);
}

// Binds the memory. A snapshot uses the part of its slot that has the alignment of snapshots.
void SnapshotPlan::bind(const MemoryArena& arena) {
  for (const MemoryPlan::Slot& slot : staging_slots_) staging_.push_back(arena.bytes(slot));
  if (bytes_ == 0 || wants_shared_memory()) return;
  const std::span<std::byte> room = arena.bytes(slot_);
  const std::uint64_t over = reinterpret_cast<std::uintptr_t>(room.data()) % SnapshotSlot::alignment_bytes;
  memory_ = room.subspan(over == 0 ? 0 : SnapshotSlot::alignment_bytes - over, bytes_);
}

// Agrees with all ranks on the memory of snapshots. Without snapshots in shared memory a rank has one of
// ordinary memory.
Result<void> SnapshotPlan::agree(std::uint64_t own_bytes, std::uint64_t kept_bytes,
                                 const MemoryTerms& terms) {
  RankMemory needs{.slot_bytes = bytes_};
  for (RankMemory::Need& need : needs.need) need.own_bytes = own_bytes;
  needs.kept_bytes = kept_bytes;
  if (wanted_tiers() != SnapshotTiers::none) {
    needs.need[static_cast<std::size_t>(SnapshotTiers::none)].own_bytes += bytes_;
    needs.need[static_cast<std::size_t>(SnapshotTiers::own)].shared_bytes = shared_slots * bytes_;
    needs.need[static_cast<std::size_t>(SnapshotTiers::all)].shared_bytes = shared_bytes();
  }
  return agree_on_memory(*rank_, needs, wanted_tiers(), terms, decision_);
}

SnapshotTiers SnapshotPlan::wanted_tiers() const {
  if (!wants_shared_memory()) return SnapshotTiers::none;
  return buddies_.empty() ? SnapshotTiers::own : SnapshotTiers::all;
}

std::uint64_t SnapshotPlan::bytes_of(int rank) const {
  return bytes_at(rank_->mesh.coordinate_of(rank).data);
}

std::uint64_t SnapshotPlan::bytes_at(int data_coordinate) const {
  std::vector<ShardSpec> pieces;
  const auto add = [&](const char* kind, DType dtype) {
    for (ShardSpec& piece : rank_->buckets.shard_specs(data_coordinate, kind, dtype)) {
      if (saves(piece)) pieces.push_back(std::move(piece));
    }
  };
  add("weight", DType::fp32);
  for (const StateKind& kind : rank_->config.optimizer.state_kinds()) add(kind.name, kind.dtype);
  // A step of the history of numbers takes 48 digits (verdict/numbers_history.h).
  const std::uint64_t other_manifest_bytes =
      (64 << 10) + stored_plan_bytes_max +
      64 * static_cast<std::uint64_t>(rank_->config.verdict.window_steps);
  return SnapshotSlot::bytes_for(pieces, 2 * record_config(rank_->config).size() + other_manifest_bytes);
}

int SnapshotPlan::buddy() const {
  return buddies_.empty() ? -1 : buddies_[static_cast<std::size_t>(rank_->communicator.rank())];
}

std::vector<int> SnapshotPlan::kept_ranks() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < buddies_.size(); ++rank) {
    if (buddies_[rank] == rank_->communicator.rank()) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::uint64_t SnapshotPlan::shared_bytes() const {
  if (!wants_shared_memory()) return 0;
  std::uint64_t bytes = shared_slots * bytes_;
  for (const int rank : kept_ranks()) bytes += ReplicaKeeper::slots * bytes_of(rank);
  return bytes;
}

Result<std::unique_ptr<SharedMemory>> SnapshotPlan::make_slot(const std::string& name,
                                                              std::uint64_t bytes) const {
  // The system reserves all of it in one call, which can take long without any sign of life.
  const StorageWait wait(rank_->watch, "memory for RAM snapshots");
  return slots_ != nullptr ? slots_->make(rank_->env, rank_->faults, name, bytes)
                           : rank_->env.create_shared_memory(name, bytes);
}

}  // namespace holdfast::save
