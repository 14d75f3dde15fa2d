// Failure arithmetic against what was published, against counting, and against failures that are drawn.
#include "runtime/hazard/failure_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "runtime/hazard/save_interval.h"

namespace holdfast::test {
namespace {

TEST(FailureRate, IsThatOfThePublishedRuns) {
  // Llama 3: 16,384 H100, 54 days, 419 interruptions, one every 3.1 hours.
  const double llama3 = run_mtbf_seconds(device_prior("h100").mtbf_hours, 16'384);
  EXPECT_NEAR(llama3 / hour_seconds, 3.1, 0.05);
  EXPECT_NEAR(54.0 * failures_per_day(llama3), 419.0, 0.5);
  // A GPU with 50,000 hours between failures: 1,000 of them have two days.
  EXPECT_NEAR(run_mtbf_seconds(50'000, 1'000) / day_seconds, 2.08, 0.01);
  // Meta's research clusters: 1.8 h at 16,384 A100, 14 minutes at 131,072.
  EXPECT_NEAR(run_mtbf_seconds(device_prior("a100").mtbf_hours, 131'072) / 60.0, 14.0, 0.6);
  // 1,024 nodes fail once in eight hours.
  EXPECT_NEAR(run_mtbf_seconds(device_prior("cpu").mtbf_hours, 1'024) / hour_seconds, 7.9, 0.01);
  EXPECT_EQ(device_prior("h300").kind, "cuda") << "of a kind that nobody knows";
}

TEST(FailureRate, TellsTheChanceOfARunWithoutAny) {
  EXPECT_NEAR(p_all(0.999, 1000), 0.37, 0.005) << "0.999^1000";
  EXPECT_NEAR(p_no_failure(day_seconds, day_seconds), std::exp(-1.0), 1e-12);
  // 30 days on 1,000 GPUs: never without a failure.
  EXPECT_LT(p_no_failure(30 * day_seconds, run_mtbf_seconds(50'000, 1'000)), 1e-6);
}

// Counts the ways in which at most `spares` of all units are away.
double counted(int all, int spares, double away) {
  double sum = 0.0;
  for (int mask = 0; mask < (1 << all); ++mask) {
    const int gone = __builtin_popcount(static_cast<unsigned>(mask));
    if (gone <= spares) sum += std::pow(away, gone) * std::pow(1.0 - away, all - gone);
  }
  return sum;
}

TEST(Spares, AreAsManyAsCountingSays) {
  const Pool pool{.needed = 8, .unit_mtbf_seconds = 900.0, .replacement_seconds = 100.0};
  for (int spares = 0; spares <= 4; ++spares)
    EXPECT_NEAR(p_enough(pool, spares), counted(8 + spares, spares, 0.1), 1e-12) << spares;
  const std::int64_t s95 = spares_for(pool, 0.95), s99 = spares_for(pool, 0.99);
  EXPECT_EQ(s95, 3);
  EXPECT_EQ(s99, 4);
  EXPECT_GE(p_enough(pool, s95), 0.95);
  EXPECT_LT(p_enough(pool, s95 - 1), 0.95);
}

// With many units it is Poisson: 16,384 GPUs of 50,677 h, a day to replace: 7.76 are away on the average.
TEST(Spares, OfManyUnitsArePoissons) {
  const Pool pool{.needed = 16'384,
                  .unit_mtbf_seconds = device_prior("h100").mtbf_hours * hour_seconds,
                  .replacement_seconds = day_seconds};
  const double mean = 16'384.0 * 24.0 / device_prior("h100").mtbf_hours;
  double term = std::exp(-mean), sum = term;
  std::int64_t poisson = 0;
  while (sum < 0.99) {
    term *= mean / static_cast<double>(++poisson);
    sum += term;
  }
  EXPECT_EQ(spares_for(pool, 0.99), poisson);
  EXPECT_EQ(spares_for({.needed = 4, .unit_mtbf_seconds = 1e9, .replacement_seconds = 60.0}, 0.99), 0);
  EXPECT_EQ(spares_for({.needed = 4, .unit_mtbf_seconds = 1.0, .replacement_seconds = 1e9}, 0.99), 4)
      << "no number of spares helps";
}

// One by one it would be two thousand million terms.
TEST(Spares, OfAHugePoolAreCountedAtOnce) {
  constexpr std::int64_t needed = 65'536;
  EXPECT_EQ(
      spares_for({.needed = needed, .unit_mtbf_seconds = hour_seconds, .replacement_seconds = day_seconds},
                 0.99),
      needed);
  const Pool pool{
      .needed = needed, .unit_mtbf_seconds = 10 * day_seconds, .replacement_seconds = 4 * day_seconds};
  const std::int64_t spares = spares_for(pool, 0.99);
  EXPECT_NEAR(static_cast<double>(spares), 0.4 * needed, 1000.0);
  EXPECT_GE(p_enough(pool, spares), 0.99);
  EXPECT_LT(p_enough(pool, spares - 1), 0.99);
}

TEST(Spares, ThatAreAlwaysAwayAreNeverEnough) {
  for (const Pool& pool : {Pool{.needed = 1, .unit_mtbf_seconds = 1e-17, .replacement_seconds = day_seconds},
                           Pool{.needed = 1, .unit_mtbf_seconds = day_seconds, .replacement_seconds = 1e300}})
    EXPECT_DOUBLE_EQ(p_enough(pool, 1), 0.0);
}

TEST(RatePrior, OutweighsNothingForLong) {
  const RatePrior assumed = cautious(run_prior({}, "cpu", 4));
  EXPECT_DOUBLE_EQ(expected_mtbf_seconds(assumed, {}), day_seconds) << "a day is assumed of a small run";
  EXPECT_GT(expected_mtbf_seconds(assumed, {.failures = 0, .running_seconds = day_seconds}), 4 * day_seconds);
  EXPECT_GT(expected_mtbf_seconds(assumed, {.failures = 1, .running_seconds = hour_seconds}),
            4 * hour_seconds)
      << "one says little";
  EXPECT_NEAR(expected_mtbf_seconds(assumed, {.failures = 100, .running_seconds = 360'000.0}), hour_seconds,
              300.0);
}

// A run that is started again and again is known as such after its second failure, whatever is assumed or stated of it.
TEST(RatePrior, KnowsARunThatIsInTrouble) {
  for (const StatedHazard& stated : {StatedHazard{}, StatedHazard{.device_mtbf_hours = 50'000}}) {
    const RatePrior prior = cautious(run_prior(stated, "cuda", 8));
    for (const std::int64_t failures : {2, 3, 6, 100}) {
      const FailureHistory history{.failures = failures,
                                   .running_seconds = 600.0 * static_cast<double>(failures)};
      EXPECT_NEAR(expected_mtbf_seconds(prior, history), 600.0, 300.0) << failures;
    }
    EXPECT_GT(expected_mtbf_seconds(prior, {.failures = 2, .running_seconds = 2 * day_seconds}),
              0.7 * day_seconds)
        << "two in two days are no trouble";
  }
}

TEST(RatePrior, OfAHistoryWithoutAnEndIsANumber) {
  const RatePrior prior = cautious(run_prior({}, "cuda", 8));
  for (const FailureHistory& history : {FailureHistory{.failures = 1'000'000, .running_seconds = 1e4},
                                        FailureHistory{.running_seconds = 1e12},
                                        FailureHistory{.failures = 1'000'000, .running_seconds = 1e12}}) {
    const double mtbf = expected_mtbf_seconds(prior, history);
    EXPECT_TRUE(std::isfinite(mtbf) && mtbf > 0.0) << history.failures << " in " << history.running_seconds;
  }
  EXPECT_GT(expected_mtbf_seconds({.mtbf_seconds = 60.0}, {}), 59.0) << "a prior that is trouble by itself";
  EXPECT_LT(expected_mtbf_seconds({.mtbf_seconds = 60.0}, {}), 61.0);
}

TEST(RatePrior, IsScaledByDevicesAndYieldsToWhatIsStated) {
  EXPECT_NEAR(cautious(run_prior({}, "cuda", 16'384)).mtbf_seconds / hour_seconds, 3.1, 0.05)
      << "a large run fails more often than once a day";
  const RatePrior stated = cautious(run_prior({.device_mtbf_hours = 50'000}, "cuda", 8));
  EXPECT_DOUBLE_EQ(stated.mtbf_seconds, 6'250 * hour_seconds);
  EXPECT_TRUE(stated.is_stated);
  EXPECT_GT(stated.weight, run_prior({}, "cuda", 8).weight);
  const RatePrior fixed = run_prior({.run_mtbf_seconds = 600.0}, "cuda", 8);
  EXPECT_DOUBLE_EQ(expected_mtbf_seconds(fixed, {.failures = 0, .running_seconds = 1e9}), 600.0)
      << "no history changes it";
}

// Returns the time that a run of `days` loses to saves and to failures, which come at the given times; `adapts`: its
// rate follows from its failures so far.
double lost_seconds(const std::vector<double>& failures, double days, const RatePrior& prior, bool adapts) {
  constexpr double cost = 20.0;
  double now = 0.0, saved = 0.0, lost = 0.0;
  FailureHistory history;
  std::size_t next = 0;
  while (now < days * day_seconds) {
    history.running_seconds = now;
    const double mtbf = adapts ? expected_mtbf_seconds(prior, history) : prior.mtbf_seconds;
    const double due = saved + best_interval_seconds(cost, mtbf);
    if (next < failures.size() && failures[next] <= due + cost) {
      now = failures[next++];
      lost += now - saved;  // a save that was under way is lost, too
      ++history.failures;
    } else {
      now = due + cost;
      lost += cost;
    }
    saved = now;
  }
  return lost;
}

// The same failures, with a prior that is wrong by a factor of 30 both ways: what the run learns is worth more than what it
// costs to learn it. With a right prior it costs next to nothing.
TEST(RatePrior, LearnsWhatAFixedOnePaysFor) {
  constexpr double mtbf = 4 * hour_seconds, days = 10.0;
  for (const double wrong : {1.0 / 30.0, 1.0, 30.0}) {
    int better = 0;
    double fixed_sum = 0.0, adaptive_sum = 0.0;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      std::mt19937_64 random(seed);
      std::exponential_distribution<double> gap(1.0 / mtbf);
      std::vector<double> failures;
      for (double at = gap(random); at < days * day_seconds; at += gap(random)) failures.push_back(at);
      const RatePrior prior{.mtbf_seconds = mtbf * wrong};
      const double fixed = lost_seconds(failures, days, prior, false),
                   adaptive = lost_seconds(failures, days, prior, true);
      fixed_sum += fixed;
      adaptive_sum += adaptive;
      better += adaptive < fixed ? 1 : 0;
    }
    SCOPED_TRACE(wrong);
    RecordProperty("adaptive_share", std::to_string(adaptive_sum / fixed_sum));
    if (wrong > 0.5 && wrong < 2.0) {
      EXPECT_LT(adaptive_sum, 1.03 * fixed_sum);
    } else {
      EXPECT_LT(adaptive_sum, 0.7 * fixed_sum);
      EXPECT_GE(better, 195) << "of 200";
    }
  }
}

}  // namespace
}  // namespace holdfast::test
