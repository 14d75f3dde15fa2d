// Plans what a run costs when things fail: failures to expect, what each takes, spares, the expected training time ratio and
// the price, with and without fault tolerance. The arithmetic is runtime/hazard; this puts in what the run has measured
// (run_figures.h) and, where it has not, stated priors, and says which. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/hazard/failure_rate.h"
#include "runtime/hazard/run_cost.h"
#include "runtime/hazard/save_interval.h"
#include "runtime/plan/layout_plan.h"
#include "runtime/plan/run_figures.h"

namespace holdfast::plan {

// ReliabilityOptions are what the user stated for the plan alone.
struct ReliabilityOptions {
  std::string device_kind = {};  // as hazard::device_prior() has it
  double replacement_seconds = day_seconds;
  // Time of a step with a replica less; none: not known, or the run has no replica to spare.
  std::optional<double> smaller_step_seconds = {};
};

// A number and where it is from.
struct Figure {
  double value = 0.0;
  std::string source;  // "measured in runs/a", "assumed: ..."
};

// TierPlan says how often a tier saves, and what it costs.
struct TierPlan {
  bool exists = false;
  double interval_seconds = 0.0;
  std::string chosen_by = {};  // "Young, Daly", "checkpoint.every_steps", ...
  Figure cost_seconds;
  double counts_after_seconds = 0.0;  // until a save can be loaded, mean
  double under_way_seconds =
      0.0;  // at most lost beside that: the step under way, where no snapshot waits for it
  double overhead() const { return exists ? cost_seconds.value / interval_seconds : 0.0; }
};

struct ReachPlan {
  FailureReach reach;
  std::optional<double> most_lost_seconds = {};  // none: all work so far
  std::string recovered_from = {};               // "RAM", "disk", "the start"
  std::string recovery_source = {};
};

// The same run with other measures.
struct Alternative {
  std::string name;
  double elapsed_seconds = 0.0;  // infinite: it never ends
  double ettr = 0.0;
  double ranks = 0.0;  // that are paid
};

struct ReliabilityPlan {
  int ranks = 1, hosts = 1;
  std::string device_kind;
  RatePrior prior = {};
  FailureHistory history = {};       // in time of as many ranks
  double mtbf_seconds = 0.0;         // by which failures are expected
  double saving_mtbf_seconds = 0.0;  // by which the run saves
  double replacement_seconds = 0.0;
  std::int64_t spares = 0;                    // elastic.spares
  std::int64_t spares_95 = 0, spares_99 = 0;  // ranks, of whole hosts where there are several
  Pool pool = {};               // that spares belong to: hosts where there are several, else ranks
  int unit = 1;                 // ranks of one unit of it
  std::string ranks_note = {};  // why figures of the run were not used
  // Below: only with a step time.
  std::optional<Figure> step_seconds = {};
  double training_seconds = 0.0;
  double p_no_failure = 0.0;
  std::uint64_t tokens = 0;
  TierPlan disk = {}, ram = {};
  std::vector<ReachPlan> reaches = {};
  double lose_at_most_seconds = 0.0;  // checkpoint.lose_at_most; 0: nothing is promised
  RunTime time = {};
  std::vector<Alternative> others =
      {};  // with spares, where more are recommended than there are; without fault tolerance

  // Returns the most work that a failure costs beyond the promise; none: it is kept, or nothing is promised. Infinite: all of it.
  std::optional<double> beyond_promise_seconds() const;
  // Returns what is paid for so long: spares wait, and cost as much.
  double rank_seconds(double seconds) const { return seconds * static_cast<double>(ranks + spares); }
};
ReliabilityPlan plan_reliability(const LayoutPlan& plan, const PlannedMachine& machine,
                                 const RunFigures& figures, const ReliabilityOptions& options);

}  // namespace holdfast::plan
