#include "runtime/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

namespace holdfast::test {
namespace {

OptimizerConfig schedule(const std::string& name) {
  OptimizerConfig config;
  config.learning_rate = 0.5;
  config.schedule = name;
  config.warmup_steps = 10;
  config.final_fraction = 0.1;
  config.decay_fraction = 0.2;
  return config;
}

constexpr std::int64_t steps = 110;

TEST(Schedule, WarmUpIsALineToThePeakForEverySchedule) {
  for (const char* name : {"constant", "linear", "cosine", "wsd", "inverse_sqrt"}) {
    for (std::int64_t step = 1; step <= 10; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate_at(schedule(name), step, steps), 0.05 * static_cast<double>(step))
          << name;
    }
  }
}

TEST(Schedule, WithoutWarmUpTheFirstStepIsAtThePeakOrJustBelow) {
  for (const char* name : {"constant", "linear", "cosine", "wsd", "inverse_sqrt"}) {
    OptimizerConfig config = schedule(name);
    config.warmup_steps = 0;
    EXPECT_LE(learning_rate_at(config, 1, steps), 0.5) << name;
    EXPECT_GT(learning_rate_at(config, 1, steps), 0.49) << name;
  }
}

TEST(Schedule, ConstantStaysAtThePeak) {
  for (const std::int64_t step : {11, 60, 110, 1000}) {
    EXPECT_DOUBLE_EQ(learning_rate_at(schedule("constant"), step, steps), 0.5);
  }
}

TEST(Schedule, LinearAndCosineEndAtTheFinalFraction) {
  for (const char* name : {"linear", "cosine"}) {
    EXPECT_DOUBLE_EQ(learning_rate_at(schedule(name), steps, steps), 0.05) << name;
    EXPECT_DOUBLE_EQ(learning_rate_at(schedule(name), steps + 50, steps), 0.05)
        << name;  // a run made longer by stopping late
    EXPECT_DOUBLE_EQ(learning_rate_at(schedule(name), 60, steps), 0.275) << name;  // half way
  }
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule("linear"), 35, steps), 0.3875);  // a quarter of the way
  EXPECT_NEAR(learning_rate_at(schedule("cosine"), 35, steps),
              0.05 + 0.45 * 0.5 * (1.0 + std::cos(std::numbers::pi / 4)), 1e-15);
}

TEST(Schedule, WsdStaysAtThePeakThenFallsInALine) {
  const OptimizerConfig config = schedule("wsd");  // decays over the last 22 steps
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 11, steps), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 88, steps), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 99, steps), 0.275);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 110, steps), 0.05);
}

// The numbers of get_inverse_sqrt_schedule of transformers.
TEST(Schedule, InverseSqrtFallsWithTheRootOfTheStep) {
  OptimizerConfig config = schedule("inverse_sqrt");
  for (const std::int64_t total : {steps, 10 * steps}) {
    EXPECT_DOUBLE_EQ(learning_rate_at(config, 40, total), 0.25);
    EXPECT_DOUBLE_EQ(learning_rate_at(config, 90, total), 0.5 / 3.0);
  }
  config.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 30'000, steps), 0.25);
}

TEST(Schedule, NeverRisesAfterWarmUp) {
  for (const char* name : {"constant", "linear", "cosine", "wsd", "inverse_sqrt"}) {
    double before = learning_rate_at(schedule(name), 10, steps);
    for (std::int64_t step = 11; step <= steps; ++step) {
      const double rate = learning_rate_at(schedule(name), step, steps);
      EXPECT_LE(rate, before) << name << " " << step;
      before = rate;
    }
  }
}

TEST(Schedule, ARunShorterThanItsWarmUpOnlyWarmsUp) {
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule("cosine"), 4, 4), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule("wsd"), 4, 4), 0.2);
}

TEST(Schedule, EachRollbackLowersTheRate) {
  EXPECT_EQ(rate_after_rollbacks(0.3, 1.0, 3), 0.3);
  EXPECT_EQ(rate_after_rollbacks(0.3, 0.5, 0), 0.3);
  EXPECT_EQ(rate_after_rollbacks(0.4, 0.5, 3), 0.05);
}

}  // namespace
}  // namespace holdfast::test
