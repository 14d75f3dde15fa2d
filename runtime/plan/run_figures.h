// RunFigures: what a run has measured of itself, for a plan (reliability.h).
#pragma once

#include <optional>
#include <string>

#include "runtime/hazard/failure_rate.h"
#include "runtime/hazard/save_interval.h"
#include "runtime/os/env.h"

namespace holdfast::plan {

// RunFigures are what the events of a run say. Costs of steps and saves are those since its newest start or change of
// ranks, if it has the ranks of the plan since.
struct RunFigures {
  std::string directory = {};  // empty: the run has not begun
  int ranks = 0;               // that train in it, without spares; 0: unknown
  DeviceHistory history = {};
  std::optional<double> step_seconds = {};  // median
  std::optional<SaveTimes> save = {}, snapshot = {};
  std::optional<double> recovery_seconds = {};  // median of recoveries in place
};
// Reads the record of failures and the end of the event log of a run directory, which need not exist. `ranks` train in the plan;
// `spares`: elastic.spares, which a start counts among its ranks.
RunFigures read_run_figures(Env& env, const std::string& directory, int ranks, int spares);

}  // namespace holdfast::plan
