// Finds a layout for a start when the hosts that are left have no room for the configured degrees of
// parallelism. Pure.
//
// A run that is one copy of the model over several hosts has no copy to lose. Its next start computes the
// same slices and stages on fewer ranks instead: parallel.tensor and parallel.pipeline determine where a run
// executes, never a bit of it (DESIGN: "Lanes").
#pragma once

#include <optional>
#include <span>

#include "runtime/config/config.h"
#include "runtime/launch/restart_policy.h"

namespace holdfast::launch {

struct StartLayout {
  int ranks = 1;  // includes spares, if the run has any
  int pipeline = 1, tensor = 1;
  bool operator==(const StartLayout&) const = default;
};

// Returns the layout with the most ranks that the hosts left have room for, of those that `run` can have: at
// most its own degrees, at least `wanted.min_copies` copies of the model, every tensor group inside a host,
// and at least `min_ranks` ranks. Of several such layouts it is the one with the most ranks per copy, which
// needs the least memory of each rank; then the one with the larger tensor degree. `run`: the config with all
// that its first start resolved, at the wanted degrees. None if there is no such layout.
std::optional<StartLayout> narrower_layout(const Config& run, std::span<const LaunchHost> hosts,
                                           const RanksWanted& wanted, int min_ranks);

}  // namespace holdfast::launch
