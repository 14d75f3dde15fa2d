// Failure arithmetic: how often a run fails, before it begins and while it goes on. Pure; times in seconds unless a name
// says otherwise.
//
//   MTBF of a run of n devices            M = m / n, where m is the MTBF of one device: failures are independent and come
//                                         at a constant rate (a Poisson process)
//   failures expected in T                T / M
//   no failure in T                       exp(-T / M)
//   a chance p, n times in a row          p^n: 0.999^1000 = 0.37
//   spares, k of n                        the least s with P(at most s of n + s are away) >= p. Each is away for the share
//                                         q = r / (m + r) of the time, r: time of a replacement; binomial(n + s, q)
//   rate after f failures in T            a prior Gamma(w, b) and a Poisson likelihood give Gamma(w + f, b + T), whose mean is
//                                         (w + f) / (b + T). w is the weight of the prior, in failures
//   one of two priors                     their shares after f failures in T are as q_i P_i(f in T), where
//                                         P(f in T) ~ Gamma(w + f) / Gamma(w) b^w / (b + T)^(w + f); the rate is the mean
//
// A. Gelman et al., Bayesian Data Analysis (3rd edition), sections 2.6 and 22.1, has the last two rows; the others are textbook.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace holdfast::hazard {

inline constexpr double hour_seconds = 3600.0, day_seconds = 86'400.0;

// MTBF of one device of a kind, as published or assumed.
struct DevicePrior {
  std::string_view kind;  // "h100", "cpu", ...
  double mtbf_hours;
  std::string_view source;  // a clause
};
std::span<const DevicePrior> device_priors();
// Returns the prior of a kind; of a kind that is not listed the one of "cuda".
const DevicePrior& device_prior(std::string_view kind);

double run_mtbf_seconds(double device_mtbf_hours, double devices);
double failures_per_day(double mtbf_seconds);
double p_no_failure(double seconds, double mtbf_seconds);
// Returns the chance that what holds with `chance` for one holds for all of `count`.
double p_all(double chance, double count);

// `needed` units must work; one that fails is back after `replacement_seconds`.
struct Pool {
  std::int64_t needed = 1;
  double unit_mtbf_seconds = 0.0, replacement_seconds = 0.0;
};
// Returns the chance that at most `spares` of needed + spares units are away.
double p_enough(const Pool& pool, std::int64_t spares);
// Returns the fewest spares with which the needed units work with a chance of at least `chance`, below 1; pool.needed where as
// many are too few.
std::int64_t spares_for(const Pool& pool, double chance);

// Failures of a run so far, and for how long it has been running on as many devices as it has.
struct FailureHistory {
  std::int64_t failures = 0;
  double running_seconds = 0.0;
};
// The same, whatever devices it had when: what fails are devices, so 4 ranks in 256 hours have told as much as 1,024 in one.
struct DeviceHistory {
  std::int64_t failures = 0;
  double device_seconds = 0.0;
  // Returns the history as one of so many devices.
  FailureHistory of(double devices) const {
    return {.failures = failures, .running_seconds = devices > 0.0 ? device_seconds / devices : 0.0};
  }
};

// RatePrior is what is believed of the MTBF of a whole run before its history is looked at. Half of the failures that it
// expects are those of the few runs that are in trouble (a bad host, a bug, preemption) and fail every quarter of an hour, so
// that a run which fails again and again is taken for one of these after two or three failures, however long its prior.
struct RatePrior {
  double mtbf_seconds = day_seconds;
  double weight = assumed_weight;  // in failures: how many it takes to outweigh the prior, but for trouble
  bool is_fixed = false;           // the user stated the MTBF of the run: no history changes it
  bool is_stated = false;          // the user stated the MTBF of a device

  static constexpr double assumed_weight = 0.25, stated_weight = 1.0;
  static constexpr double trouble_seconds =
      900.0;  // MTBF of a run in trouble; it weighs as much as a failure
};
// StatedHazard is what a config says of failures; 0: not stated.
struct StatedHazard {
  double run_mtbf_seconds = 0.0;   // of the whole run
  double device_mtbf_hours = 0.0;  // of one device
};
// Returns the prior of a run on `devices` of a kind.
RatePrior run_prior(const StatedHazard& stated, std::string_view kind, double devices);
// Returns the prior by which a run saves. What is published of devices leaves out people, preemption and bugs, so until a run
// has shown it, it is expected to fail once a day at least; what was stated is taken as it is.
RatePrior cautious(const RatePrior& prior);
// Returns the inverse of the mean of the posterior rate.
double expected_mtbf_seconds(const RatePrior& prior, const FailureHistory& history);

}  // namespace holdfast::hazard
