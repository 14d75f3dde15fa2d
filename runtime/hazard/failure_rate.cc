#include "runtime/hazard/failure_rate.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace holdfast::hazard {
namespace {

// GammaPrior is a belief of a rate: as if so many failures had been seen in so many seconds.
struct GammaPrior {
  double weight = 0.0, seconds = 0.0;
  double rate_after(const FailureHistory& history) const {
    return (weight + static_cast<double>(history.failures)) / (seconds + history.running_seconds);
  }
  // Returns the logarithm of what the chance of the history is in proportion to, whatever the prior.
  double log_likelihood(const FailureHistory& history) const {
    const double after = weight + static_cast<double>(history.failures);
    return std::lgamma(after) - std::lgamma(weight) + weight * std::log(seconds) -
           after * std::log(seconds + history.running_seconds);
  }
};

// Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions of 16,384 H100 in 54 days.
constexpr double llama3_hours = 16'384.0 * 54.0 * 24.0 / 419.0;
// Meta's research clusters (arXiv 2410.21680), A100: 1.8 h at 16,384 GPUs, and 7.9 h at 1,024 as jobs really ended.
constexpr double rsc_hours = 1.8 * 16'384.0, rsc_jobs_hours = 7.9 * 1'024.0;

constexpr std::array priors = {
    DevicePrior{"cuda", llama3_hours, "Llama 3: 419 interruptions of 16,384 H100 in 54 days"},
    DevicePrior{"h100", llama3_hours, "Llama 3: 419 interruptions of 16,384 H100 in 54 days"},
    DevicePrior{"h200", llama3_hours, "as H100 (Llama 3); nothing is published of H200"},
    DevicePrior{"b200", llama3_hours, "as H100 (Llama 3); nothing is published of B200"},
    DevicePrior{"a100", rsc_hours, "Meta's research clusters: 1.8 h at 16,384 A100"},
    DevicePrior{"cpu", rsc_jobs_hours,
                "jobs in Meta's research clusters: 7.9 h at 1,024 devices; nothing is published of CPUs"},
};

}  // namespace

std::span<const DevicePrior> device_priors() {
  return priors;
}

const DevicePrior& device_prior(std::string_view kind) {
  const auto found = std::ranges::find(priors, kind, &DevicePrior::kind);
  return found == priors.end() ? priors.front() : *found;
}

double run_mtbf_seconds(double device_mtbf_hours, double devices) {
  return device_mtbf_hours * hour_seconds / std::max(devices, 1.0);
}

double failures_per_day(double mtbf_seconds) {
  return day_seconds / mtbf_seconds;
}

double p_no_failure(double seconds, double mtbf_seconds) {
  return std::exp(-seconds / mtbf_seconds);
}

double p_all(double chance, double count) {
  return std::pow(chance, count);
}

double p_enough(const Pool& pool, std::int64_t spares) {
  const auto all = static_cast<double>(pool.needed + spares);
  const double away = pool.replacement_seconds / (pool.unit_mtbf_seconds + pool.replacement_seconds);
  if (!(away < 1.0)) return 0.0;  // an MTBF of nothing, or a replacement that never comes
  if (!(away > 0.0)) return 1.0;
  // The first term is the chance that all are there; the others follow from the one before, in logarithms, because it
  // underflows where many units are away.
  const double log_there = std::log1p(-away), log_odds = std::log(away) - log_there;
  double log_term = all * log_there, sum = std::exp(log_term);
  for (std::int64_t i = 1; i <= spares; ++i) {
    const auto count = static_cast<double>(i);
    log_term += std::log((all - count + 1.0) / count) + log_odds;
    sum += std::exp(log_term);
  }
  return std::min(sum, 1.0);
}

std::int64_t spares_for(const Pool& pool, double chance) {
  // Searches up to as many spares as units: a replacement that takes longer is none.
  std::int64_t fewest = 0, most = pool.needed;
  while (fewest < most) {
    const std::int64_t middle = fewest + (most - fewest) / 2;
    if (p_enough(pool, middle) < chance) {
      fewest = middle + 1;
    } else {
      most = middle;
    }
  }
  return fewest;
}

RatePrior run_prior(const StatedHazard& stated, std::string_view kind, double devices) {
  if (stated.run_mtbf_seconds > 0.0) return {.mtbf_seconds = stated.run_mtbf_seconds, .is_fixed = true};
  const bool is_stated = stated.device_mtbf_hours > 0.0;
  const double hours = is_stated ? stated.device_mtbf_hours : device_prior(kind).mtbf_hours;
  return {.mtbf_seconds = run_mtbf_seconds(hours, devices),
          .weight = is_stated ? RatePrior::stated_weight : RatePrior::assumed_weight,
          .is_stated = is_stated};
}

RatePrior cautious(const RatePrior& prior) {
  RatePrior careful = prior;
  if (!prior.is_fixed && !prior.is_stated) careful.mtbf_seconds = std::min(prior.mtbf_seconds, day_seconds);
  return careful;
}

double expected_mtbf_seconds(const RatePrior& prior, const FailureHistory& history) {
  if (prior.is_fixed) return prior.mtbf_seconds;
  // So many runs are in trouble that half of the expected failures are theirs; all of them where that is no trouble.
  const double in_trouble = std::min(0.5, 0.5 * RatePrior::trouble_seconds / prior.mtbf_seconds);
  const double usual_rate =
      (1.0 / prior.mtbf_seconds - in_trouble / RatePrior::trouble_seconds) / (1.0 - in_trouble);
  const GammaPrior usual{.weight = prior.weight, .seconds = prior.weight / usual_rate},
      trouble{.weight = 1.0, .seconds = RatePrior::trouble_seconds};
  const double odds = in_trouble / (1.0 - in_trouble) *
                      std::exp(trouble.log_likelihood(history) - usual.log_likelihood(history));
  if (!std::isfinite(odds)) return 1.0 / trouble.rate_after(history);
  return (1.0 + odds) / (usual.rate_after(history) + odds * trouble.rate_after(history));
}

}  // namespace holdfast::hazard
