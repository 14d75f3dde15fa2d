#include "runtime/health/straggler_ladder.h"

#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

// A rank that has been slow from step 1001 to `last` by this factor, in steps of 10 s without it.
StragglerVerdict slow_by(double factor, std::uint64_t last) {
  const auto steps = static_cast<double>(last - 1000);
  return {.rank = 3,
          .factor = factor,
          .since_step = 1001,
          .last_step = last,
          .lost_seconds = steps * 10.0 * (factor - 1.0),
          .seconds = steps * 10.0 * factor};
}

// 64 lanes on eight copies of four ranks; a start takes a minute.
RunOutlook outlook() {
  return {.steps = 100'000, .restart_seconds = 60.0, .lanes = 64, .copies = 8, .ranks_per_copy = 4};
}

TEST(StragglerLadder, AHostIsLeftWhenItHasCostWhatAStartCosts) {
  EXPECT_FALSE(ranks_worth_leaving(slow_by(1.5, 1011), outlook()).has_value()) << "55 s lost";
  EXPECT_TRUE(ranks_worth_leaving(slow_by(1.5, 1012), outlook()).has_value()) << "60 s lost";
}

TEST(StragglerLadder, FewerRanksMustBeFasterThanTheSlowOne) {
  // With seven copies each step has ten waves of lanes instead of eight: 1.25 times the time.
  EXPECT_EQ(ranks_worth_leaving(slow_by(1.2, 2000), outlook()), 32)
      << "only where all seats are filled again";
  EXPECT_EQ(ranks_worth_leaving(slow_by(1.3, 2000), outlook()), 32) << "1.25 is within the error of 1.3";
  // Six copies have 11 waves, five 13, four 16: 1.375, 1.625 and 2 times the time.
  EXPECT_EQ(ranks_worth_leaving(slow_by(1.5, 2000), outlook()), 24);
  EXPECT_EQ(ranks_worth_leaving(slow_by(2.0, 2000), outlook()), 20);
  EXPECT_EQ(ranks_worth_leaving(slow_by(4.0, 2000), outlook()), 12);
}

TEST(StragglerLadder, NobodyLeavesForAFewStepsOrPercents) {
  RunOutlook run = outlook();
  EXPECT_FALSE(ranks_worth_leaving(slow_by(1.04, 90'000), run).has_value());
  // What is left must win twice what the start costs: 120 s are 24 steps.
  run.steps = 2023;
  EXPECT_FALSE(ranks_worth_leaving(slow_by(1.5, 2000), run).has_value());
  run.steps = 2024;
  EXPECT_EQ(ranks_worth_leaving(slow_by(1.5, 2000), run), 32);
  run.steps = 2000;
  EXPECT_FALSE(ranks_worth_leaving(slow_by(1.5, 2000), run).has_value());
}

TEST(StragglerLadder, ARankThatHasRecoveredIsKept) {
  StragglerVerdict verdict = slow_by(4.0, 2000);
  verdict.is_over = true;
  EXPECT_FALSE(ranks_worth_leaving(verdict, outlook()).has_value());
}

TEST(StragglerLadder, WithOneCopyAllItsRanksMustFindAPlace) {
  RunOutlook run = outlook();
  run.copies = 1;
  run.ranks_per_copy = 8;
  EXPECT_EQ(ranks_worth_leaving(slow_by(1.5, 2000), run), 8);
}

}  // namespace
}  // namespace holdfast::test
