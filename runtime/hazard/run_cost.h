// Computes what a run costs in time and money, with its failures. Pure.
//
// T is the time that the steps take by themselves, o the overhead of saves as a share of it, M the MTBF of the run. A
// share p_i of the failures has reach i (a process, a host, all hosts) and costs l_i of work that is computed again, r_i of
// recovery and w_i of waiting for hosts, as means. Failures come while the run computes, for the time C:
//
//   C = T (1 + o) + (C / M) L      with L = sum p_i l_i, so C = T (1 + o) / (1 - L / M)
//   E = C + (C / M) (R + W)        elapsed, with R and W like L
//   ETTR = T / E                   expected training time ratio; its other parts are shares of E, too
//
// Work lost is half an interval between saves and the time until a save counts, which holds while intervals are much
// shorter than M. A run that loses more between two failures than it makes never ends.
//
//   without any saves   (M + r) (exp(T / M) - 1): W. Feller, An Introduction to Probability Theory I, XIII.7 (success runs),
//                       for a rate; each failure starts from step 0 again after r
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace holdfast::hazard {

// FailureReach is one kind of failure, by what is lost with it.
struct FailureReach {
  std::string_view name;      // "process", "host", "job"
  double share = 0.0;         // of all failures
  double lost_seconds = 0.0;  // work that is computed again, mean
  double recovery_seconds = 0.0, waiting_seconds = 0.0;
};

// Expected seconds of a run, by part. They add up to elapsed().
struct RunTime {
  double training = 0.0, saves = 0.0, lost = 0.0, recovery = 0.0, waiting = 0.0;
  double failures = 0.0;  // number
  double elapsed() const { return training + saves + lost + recovery + waiting; }
  // Returns the expected training time ratio; 0 for a run that never ends.
  double ettr() const;
};
RunTime expected_run(double training_seconds, double save_overhead, double mtbf_seconds,
                     std::span<const FailureReach> reaches);
// Returns the run without any saves, which starts from step 0 after each failure.
RunTime unprotected_run(double training_seconds, double mtbf_seconds, std::span<const FailureReach> reaches);

// Returns the price of `ranks` for so long.
double price_of(double seconds, double ranks, double per_rank_hour);
// Returns "$90,000", "$2.16 M", "EUR 0.42": the price of `rank_seconds` = seconds x ranks. `currency`: cost.currency.
std::string money_text(double rank_seconds, double per_rank_hour, std::string_view currency);

}  // namespace holdfast::hazard
