// Agrees with all ranks on whether the memory that they plan fits into their hosts (memory_fit.h), before any
// rank touches it: memory that one rank of a host took would be missing in the count of another. If it does
// not fit, a process that was killed may still hold the missing memory, so all wait and measure again.
#pragma once

#include <cstdint>
#include <optional>

#include "checkpoint/ram_tier.h"
#include "checkpoint/slot_pool.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/result.h"
#include "runtime/rank/memory_fit.h"
#include "runtime/rank/rank_context.h"

namespace holdfast::rank {

// MemoryTerms holds what a run knows beyond the plan of one worker.
struct MemoryTerms {
  std::int64_t timeout_ms = 0;  // longest wait for memory that other processes hold
  // Tiers that the run had before, as far as this rank knows; the largest value of all ranks counts.
  SnapshotTiers had = SnapshotTiers::none;
  // True if these are all ranks that the run is launched with: a plan that is too large then will always be
  // too large.
  bool has_all_ranks = true;
  // Run whose older snapshots count, and the step that it resumes from; none if it has none.
  std::optional<Digest> run = {};
  std::optional<SnapshotStep> resumed = {};
  // Slots that this process keeps; they are forgotten if unneeded snapshots have to go at once. Null if it
  // has none.
  SlotPool* slots = nullptr;
};

struct MemoryDecision {
  SnapshotRoom room = {};
  // Reason for fewer tiers than wanted, as a clause for a sentence; empty where nothing is missing.
  std::string warning = {};
  // True if the ranks do not fit now, but might with fewer ranks or later; the error has the details.
  bool lacks = false;
};

// ProcessMemory holds what the workers of a process hand on, from one membership epoch to the next.
struct ProcessMemory {
  KeptMemory kept;                                                     // of the arenas
  SlotPool slots;                                                      // of snapshots and replicas
  MemoryDecision decision = {.room = {.tiers = SnapshotTiers::none}};  // for the last worker
  std::optional<std::uint64_t> verified_step = {};  // Worker::verified_step() of this process
};

// Decides with all ranks that compute which snapshots the memory of their hosts has room for. `mine`: this rank's needs;
// its measured members are filled in here. All ranks get the same decision, or the same error:
//   does_not_fit   the plan would not fit on an empty machine, and these are all ranks of the run
//   communication  other processes still hold too much memory after the wait, or the ranks that are left are
//                  too few for the plan (`decision.lacks` in both cases); or a peer is gone
Result<void> agree_on_memory(const RankContext& rank, RankMemory mine, SnapshotTiers wanted,
                             const MemoryTerms& terms, MemoryDecision& decision);

}  // namespace holdfast::rank
