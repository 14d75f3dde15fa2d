#include "runtime/integrity/verdict.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/integrity/verdict_fixture.h"

namespace holdfast::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::string kind_of(const NumbersHistory& history, const StepNumbers& numbers,
                    const VerdictConfig& config = {}) {
  return std::string(name_of(verdict_of(history, numbers, config).kind));
}

TEST(Judge, NumbersThatAreNotFiniteAreNoticedAlways) {
  for (const char* preset : {"off", "watch", "guard"}) {
    VerdictConfig config;
    config.preset = preset;
    for (const NumbersHistory& history : {NumbersHistory(), steady_history(200)}) {
      EXPECT_EQ(kind_of(history, numbers_at(201, nan, 1.0), config), "nonfinite");
      EXPECT_EQ(kind_of(history, numbers_at(201, infinity, 1.0), config), "nonfinite");
      EXPECT_EQ(kind_of(history, numbers_at(201, 3.0, nan), config), "nonfinite");
    }
  }
  EXPECT_FALSE(verdict_of({}, numbers_at(1, nan, nan), {}).of_norm);
  EXPECT_TRUE(verdict_of({}, numbers_at(1, 3.0, infinity), {}).of_norm);
  EXPECT_EQ(verdict_of({}, numbers_at(7, 3.0, infinity), {}).step, 7u);
}

TEST(Judge, SpikesAreFarAboveTheWindow) {
  const NumbersHistory history = steady_history(200);
  EXPECT_EQ(kind_of(history, numbers_at(201, 3.1, 1.1)), "fine");
  EXPECT_EQ(kind_of(history, numbers_at(201, 3.7, 1.0)), "fine");
  EXPECT_EQ(kind_of(history, numbers_at(201, 0.1, 0.001)), "fine");  // only upward
  const Verdict loss = verdict_of(history, numbers_at(201, 4.0, 1.0), {});
  EXPECT_EQ(loss.kind, VerdictKind::spike);
  EXPECT_FALSE(loss.of_norm);
  EXPECT_DOUBLE_EQ(loss.median, 3.0);
  EXPECT_NEAR(loss.score, 1.0 / (1.4826 * 0.05 + 0.03), 1e-9);
  EXPECT_EQ(kind_of(history, numbers_at(201, 3.0, 5.0)), "fine");
  const Verdict norm = verdict_of(history, numbers_at(201, 3.0, 30.0), {});
  EXPECT_EQ(norm.kind, VerdictKind::spike);
  EXPECT_TRUE(norm.of_norm);
  EXPECT_DOUBLE_EQ(norm.median, 1.0);
  EXPECT_EQ(kind_of(history, numbers_at(201, std::numeric_limits<double>::max(), 1e300)), "exploded");
}

TEST(Judge, ThresholdsOfTheConfigWin) {
  const NumbersHistory history = steady_history(200);
  VerdictConfig config;
  config.loss_score = 20.0;
  config.norm_score = 4.0;
  EXPECT_EQ(kind_of(history, numbers_at(201, 4.0, 1.0), config), "fine");
  EXPECT_EQ(kind_of(history, numbers_at(201, 3.0, 5.0), config), "spike");
}

TEST(Judge, FewStepsGiveNoScore) {
  EXPECT_EQ(kind_of(steady_history(31), numbers_at(32, 100.0, 1e2)), "fine");
  EXPECT_EQ(kind_of(steady_history(32), numbers_at(33, 100.0, 1e2)), "spike");
  VerdictConfig small;
  small.window_steps = 8;
  small.drift_steps = 0;
  EXPECT_EQ(kind_of(steady_history(7, 8), numbers_at(8, 100.0, 1e2), small), "fine");
  EXPECT_EQ(kind_of(steady_history(8, 8), numbers_at(9, 100.0, 1e2), small), "spike");
}

// The medians are 3 and 1.
TEST(Judge, WhatIsManyTimesTheUsualHasExploded) {
  const NumbersHistory history = steady_history(128);
  EXPECT_EQ(kind_of(history, numbers_at(129, 299.0, 1.0)), "spike");
  const Verdict loss = verdict_of(history, numbers_at(129, 1e10, 1e9), {});
  EXPECT_EQ(loss.kind, VerdictKind::exploded);
  EXPECT_FALSE(loss.of_norm);
  EXPECT_DOUBLE_EQ(loss.score, 1e10 / 3.0);
  EXPECT_DOUBLE_EQ(loss.median, 3.0);
  EXPECT_EQ(kind_of(history, numbers_at(129, 3.0, 999.0)), "spike");
  const Verdict norm = verdict_of(history, numbers_at(129, 3.0, 1001.0), {});
  EXPECT_EQ(norm.kind, VerdictKind::exploded);
  EXPECT_TRUE(norm.of_norm);
  VerdictConfig config;
  config.explosion_factor = 0.0;
  EXPECT_EQ(kind_of(history, numbers_at(129, 1e10, 1e9), config), "spike");
  config = {.preset = "off"};
  EXPECT_EQ(kind_of(history, numbers_at(129, 1e10, 1e9), config), "fine");
}

TEST(Judge, ALossMayExplodeAtTheSecondStep) {
  EXPECT_EQ(kind_of({}, numbers_at(1, 1e10, 1.0)), "fine") << "nothing says what is usual";
  EXPECT_EQ(kind_of(steady_history(1), numbers_at(2, 1e10, 1.0)), "exploded");
  EXPECT_EQ(kind_of(steady_history(31), numbers_at(32, 3.0, 1e9)), "fine") << "a norm needs more steps";
}

// A model that has learnt its data by heart has losses near 0, and other data are no explosion.
TEST(Judge, ASmallLossIsNoMeasureOfAnExplosion) {
  NumbersHistory history;
  for (std::uint64_t step = 1; step <= 128; ++step) history.add(numbers_at(step, 0.01, 1.0));
  EXPECT_EQ(kind_of(history, numbers_at(129, 11.0, 1.0)), "spike");
  EXPECT_EQ(kind_of(history, numbers_at(129, 101.0, 1.0)), "exploded");
}

// Equal losses have no spread; the floor is what keeps the last bits from being spikes.
TEST(Judge, AWindowWithoutSpreadHasAFloor) {
  NumbersHistory history;
  for (std::uint64_t step = 1; step <= 128; ++step) history.add(numbers_at(step, 2.0, 1.0));
  EXPECT_EQ(kind_of(history, numbers_at(129, 2.1, 3.0)), "fine");
  EXPECT_EQ(kind_of(history, numbers_at(129, 2.2, 1.0)), "spike");
  EXPECT_EQ(kind_of(history, numbers_at(129, 2.0, 9.0)), "spike");
  NumbersHistory zeros;
  for (std::uint64_t step = 1; step <= 128; ++step) zeros.add(numbers_at(step, 0.0, 0.0));
  EXPECT_EQ(kind_of(zeros, numbers_at(129, 0.0, 0.0)), "fine");
  EXPECT_EQ(kind_of(zeros, numbers_at(129, 1.0, 1.0)), "spike");
}

TEST(Judge, ALossThatFallsQuicklyIsFine) {
  NumbersHistory history;
  for (std::uint64_t step = 1; step <= 300; ++step) {
    const double falling = 2.0 + 8.0 / (1.0 + 0.05 * static_cast<double>(step));
    const StepNumbers numbers = numbers_at(step, falling + (step % 3 == 0 ? 0.05 : 0.0), falling);
    EXPECT_EQ(kind_of(history, numbers), "fine") << step;
    history.add(numbers);
  }
}

TEST(Judge, DriftIsARiseOverManySteps) {
  NumbersHistory history = steady_history(128);
  std::vector<std::uint64_t> told;
  for (std::uint64_t step = 129; step <= 400; ++step) {
    const double rise = 0.01 * static_cast<double>(std::min<std::uint64_t>(step, 250) - 128);
    const StepNumbers numbers = numbers_at(step, 3.0 + rise, 1.0);
    const Verdict verdict = verdict_of(history, numbers, {});
    if (verdict.kind == VerdictKind::drift) {
      told.push_back(step);
      EXPECT_GT(verdict.score, 0.5);
      EXPECT_FALSE(verdict.of_norm);
    } else {
      EXPECT_EQ(verdict.kind, VerdictKind::fine) << step;
    }
    history.add(numbers);
  }
  // The window follows: a loss that stays where it is drifts no longer.
  EXPECT_EQ(told, (std::vector<std::uint64_t>{224, 256, 288}));
}

TEST(Judge, DriftCanBeOff) {
  NumbersHistory history = steady_history(128);
  for (std::uint64_t step = 129; step <= 160; ++step) history.add(numbers_at(step, 3.7, 1.0));
  const StepNumbers numbers = numbers_at(192, 3.7, 1.0);
  VerdictConfig config;
  EXPECT_EQ(kind_of(history, numbers, config), "drift");
  config.drift_rise = 0.75;
  EXPECT_EQ(kind_of(history, numbers, config), "fine");
  config = {};
  config.drift_steps = 0;
  EXPECT_EQ(kind_of(history, numbers, config), "fine");
}

TEST(Judge, ANormOfZeroIsToldOnce) {
  NumbersHistory history = steady_history(200);
  EXPECT_EQ(kind_of(history, numbers_at(201, 3.0, 0.0)), "dead");
  EXPECT_EQ(kind_of({}, numbers_at(1, 3.0, 0.0)), "dead");
  history.add(numbers_at(201, 3.0, 0.0));
  EXPECT_EQ(kind_of(history, numbers_at(202, 3.0, 0.0)), "fine");
  history.add(numbers_at(202, 3.0, 1.0));
  EXPECT_EQ(kind_of(history, numbers_at(203, 3.0, 0.0)), "dead");
}

TEST(Judge, ANormOfZeroMayBeRight) {
  const NumbersHistory history = steady_history(200);
  // Every target is predicted with certainty.
  EXPECT_EQ(kind_of(history, numbers_at(201, 0.0, 0.0)), "fine");
  EXPECT_EQ(kind_of(history, {.step = 201, .loss = 0.0, .grad_norm = 0.0, .counted_targets = 0}), "fine");
}

TEST(Judge, OffJudgesNothingElse) {
  VerdictConfig config;
  config.preset = "off";
  config.window_steps = 64;  // the history need not know
  const NumbersHistory history = steady_history(200);
  EXPECT_EQ(kind_of(history, numbers_at(201, 100.0, 1e6), config), "fine");
  EXPECT_EQ(kind_of(history, numbers_at(201, 3.0, 0.0), config), "fine");
}

TEST(JudgeDeathTest, AHistoryOfAnotherWindowIsABug) {
  VerdictConfig config;
  config.window_steps = 64;
  EXPECT_DEATH(verdict_of(steady_history(200), numbers_at(201, 3.0, 1.0), config), "window_steps");
}

TEST(Judge, ScoresAndMediansAreThoseOfTheVerdicts) {
  const NumbersHistory history = steady_history(200);
  const StepNumbers numbers = numbers_at(201, 4.0, 30.0);
  const VerdictScores scores = scores_of(history, numbers);
  EXPECT_DOUBLE_EQ(scores.loss, verdict_of(history, numbers, {}).score);
  EXPECT_NEAR(scores.norm, std::log(30.0) / (1.4826 * std::log(1.0 / 0.95) + 0.2), 0.05);
  EXPECT_DOUBLE_EQ(median_norm(history), 1.0);
  EXPECT_DOUBLE_EQ(median_norm({}), 0.0);
  EXPECT_DOUBLE_EQ(scores_of({}, numbers).norm, 0.0);
}

TEST(Judge, DescriptionsSayWhatIsWrong) {
  const NumbersHistory history = steady_history(200);
  const auto described = [&](const StepNumbers& numbers) {
    return description_of(verdict_of(history, numbers, {}), numbers, history);
  };
  EXPECT_EQ(described(numbers_at(201, 4.0, 1.0)),
            "the loss is 4, 9.6 robust deviations above its median of 3 over the last 128 steps");
  EXPECT_EQ(described(numbers_at(201, nan, 1.0)), "the loss is nan and the gradient norm 1");
  EXPECT_EQ(described(numbers_at(201, 3.0, 0.0)), "the gradient norm is 0 at a loss of 3");
  EXPECT_EQ(described(numbers_at(201, 3.0, 1.0)), "the numbers are fine");
  const Verdict drift{.kind = VerdictKind::drift, .step = 224, .score = 0.61, .median = 3.0};
  EXPECT_EQ(description_of(drift, numbers_at(224, 3.6, 1.0), history),
            "the loss has risen by 0.61 from 3, the least that it was over the last 128 steps");
}

TEST(Judge, KindsHaveNames) {
  EXPECT_EQ(name_of(VerdictKind::fine), "fine");
  EXPECT_EQ(name_of(VerdictKind::nonfinite), "nonfinite");
  EXPECT_EQ(name_of(VerdictKind::spike), "spike");
  EXPECT_EQ(name_of(VerdictKind::drift), "drift");
  EXPECT_EQ(name_of(VerdictKind::dead), "dead");
}

}  // namespace
}  // namespace holdfast::test
