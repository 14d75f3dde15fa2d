// The ladder of what follows when a rank is slow (health.preset; docs/stragglers.md): it is told, and once it has cost
// as much as a start does, its host is left. Pure.
//
// Source: ski rental (A. Karlin, M. Manasse, L. Rudolph, D. Sleator, Competitive snoopy caching, Algorithmica 3, 1988).
// Who stays until that has cost what leaving costs pays at most twice as much as who knows how long the rank stays slow.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/health/straggler_rule.h"

namespace holdfast::health {

// RunOutlook holds what a run has ahead of it, and how its work is shared out.
struct RunOutlook {
  std::uint64_t steps = 0;       // that the run makes in all
  double restart_seconds = 0.0;  // which a start without some host costs
  std::int64_t lanes = 1;        // shared out to the copies of the model
  std::int64_t copies = 1;
  std::int64_t ranks_per_copy = 1;
};

// Returns the fewest ranks with which a run that leaves the host of the slow rank now ends earlier than one that stays,
// by at least as much again as the start costs; none: it stays, however many ranks it could go on with.
std::optional<std::int64_t> ranks_worth_leaving(const StragglerVerdict& slow, const RunOutlook& run);

}  // namespace holdfast::health
