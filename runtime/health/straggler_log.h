// StragglerLog: the slow ranks of a run, from its event log and its file of times (rank_times.h), as `holdfast
// stragglers` and the report show them. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/health/rank_times.h"
#include "runtime/run/event.h"

namespace holdfast::health {

struct StragglerLog {
  // The last event about each rank and first step, in the order in which they were found.
  std::vector<StragglerEvent> found = {};

  // Takes the next event of the log; others than `straggler` change nothing.
  void take(const Json& event);
  void take(StragglerEvent straggler);
};

// The times of one rank over all rows of an epoch.
struct RankTotals {
  RankPlace place = {};
  StepTimes mean = {};  // of a step
  double ratio = 0.0;   // own time by that of its peers; 0: nobody does the same work
};
std::vector<RankTotals> totals_of(const RankTimesEpoch& epoch);

// Returns by how much the last steps take longer than was usual on all ranks alike; none while that is less than a
// quarter, or little is known.
std::optional<double> slowdown_of_all(const RankTimesEpoch& epoch);

// Formats what is known: sentences, and a table of the ranks of the last epoch.
std::string to_text(const StragglerLog& log, const std::vector<RankTimesEpoch>& epochs);
// Formats the same as one JSON object with the members `stragglers`, `ranks` and `all`.
Json to_json(const StragglerLog& log, const std::vector<RankTimesEpoch>& epochs);

}  // namespace holdfast::health
