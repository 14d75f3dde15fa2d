// Agrees with all ranks on whether what they plan fits into their hosts (memory_fit.h), before anybody
// touches it: what a rank of a host took would be missing in another's count. Where it does not fit, a
// process that was killed may still hold what is lacking, so all wait and measure again.
#pragma once

#include <cstdint>
#include <optional>

#include "checkpoint/ram_tier.h"
#include "checkpoint/slot_pool.h"
#include "parallel/comm/collectives.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/rank/memory_fit.h"
#include "watchdog/rank_watch.h"

namespace holdfast::inline rank {

// Holds what a run knows beyond the plan of one worker.
struct MemoryTerms {
  std::int64_t timeout_ms = 0;  // longest wait for memory that others hold
  // Tiers that the run had before, as far as this rank knows; the most that any rank says counts.
  SnapshotTiers had = SnapshotTiers::none;
  // Whether these are all ranks the run is launched with: what is too large then will always be.
  bool has_all_ranks = true;
  // Run whose older snapshots count, and the step that it resumes from; none: it has none.
  std::optional<Digest> run = {};
  std::optional<SnapshotStep> resumed = {};
  // Slots that this process keeps; it forgets them where unneeded snapshots have to go at once. Null: it has
  // none.
  SlotPool* slots = nullptr;
};

struct MemoryDecision {
  SnapshotRoom room = {};
  // Reason for fewer tiers than wanted, as a clause for a sentence; empty where nothing is missing.
  std::string warning = {};
  // Whether nothing was found, but might be with fewer ranks or later; the error says what.
  bool lacks = false;
};

struct MemoryParties {
  Communicator& communicator;  // of all ranks that compute
  const Waiter& waiter;
  Env& env;
  RankWatch* watch = nullptr;  // is told of the wait; null: nobody
  std::uint64_t step = 0;      // for it
};

// Decides with all ranks which snapshots the memory of their hosts has room for. `mine`: this rank's needs;
// its measured members are filled in here. All ranks get the same decision, or the same error:
//   does_not_fit   it would not on an empty machine, and these are all ranks of the run
//   communication  others hold too much of it, still after the wait (`decision.lacks`); or a peer is gone
Result<void> agree_on_memory(const MemoryParties& parties, RankMemory mine, SnapshotTiers wanted,
                             const MemoryTerms& terms, MemoryDecision& decision);

}  // namespace holdfast::inline rank
