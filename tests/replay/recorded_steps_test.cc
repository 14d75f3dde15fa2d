#include "runtime/replay/recorded_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/run/event_reading.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

std::string start_line(std::string_view run, std::uint64_t generation, std::uint64_t resumed_from) {
  return fmt::format(
      "{{\"event\":\"start\",\"time_us\":1,\"run\":\"{}\",\"generation\":{},\"resumed_from_step\":{}}}\n",
      run, generation, resumed_from == 0 ? "null" : std::to_string(resumed_from));
}

std::string step_line(std::uint64_t step, std::string_view loss) {
  return fmt::format(
      "{{\"event\":\"step\",\"time_us\":1,\"step\":{},\"loss\":{},\"grad_norm\":2.5,\"learning_rate\":0.1,"
      "\"data_digest\":\"000000000000000000000000000000{:02x}\",\"step_duration_ms\":4.0}}\n",
      step, loss, step);
}

class RecordedStepsTest : public testing::Test {
 protected:
  RecordedSteps read(const std::string& text, std::uint64_t first, std::uint64_t last) {
    EXPECT_TRUE(posix_env().replace_text(paths_.events(), text).ok());
    return read_recorded_steps(posix_env(), paths_, first, last).value();
  }
  static std::vector<std::uint64_t> steps_of(const RecordedSteps& recorded) {
    std::vector<std::uint64_t> steps;
    for (const auto& each : recorded.steps) steps.push_back(each.first);
    return steps;
  }

  TemporaryDirectory directory_;
  RunPaths paths_{directory_.path()};
};

TEST_F(RecordedStepsTest, TheLastLineOfAStepCounts) {
  const RecordedSteps recorded = read(start_line("a", 0, 0) + step_line(1, "1.5") + step_line(2, "1.25") +
                                          start_line("a", 0, 1) + step_line(2, "1.125") + "{\"event\":\"st",
                                      1, 2);
  EXPECT_EQ(recorded.newest, 2U);
  ASSERT_THAT(steps_of(recorded), ElementsAre(1, 2));
  EXPECT_EQ(recorded.steps.at(2).numbers.loss, 1.125);
  EXPECT_EQ(recorded.steps.at(2).numbers.grad_norm, 2.5);
  EXPECT_EQ(recorded.steps.at(2).numbers.learning_rate, 0.1);
  EXPECT_EQ(recorded.steps.at(2).numbers.data, (Digest{.high = 0, .low = 2}));
  EXPECT_EQ(recorded.steps.at(2).duration_ms, 4.0);
  EXPECT_THAT(recorded.warning, IsEmpty());
}

TEST_F(RecordedStepsTest, OnlyTheWantedRange) {
  std::string text;
  for (std::uint64_t step = 1; step <= 9; ++step) text += step_line(step, "1.0");
  const RecordedSteps recorded = read(text, 4, 6);
  EXPECT_EQ(recorded.newest, 9U);
  EXPECT_THAT(steps_of(recorded), ElementsAre(4, 5, 6));
}

TEST_F(RecordedStepsTest, AGenerationLeavesTheStepsBeyondItsBegin) {
  const std::string before =
      start_line("a", 0, 0) + step_line(1, "1.0") + step_line(2, "1.0") + step_line(3, "1.0");
  const RecordedSteps begun = read(before + start_line("a", 1, 1), 1, 9);
  EXPECT_EQ(begun.newest, 1U);
  EXPECT_THAT(steps_of(begun), ElementsAre(1));
  const RecordedSteps made = read(before + start_line("a", 1, 1) + step_line(2, "3.0"), 1, 9);
  EXPECT_EQ(made.newest, 2U);
  EXPECT_EQ(made.steps.at(2).numbers.loss, 3.0);
  // Another run in the same directory.
  EXPECT_EQ(read(before + start_line("b", 0, 0), 1, 9).newest, 0U);
}

TEST_F(RecordedStepsTest, SaysThatAPartIsMissing) {
  ASSERT_TRUE(posix_env().replace_text(event_part(paths_.events(), 2), step_line(4, "1.0")).ok());
  const RecordedSteps recorded = read(step_line(5, "1.0"), 1, 9);
  EXPECT_THAT(steps_of(recorded), ElementsAre(4, 5));
  EXPECT_THAT(recorded.warning, HasSubstr("is missing"));
}

TEST_F(RecordedStepsTest, WithoutALogThereIsNoRun) {
  const Result<RecordedSteps> recorded = read_recorded_steps(posix_env(), paths_, 1, 1);
  ASSERT_FALSE(recorded.ok());
  EXPECT_EQ(recorded.error().code, ExitCode::config);
}

TEST_F(RecordedStepsTest, NullIsNotFinite) {
  const RecordedSteps recorded = read(step_line(1, "null"), 1, 1);
  const RecordedNumbers& there = recorded.steps.at(1).numbers;
  EXPECT_TRUE(std::isnan(there.loss));
  RecordedNumbers here = there;
  here.loss = std::numeric_limits<double>::infinity();
  EXPECT_THAT(differing_numbers(there, here), IsEmpty());
  here.loss = 1.0;
  EXPECT_THAT(differing_numbers(there, here), ElementsAre("loss"));
}

TEST(DifferingNumbers, ComparesBits) {
  const RecordedNumbers one{
      .loss = 1.0, .grad_norm = 0.0, .learning_rate = 0.5, .data = {.high = 1, .low = 2}};
  EXPECT_THAT(differing_numbers(one, one), IsEmpty());
  RecordedNumbers other = one;
  other.loss = std::nextafter(1.0, 2.0);
  other.grad_norm = -0.0;
  other.learning_rate = none;
  other.data.low = 3;
  EXPECT_THAT(differing_numbers(one, other), ElementsAre("loss", "grad_norm", "learning_rate", "data"));
}

}  // namespace
}  // namespace holdfast::test
