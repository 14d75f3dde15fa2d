#include "runtime/hazard/run_cost.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "runtime/hazard/failure_rate.h"

namespace holdfast::hazard {

double RunTime::ettr() const {
  const double all = elapsed();
  return std::isfinite(all) && all > 0.0 ? training / all : 0.0;
}

RunTime expected_run(double training_seconds, double save_overhead, double mtbf_seconds,
                     std::span<const FailureReach> reaches) {
  double lost = 0.0, recovery = 0.0, waiting = 0.0;
  for (const FailureReach& reach : reaches) {
    lost += reach.share * reach.lost_seconds;
    recovery += reach.share * reach.recovery_seconds;
    waiting += reach.share * reach.waiting_seconds;
  }
  RunTime time{.training = training_seconds, .saves = training_seconds * save_overhead};
  if (lost >= mtbf_seconds) {
    time.lost = time.failures = std::numeric_limits<double>::infinity();
    return time;
  }
  const double computing = (time.training + time.saves) / (1.0 - lost / mtbf_seconds);
  time.failures = computing / mtbf_seconds;
  time.lost = time.failures * lost;
  time.recovery = time.failures * recovery;
  time.waiting = time.failures * waiting;
  return time;
}

RunTime unprotected_run(double training_seconds, double mtbf_seconds, std::span<const FailureReach> reaches) {
  RunTime time{.training = training_seconds, .failures = std::expm1(training_seconds / mtbf_seconds)};
  time.lost = mtbf_seconds * time.failures - training_seconds;
  for (const FailureReach& reach : reaches) {
    time.recovery += time.failures * reach.share * reach.recovery_seconds;
    time.waiting += time.failures * reach.share * reach.waiting_seconds;
  }
  return time;
}

double price_of(double seconds, double ranks, double per_rank_hour) {
  return seconds / hour_seconds * ranks * per_rank_hour;
}

std::string money_text(double rank_seconds, double per_rank_hour, std::string_view currency) {
  const double amount = price_of(rank_seconds, 1.0, per_rank_hour);
  constexpr double million = 1e6, thousand = 1e3, hundred = 100.0;
  if (!std::isfinite(amount)) return fmt::format("{}infinity", currency);
  if (amount >= thousand * million) return fmt::format("{}{:.3g} G", currency, amount / (thousand * million));
  if (amount >= million) return fmt::format("{}{:.2f} M", currency, amount / million);
  if (amount < hundred) return fmt::format("{}{:.2f}", currency, amount);
  const auto whole = static_cast<std::int64_t>(std::llround(amount));
  if (whole < 1000) return fmt::format("{}{}", currency, whole);
  return fmt::format("{}{},{:03}", currency, whole / 1000, whole % 1000);
}

}  // namespace holdfast::hazard
