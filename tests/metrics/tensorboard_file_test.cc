#include "runtime/metrics/tensorboard_file.h"

#include <gtest/gtest.h>

#include "runtime/run/event_log.h"

namespace holdfast::test {
namespace {

template <Event E>
Json event_line(const E& event) {
  EventLine line;
  return Json::parse(put_event(event, line).end());
}

class TensorboardRecordsTest : public testing::Test {
 protected:
  std::string step(std::uint64_t number, bool again = false) {
    StepEvent event{.time_us = 1'000'000, .step = number, .loss = 2.0};
    if (again) event.recomputed = true;
    return records_.take(event_line(event));
  }
  std::string evaluation(std::uint64_t number) {
    return records_.take(event_line(EvaluationEvent{.time_us = 1'000'000, .step = number, .loss = 3.0}));
  }
  TensorboardRecords records_;
};

// Of a file that TensorFlow 2 wrote: its first record says which version of the format it has.
TEST_F(TensorboardRecordsTest, BeginAsThoseOfTensorflow) {
  const std::string begin = tensorboard_begin(1'000'000);
  EXPECT_EQ(begin.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8)) << "26 bytes";
  EXPECT_EQ(begin.substr(12, 9), std::string("\x09\0\0\0\0\0\0\xf0\x3f", 9)) << "wall_time = 1";
  EXPECT_EQ(begin.substr(21, 4), std::string("\x10\0\x1a\x0d", 4));
  EXPECT_EQ(begin.substr(25, 13), "brain.Event:2");
}

TEST_F(TensorboardRecordsTest, StepsThatAreMadeAgainReplaceThemselves) {
  const std::string first = step(1);
  EXPECT_FALSE(first.empty());
  static_cast<void>(step(2));
  const std::string again = step(1, /*again=*/true);
  EXPECT_GT(again.size(), first.size()) << "there is a mark before it";
  EXPECT_TRUE(again.ends_with(first));
  EXPECT_EQ(step(2, /*again=*/true).size(), first.size()) << "one mark is enough";
}

TEST_F(TensorboardRecordsTest, AStepIsEvaluatedOnce) {
  for (std::uint64_t number = 1; number <= 30; ++number) {
    static_cast<void>(step(number));
    if (number % 10 == 0) {
      EXPECT_FALSE(evaluation(number).empty());
    }
  }
  EXPECT_TRUE(evaluation(10).empty()) << "the run goes on from step 10";
  static_cast<void>(step(11, /*again=*/true));
  EXPECT_FALSE(evaluation(20).empty()) << "TensorBoard has dropped what it had of it";
}

TEST_F(TensorboardRecordsTest, OtherEventsAreNoCurves) {
  EXPECT_EQ(records_.take(event_line(DrainEvent{.time_us = 1, .step = 3, .host = "a"})), "");
  EXPECT_EQ(records_.take(Json::parse_any("[1]")), "");
}

}  // namespace
}  // namespace holdfast::test
