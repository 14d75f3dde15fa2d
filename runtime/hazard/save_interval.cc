#include "runtime/hazard/save_interval.h"

#include <algorithm>
#include <cmath>

namespace holdfast::hazard {
namespace {

// A run has fewer steps; and what has no cost at all is still not due all the time that a clock cannot see.
constexpr double max_steps = 1e12;
// Tolerance for rounding, so that a number that is whole but for rounding is not taken for another one.
constexpr double slack = 1e-9;

std::int64_t steps_of(double seconds, double step_seconds) {
  if (!(step_seconds > 0.0)) return 1;
  if (!std::isfinite(seconds)) return static_cast<std::int64_t>(max_steps);
  return static_cast<std::int64_t>(std::clamp(std::ceil(seconds / step_seconds - slack), 1.0, max_steps));
}

}  // namespace

double best_interval_seconds(double cost_seconds, double mtbf_seconds) {
  if (cost_seconds >= 2.0 * mtbf_seconds) return mtbf_seconds;
  const double ratio = cost_seconds / (2.0 * mtbf_seconds);
  const double young_seconds = std::sqrt(2.0 * cost_seconds * mtbf_seconds);
  return young_seconds * (1.0 + std::sqrt(ratio) / 3.0 + ratio / 9.0) - cost_seconds;
}

std::int64_t steps_between_saves(const SaveTimes& times, double mtbf_seconds) {
  const double best = best_interval_seconds(times.cost_seconds, mtbf_seconds);
  return steps_of(std::max(best, times.durable_seconds), times.step_seconds);
}

bool snapshots_follow_failures(double cost_seconds, double mtbf_seconds) {
  return best_interval_seconds(cost_seconds, mtbf_seconds) < cost_seconds / snapshot_share;
}

std::int64_t steps_between_snapshots(const SaveTimes& times, double mtbf_seconds) {
  const double seconds = snapshots_follow_failures(times.cost_seconds, mtbf_seconds)
                             ? best_interval_seconds(times.cost_seconds, mtbf_seconds)
                             : times.cost_seconds / snapshot_share;
  return steps_of(seconds, times.step_seconds);
}

std::int64_t steps_within(std::int64_t steps, double limit_seconds, double step_seconds) {
  if (!(limit_seconds > 0.0) || !(step_seconds > 0.0)) return steps;
  const double most = std::clamp(std::floor(limit_seconds / step_seconds + slack), 1.0, max_steps);
  return std::min(steps, static_cast<std::int64_t>(most));
}

std::int64_t saves_within(std::int64_t steps, double may_lose_seconds, const SaveTimes& times) {
  const double limit = may_lose_seconds - times.durable_seconds - times.step_seconds;
  const std::int64_t cut = steps_within(steps, std::max(limit, times.step_seconds), times.step_seconds);
  return std::max(cut, steps_of(times.durable_seconds, times.step_seconds));
}

double most_lost_seconds(double interval_seconds, const SaveTimes& times) {
  return std::max(interval_seconds, times.durable_seconds) + times.step_seconds + times.durable_seconds;
}

}  // namespace holdfast::hazard
