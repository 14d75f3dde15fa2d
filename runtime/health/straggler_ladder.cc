#include "runtime/health/straggler_ladder.h"

namespace holdfast::health {

std::optional<std::int64_t> ranks_worth_leaving(const StragglerVerdict& slow, const RunOutlook& run) {
  constexpr double least_gain = 0.05;  // of a step: less than that is within the error of the estimate
  if (slow.is_over || slow.lost_seconds < run.restart_seconds || slow.last_step >= run.steps)
    return std::nullopt;
  const auto slow_steps = static_cast<double>(slow.last_step - slow.since_step + 1);
  const auto steps_left = static_cast<double>(run.steps - slow.last_step);
  const double step_seconds = slow.seconds / slow_steps;
  const double healthy_seconds = step_seconds - slow.lost_seconds / slow_steps;
  const auto waves = [&](std::int64_t copies) {
    return static_cast<double>((run.lanes + copies - 1) / copies);
  };
  for (std::int64_t copies = 1; copies <= run.copies; ++copies) {
    const double gained_seconds = step_seconds - healthy_seconds * waves(copies) / waves(run.copies);
    if (gained_seconds >= least_gain * step_seconds && gained_seconds * steps_left >= 2 * run.restart_seconds)
      return copies * run.ranks_per_copy;
  }
  return std::nullopt;
}

}  // namespace holdfast::health
