// Save intervals: the best number of steps between saves, from what was measured or stated. Pure.
#pragma once

#include <cstdint>

namespace holdfast::hazard {

// Returns the seconds of training between two saves for which the sum of what saves cost and what failures
// undo is least. `cost_seconds`: how much longer training takes for one save. J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22
// (2006), equation 37, whose first term is Young's (1974); never longer than the mean time between failures.
double best_interval_seconds(double cost_seconds, double mtbf_seconds);

struct SaveTimes {
  double step_seconds = 0.0;     // of a step beside which nothing is saved
  double cost_seconds = 0.0;     // of a save: how much longer training takes
  double durable_seconds = 0.0;  // of a save: from its begin until it can be loaded
};
// Checkpoints on the disk. None is due before the one before is durable.
std::int64_t steps_between_saves(const SaveTimes& times, double mtbf_seconds);
// RAM snapshots: as many as cost a half percent of the time, and more only where a run fails so often that they are worth it:
// then as checkpoints.
inline constexpr double snapshot_share = 0.005;
std::int64_t steps_between_snapshots(const SaveTimes& times, double mtbf_seconds);
// Returns whether they come more often because of failures.
bool snapshots_follow_failures(double cost_seconds, double mtbf_seconds);
// Returns an interval cut to what may be lost (checkpoint.lose_at_most); 0 seconds: no limit. It is a step at least.
std::int64_t steps_within(std::int64_t steps, double limit_seconds, double step_seconds);
// Returns an interval of checkpoints cut so that most_lost_seconds() is no more than `may_lose_seconds`, as far as the disk takes
// them that often.
std::int64_t saves_within(std::int64_t steps, double may_lose_seconds, const SaveTimes& times);
// Returns the most that is lost with so long an interval: the next save waits until the one before is durable, so the state that
// counts is as old as an interval or a save, whichever is longer, the time until a save counts, and the step that is under way.
double most_lost_seconds(double interval_seconds, const SaveTimes& times);

}  // namespace holdfast::hazard
