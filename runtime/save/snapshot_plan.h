// SnapshotPlan says how much memory the snapshots of a rank and the replicas that it keeps take, and where it
// comes from: the memory plan of the worker, or slots in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/slot_pool.h"
#include "runtime/core/memory_plan.h"
#include "runtime/rank/memory_agreement.h"
#include "runtime/rank/rank_context.h"

namespace holdfast::save {

class SnapshotPlan {
 public:
  // Size of the largest part of the state that is copied from the device at once, on its way into a snapshot.
  static constexpr std::uint64_t staging_bytes = std::uint64_t{8} << 20;
  static constexpr int shared_slots = 3;  // slots of a rank, where its snapshots are in shared memory

  // Builds the plan. `buddies`: by rank, the rank that stores its replicas; empty: none does. `slots`: pool
  // that slots in shared memory come from and go back to; null: they are new. `rank` and `slots` outlive
  // this object.
  SnapshotPlan(const RankContext& rank, std::vector<int> buddies, SlotPool* slots)
      : rank_(&rank), buddies_(std::move(buddies)), slots_(slots) {}

  // Reserves memory where the run saves while it trains; bytes() is 0 elsewhere. Shared memory is not part of
  // `plan`.
  void reserve(MemoryPlan& plan);
  void bind(const MemoryArena& arena);
  // Decides with all ranks which snapshots their hosts have room for. decision() returns the decision from
  // then on, also after an error. `own_bytes`: host memory of the plan; `kept_bytes`: the part of it that
  // this process already has. Errors: those of agree_on_memory().
  Result<void> agree(std::uint64_t own_bytes, std::uint64_t kept_bytes, const MemoryTerms& terms);
  const MemoryDecision& decision() const { return decision_; }

  // Returns whether snapshots are to be in shared memory, which outlives the process.
  bool wants_shared_memory() const { return rank_->config.checkpoint.ram_every_steps != 0; }
  std::uint64_t bytes() const { return bytes_; }  // one snapshot of this rank; 0: none is made
  std::uint64_t bytes_of(int rank) const;         // one snapshot of another rank
  // Returns host memory for one snapshot; empty where slots in shared memory hold them, or none is made.
  std::span<std::byte> memory() const { return memory_; }
  // Returns memory through which parts of the state come from the device, one for each thread that copies;
  // none on a device whose memory the host sees.
  std::span<const std::span<std::byte>> staging() const { return staging_; }

  const std::vector<int>& buddies() const { return buddies_; }
  int buddy() const;                    // rank that stores replicas of this rank's snapshots, or -1
  std::vector<int> kept_ranks() const;  // ranks whose replicas this rank stores
  // Returns the bytes of snapshots and replicas in shared memory.
  std::uint64_t shared_bytes() const;
  SlotPool* slots() const { return slots_; }
  // Makes shared memory for a slot, from pages that are no longer needed where there are any. All of it is
  // reserved, but its pages are not faulted in. Errors: those of Env::create_shared_memory().
  Result<std::unique_ptr<SharedMemory>> make_slot(const std::string& name, std::uint64_t bytes) const;
  // Returns whether this rank is the one that saves a piece of state it owns.
  bool saves(const ShardSpec& piece) const { return piece.slices > 1 || rank_->counts_replicated(); }

 private:
  std::uint64_t bytes_at(int data_coordinate) const;
  SnapshotTiers wanted_tiers() const;

  const RankContext* rank_;
  std::vector<int> buddies_;
  SlotPool* slots_;
  std::uint64_t bytes_ = 0;
  MemoryPlan::Slot slot_;
  std::vector<MemoryPlan::Slot> staging_slots_;
  std::span<std::byte> memory_;
  std::vector<std::span<std::byte>> staging_;
  MemoryDecision decision_;
};

}  // namespace holdfast::save
