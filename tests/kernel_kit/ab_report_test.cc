// The verdict of an A/B, from made-up steps.
#include "tools/kernel_kit/ab_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace holdfast::test {
namespace {

namespace kit = bench::kernel_kit;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t usual_ns = 10'000'000;

// Returns steps of which B takes `ratio` of A's time, with the noise of a machine that has other work at times.
kit::AbReport report_of(int steps, double ratio, double noise) {
  std::mt19937_64 random(static_cast<std::uint64_t>(steps));
  std::normal_distribution<double> jitter(1.0, noise);
  kit::AbReport report{.device = "cpu", .from = "the initial weights"};
  for (int i = 0; i < steps; ++i) {
    const auto step = static_cast<std::uint64_t>(i + 1);
    kit::AbStep each{.step = step,
                     .a = {.loss = 4.0 - 0.01 * i, .grad_norm = 1.0, .duration_ns = usual_ns},
                     .is_timed = i >= 5};
    each.b = each.a;
    each.a.duration_ns = std::llround(usual_ns * jitter(random));
    each.b.duration_ns = std::llround(ratio * usual_ns * jitter(random));
    // Something else had the processor, at times for one of them.
    if (noise > 0.0 && random() % 17 == 0) (random() % 2 == 0 ? each.a : each.b).duration_ns *= 8;
    report.steps.push_back(each);
  }
  return report;
}

TEST(AbTimes, TellASmallDifferenceWithinTheNoise) {
  const kit::AbTimes faster = kit::times_of(report_of(405, 0.97, 0.02));
  EXPECT_EQ(faster.pairs, 200);
  EXPECT_NEAR(faster.ratio, 0.97, 0.005);
  EXPECT_TRUE(faster.is_faster());
  EXPECT_LE(faster.low, faster.ratio);
  EXPECT_GE(faster.high, faster.ratio);
  const kit::AbTimes slower = kit::times_of(report_of(405, 1.05, 0.02));
  EXPECT_TRUE(slower.is_slower());
}

TEST(AbTimes, TellNoDifferenceWhereThereIsNone) {
  // With 95 %, so of 40 such reports a few may say otherwise.
  int told = 0;
  for (int i = 0; i < 40; ++i) {
    const kit::AbTimes same = kit::times_of(report_of(105 + 2 * i, 1.0, 0.05));
    told += same.is_faster() || same.is_slower() ? 1 : 0;
  }
  EXPECT_LE(told, 5);
}

TEST(AbTimes, OfTooFewStepsHaveNoInterval) {
  EXPECT_EQ(kit::times_of(report_of(6, 0.5, 0.0)).pairs, 0) << "one timed step is no pair";
  const kit::AbTimes few = kit::times_of(report_of(15, 0.5, 0.0));
  EXPECT_EQ(few.pairs, 5);
  EXPECT_FALSE(few.is_faster()) << "all five are below one, by chance in 1 of 16 cases";
  EXPECT_TRUE(kit::times_of(report_of(17, 0.5, 0.0)).is_faster()) << "all six, in 1 of 32";
  EXPECT_FALSE(kit::AbReport{.steps = report_of(15, 0.5, 0.0).steps}.json().contains("ratio_95"));
}

// 0.5^n is no number of a computer's for so many.
TEST(AbTimes, OfVeryManyStepsHaveAnIntervalToo) {
  const kit::AbTimes many = kit::times_of(report_of(4005, 1.0, 0.05));
  EXPECT_EQ(many.pairs, 2000);
  EXPECT_GT(many.high - many.low, 0.002);
  EXPECT_LT(many.high - many.low, 0.01);
  EXPECT_LE(many.low, many.ratio);
  EXPECT_GE(many.high, many.ratio);
}

TEST(AbLosses, OfTheSameBitsHaveNoDifference) {
  const kit::AbReport report = report_of(105, 0.9, 0.0);
  const kit::AbLosses losses = kit::losses_of(report);
  EXPECT_EQ(losses.first_difference, 0u);
  EXPECT_EQ(losses.largest, 0.0);
  EXPECT_THAT(kit::verdict_of(report), HasSubstr("computes the same bits as A, and takes 10.00 % less time"));
  EXPECT_TRUE(report.json().at("same_bits").get<bool>());
}

// The sign of a zero is a bit, and a norm that differs is a difference though the loss is the same.
TEST(AbLosses, CompareBits) {
  kit::AbReport report = report_of(10, 1.0, 0.0);
  report.steps[6].b.grad_norm = std::nextafter(1.0, 2.0);
  EXPECT_EQ(kit::losses_of(report).first_difference, 7u);
  report = report_of(10, 1.0, 0.0);
  report.steps[3].a.loss = 0.0;
  report.steps[3].b.loss = -0.0;
  EXPECT_EQ(kit::losses_of(report).first_difference, 4u);
}

// What the last update left shows in no loss, and a result may differ that none of them shows.
TEST(AbLosses, AreNotAllThatIsCompared) {
  kit::AbReport report = report_of(10, 1.0, 0.0);
  EXPECT_TRUE(kit::has_same_bits(report));
  report.has_same_state = false;
  EXPECT_FALSE(kit::has_same_bits(report));
  EXPECT_THAT(kit::text_of(report), HasSubstr("others in the state after the last step alone"));
  report = report_of(10, 1.0, 0.0);
  report.origin = kit::AbOrigin{.step = 2, .op = "add", .where = "add in layers.0.attention"};
  EXPECT_EQ(kit::losses_of(report).first_difference, 2u);
  EXPECT_THAT(kit::verdict_of(report), HasSubstr("other bits"));
}

TEST(AbVerdict, MeasuresALossByWhatOtherLastBitsMakeOfIt) {
  const auto verdict = [](double difference, double noise) {
    kit::AbReport report = report_of(105, 1.0, 0.0);
    for (kit::AbStep& step : report.steps) {
      step.b.loss += difference;
      step.noise_loss = step.a.loss + noise;
    }
    return kit::verdict_of(report);
  };
  EXPECT_THAT(verdict(1e-5, -1e-5), HasSubstr("differs from A's as roundings make it (1 times"));
  EXPECT_THAT(verdict(1e-3, 1e-5), HasSubstr("differs from A's more than by roundings (1e+02 times"));
  EXPECT_THAT(verdict(1e-3, 0.0), HasSubstr("too few steps"));
  kit::AbReport without = report_of(105, 1.0, 0.0);
  for (kit::AbStep& step : without.steps) step.b.loss += 1e-3;
  EXPECT_THAT(kit::verdict_of(without), HasSubstr("--noise tells"));
}

TEST(AbPage, ShowsThatASideEndedAndEscapesNames) {
  kit::AbReport report = report_of(8, 1.0, 0.0);
  report.kernels = {"rmsnorm_forward: A avx512, B <mine>"};
  report.ended = "B is not finite in step 8";
  report.steps.back().b.loss = std::nan("");
  const std::string page = kit::page_of(report);
  EXPECT_THAT(page, HasSubstr("B is not finite in step 8"));
  EXPECT_THAT(page, HasSubstr("&lt;mine&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("Lnan"))) << "no point of a curve";
  EXPECT_THAT(kit::text_of(report), HasSubstr("verdict  B is not finite in step 8"));
}

}  // namespace
}  // namespace holdfast::test
