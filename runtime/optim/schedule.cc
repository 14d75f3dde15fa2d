#include "runtime/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace holdfast::optim {
namespace {

// Returns how far `step` is on the way from step `begin` (0) to the last of `steps` (1).
double progress(std::int64_t step, std::int64_t begin, std::int64_t steps) {
  if (steps <= begin) return 1.0;
  const double share = static_cast<double>(step - begin) / static_cast<double>(steps - begin);
  return std::clamp(share, 0.0, 1.0);
}

// Returns the factor of the peak on a line from 1 (share 0) down to `final_fraction` (share 1).
double line(double final_fraction, double share) {
  return 1.0 + (final_fraction - 1.0) * share;
}

}  // namespace

double learning_rate_at(const OptimizerConfig& optimizer, std::int64_t step, std::int64_t steps) {
  const double peak = optimizer.learning_rate;
  const std::int64_t warmup = optimizer.warmup_steps;
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (optimizer.schedule == "linear")
    return peak * line(optimizer.final_fraction, progress(step, warmup, steps));
  if (optimizer.schedule == "cosine") {
    const double wave = 0.5 * (1.0 - std::cos(std::numbers::pi * progress(step, warmup, steps)));
    return peak * line(optimizer.final_fraction, wave);
  }
  if (optimizer.schedule == "wsd") {
    const auto decay_steps = static_cast<std::int64_t>(optimizer.decay_fraction * static_cast<double>(steps));
    const std::int64_t begin = std::max(warmup, steps - decay_steps);
    return step <= begin ? peak : peak * line(optimizer.final_fraction, progress(step, begin, steps));
  }
  if (optimizer.schedule == "inverse_sqrt") {
    constexpr std::int64_t without_warmup = 10'000;
    const auto scale = static_cast<double>(warmup > 0 ? warmup : without_warmup);
    return peak / std::sqrt(1.0 + static_cast<double>(step - warmup) / scale);
  }
  return peak;  // constant
}

double rate_after_rollbacks(double rate, double factor, std::uint64_t rollbacks) {
  for (std::uint64_t i = 0; i < rollbacks; ++i) rate *= factor;
  return rate;
}

}  // namespace holdfast::optim
