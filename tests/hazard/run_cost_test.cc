// The time and price of a run against the numbers of published runs, and against runs whose failures are drawn.
#include "runtime/hazard/run_cost.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "runtime/hazard/failure_rate.h"
#include "runtime/hazard/save_interval.h"

namespace holdfast::test {
namespace {

TEST(RunCost, IsTheSumOfItsParts) {
  const std::array reaches = {
      FailureReach{.name = "process", .share = 0.75, .lost_seconds = 10.0, .recovery_seconds = 6.0},
      FailureReach{.name = "host",
                   .share = 0.25,
                   .lost_seconds = 30.0,
                   .recovery_seconds = 65.0,
                   .waiting_seconds = 100.0}};
  const RunTime time = expected_run(10 * day_seconds, 0.01, hour_seconds, reaches);
  EXPECT_DOUBLE_EQ(time.saves, 0.1 * day_seconds);
  const double computing = 10.1 * day_seconds / (1.0 - 15.0 / hour_seconds);
  EXPECT_NEAR(time.failures, computing / hour_seconds, 1e-9);
  EXPECT_NEAR(time.lost, 15.0 * time.failures, 1e-6);
  EXPECT_NEAR(time.recovery, 20.75 * time.failures, 1e-6);
  EXPECT_NEAR(time.waiting, 25.0 * time.failures, 1e-6);
  EXPECT_DOUBLE_EQ(time.ettr(), time.training / time.elapsed());
}

// Llama 3 says "more than 90 %" of 54 days with 419 interruptions. Half an hour between saves and six minutes to start again
// would be that.
TEST(RunCost, OfLlama3IsAsPublished) {
  const double mtbf = run_mtbf_seconds(device_prior("h100").mtbf_hours, 16'384);
  const FailureReach all{.name = "job", .share = 1.0, .lost_seconds = 900.0, .recovery_seconds = 374.0};
  const RunTime time = expected_run(48.0 * day_seconds, 0.01, mtbf, std::span(&all, 1));
  EXPECT_GT(time.ettr(), 0.86);
  EXPECT_LT(time.ettr(), 0.92);
  EXPECT_NEAR(time.elapsed() / day_seconds, 54.0, 2.0);
}

// 95 % of thirty days: a day and a half is lost.
TEST(RunCost, NamesWhatNinetyFivePercentLose) {
  const FailureReach all{.name = "job", .share = 1.0, .recovery_seconds = hour_seconds};
  const RunTime time = expected_run(28.5 * day_seconds, 0.0, 19 * hour_seconds, std::span(&all, 1));
  EXPECT_NEAR(time.ettr(), 0.95, 1e-12);
  EXPECT_NEAR((time.elapsed() - time.training) / day_seconds, 1.5, 1e-9);
}

TEST(RunCost, OfARunThatNeverEndsIsSaid) {
  const FailureReach all{.name = "job", .share = 1.0, .lost_seconds = 7200.0};
  const RunTime time = expected_run(day_seconds, 0.0, hour_seconds, std::span(&all, 1));
  EXPECT_TRUE(std::isinf(time.elapsed()));
  EXPECT_DOUBLE_EQ(time.ettr(), 0.0);
}

// Against runs that are drawn: they save every best interval, and lose what they made since the last save.
TEST(RunCost, IsTheMeanOfRunsThatAreDrawn) {
  constexpr double mtbf = 2 * hour_seconds, cost = 10.0, recovery = 120.0, training = 3 * day_seconds;
  const double interval = best_interval_seconds(cost, mtbf);
  double sum = 0.0;
  constexpr int runs = 400;
  for (int run = 0; run < runs; ++run) {
    std::mt19937_64 random(static_cast<std::uint64_t>(run));
    std::exponential_distribution<double> gap(1.0 / mtbf);
    double made = 0.0, left = gap(random);
    while (made < training) {
      if (left >= interval + cost) {
        left -= interval + cost;
        made += interval;
        sum += interval + cost;
      } else {
        sum += left + recovery;
        left = gap(random);
      }
    }
  }
  const FailureReach all{
      .name = "job", .share = 1.0, .lost_seconds = interval / 2 + cost, .recovery_seconds = recovery};
  const RunTime expected = expected_run(training, cost / interval, mtbf, std::span(&all, 1));
  EXPECT_NEAR(expected.elapsed() / (sum / runs), 1.0, 0.01);
}

TEST(RunCost, WithoutSavesStartsAgainEachTime) {
  double sum = 0.0;
  constexpr int runs = 20'000;
  std::mt19937_64 random(5);
  std::exponential_distribution<double> gap(1.0);
  for (int run = 0; run < runs; ++run) {
    double left = gap(random);
    while (left < 2.0) {
      sum += left + 0.25;
      left = gap(random);
    }
    sum += 2.0;
  }
  const FailureReach all{
      .name = "job", .share = 1.0, .lost_seconds = 1.0, .recovery_seconds = 0.2, .waiting_seconds = 0.05};
  const RunTime expected = unprotected_run(2.0, 1.0, std::span(&all, 1));
  EXPECT_NEAR(expected.elapsed() / (sum / runs), 1.0, 0.03);
  EXPECT_DOUBLE_EQ(expected.training, 2.0);
  EXPECT_DOUBLE_EQ(expected.recovery, 4.0 * expected.waiting);
}

TEST(Money, IsThatOfTheExamples) {
  EXPECT_DOUBLE_EQ(price_of(30 * day_seconds, 1000, 3.0), 2.16e6) << "1,000 GPUs, $3 an hour, 30 days";
  EXPECT_EQ(money_text(30 * day_seconds * 1000, 3.0, "$"), "$2.16 M");
  EXPECT_EQ(money_text(30 * hour_seconds * 1000, 3.0, "$"), "$90,000") << "30 hours of 1,000 GPUs";
  EXPECT_EQ(money_text(1.5 * day_seconds * 1000, 3.0, "$"), "$108,000") << "5 % of 30 days";
  EXPECT_EQ(money_text(504.0, 3.0, "EUR "), "EUR 0.42");
  EXPECT_EQ(money_text(hour_seconds * 250, 2.0, "$"), "$500");
  EXPECT_EQ(money_text(0.0, 3.0, "$"), "$0.00");
}

}  // namespace
}  // namespace holdfast::test
