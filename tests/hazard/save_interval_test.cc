// The best interval against the model that it is the optimum of.
#include "runtime/hazard/save_interval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace holdfast::test {
namespace {

// Daly's model (his equation 20) of the time that a run of one second of work takes, without restarts:
// failures come at random, and undo what was done since the last save.
double expected_seconds(double interval, double cost, double mtbf) {
  return mtbf * std::expm1((interval + cost) / mtbf) / interval;
}

TEST(SaveInterval, NoOtherIntervalLosesLessTime) {
  for (const double mtbf : {60.0, 3600.0, 86400.0, 1e7}) {
    for (const double share : {1e-7, 1e-5, 1e-3, 1e-2, 1e-1, 0.5}) {
      const double cost = share * mtbf;
      const double best = best_interval_seconds(cost, mtbf);
      double least = expected_seconds(best, cost, mtbf);
      for (double other = best / 20; other < best * 20; other *= 1.01)
        least = std::min(least, expected_seconds(other, cost, mtbf));
      EXPECT_LT(expected_seconds(best, cost, mtbf), least * 1.001) << cost << " of " << mtbf;
    }
  }
}

TEST(SaveInterval, IsYoungsWhereSavesAreCheapAndNeverLongerThanTheTimeBetweenFailures) {
  EXPECT_NEAR(best_interval_seconds(1.0, 86400.0), std::sqrt(2.0 * 86400.0), 1.0);
  EXPECT_NEAR(best_interval_seconds(0.01, 1e6), std::sqrt(2.0 * 0.01 * 1e6), 0.1);
  EXPECT_DOUBLE_EQ(best_interval_seconds(300.0, 100.0), 100.0);
  EXPECT_DOUBLE_EQ(best_interval_seconds(200.0, 100.0), 100.0);
}

TEST(SaveInterval, CountsStepsAndWaitsForTheDisk) {
  EXPECT_EQ(steps_between_saves({.step_seconds = 2.5, .cost_seconds = 1.0}, 86400.0), 167);
  EXPECT_EQ(steps_between_saves({.step_seconds = 2.5, .cost_seconds = 0.0, .durable_seconds = 9.0}, 86400.0),
            4);
  EXPECT_EQ(steps_between_saves({.step_seconds = 1000.0, .cost_seconds = 1.0}, 86400.0), 1);
}

TEST(SaveInterval, SnapshotsCostAtMostAHalfPercent) {
  EXPECT_EQ(steps_between_snapshots({.step_seconds = 1.0, .cost_seconds = 0.1}, 86400.0), 20);
  EXPECT_EQ(steps_between_snapshots({.step_seconds = 1.0, .cost_seconds = 0.101}, 86400.0), 21);
  EXPECT_EQ(steps_between_snapshots({.step_seconds = 1.0, .cost_seconds = 0.004}, 86400.0), 1);
  EXPECT_EQ(steps_between_snapshots({.step_seconds = 1.0, .cost_seconds = 0.0}, 86400.0), 1);
}

// A snapshot of GPT-2 124M on two processors: 0.16 s. Failures every ten minutes are worth one every 14 s.
TEST(SaveInterval, SnapshotsComeMoreOftenWhereTheRunFailsOften) {
  const SaveTimes times{.step_seconds = 0.5, .cost_seconds = 0.16};
  EXPECT_EQ(steps_between_snapshots(times, 86400.0), 64);
  EXPECT_FALSE(snapshots_follow_failures(times.cost_seconds, 86400.0));
  EXPECT_EQ(steps_between_snapshots(times, 600.0), steps_between_saves(times, 600.0));
  EXPECT_EQ(steps_between_snapshots(times, 600.0), 28);
  EXPECT_TRUE(snapshots_follow_failures(times.cost_seconds, 600.0));
}

TEST(SaveInterval, IsCutToWhatMayBeLost) {
  EXPECT_EQ(steps_within(100, 0.0, 2.0), 100) << "no limit";
  EXPECT_EQ(steps_within(100, 60.0, 2.0), 30);
  EXPECT_EQ(steps_within(100, 61.9, 2.0), 30) << "not a step more";
  EXPECT_EQ(steps_within(10, 60.0, 2.0), 10) << "the best is shorter";
  EXPECT_EQ(steps_within(100, 1.0, 2.0), 1) << "a step at least";
}

// The disk takes no save before the one before is durable, whatever may be lost.
TEST(SaveInterval, IsNotCutBelowWhatTheDiskTakes) {
  const SaveTimes quick{.step_seconds = 1.0, .cost_seconds = 1.0, .durable_seconds = 5.0},
      slow{.step_seconds = 1.0, .cost_seconds = 1.0, .durable_seconds = 50.0};
  EXPECT_EQ(saves_within(415, 60.0, quick), 54);
  EXPECT_DOUBLE_EQ(most_lost_seconds(54.0, quick), 60.0);
  EXPECT_EQ(saves_within(415, 60.0, slow), 50);
  EXPECT_DOUBLE_EQ(most_lost_seconds(50.0, slow), 101.0);
  EXPECT_DOUBLE_EQ(most_lost_seconds(9.0, slow), 101.0) << "saves come every 50 s";
}

TEST(SaveInterval, OfACostThatIsNoNumberIsLong) {
  const double none = std::nan("");
  EXPECT_EQ(steps_between_snapshots({.step_seconds = 1.0, .cost_seconds = none}, 86400.0), 1'000'000'000'000);
  EXPECT_EQ(steps_between_saves({.step_seconds = 1.0, .cost_seconds = none}, 86400.0), 1'000'000'000'000);
}

}  // namespace
}  // namespace holdfast::test
