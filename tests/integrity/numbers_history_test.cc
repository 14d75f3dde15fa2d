#include "runtime/integrity/numbers_history.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/integrity/verdict_fixture.h"

namespace holdfast::test {
namespace {

TEST(NumbersHistory, KeepsTheNewestOfTheWindow) {
  NumbersHistory history(8);
  EXPECT_EQ(history.size(), 0);
  for (std::uint64_t step = 1; step <= 20; ++step) {
    history.add(numbers_at(step, static_cast<double>(step), 2.0 * static_cast<double>(step)));
  }
  ASSERT_EQ(history.size(), 8);
  EXPECT_EQ(history.newest(0).step, 20u);
  EXPECT_DOUBLE_EQ(history.newest(0).loss, 20.0);
  EXPECT_DOUBLE_EQ(history.newest(0).grad_norm, 40.0);
  EXPECT_EQ(history.newest(7).step, 13u);
}

TEST(NumbersHistory, AnotherWindowKeepsWhatItHas) {
  NumbersHistory history = steady_history(100, 64);
  history.set_window(16);
  EXPECT_EQ(history.size(), 16);
  EXPECT_EQ(history.newest(15).step, 85u);
  history.set_window(128);
  EXPECT_EQ(history.size(), 16);  // what was dropped stays away
  history.add(numbers_at(101, 3.0, 1.0));
  EXPECT_EQ(history.size(), 17);
  EXPECT_EQ(history.newest(16).step, 85u);
}

TEST(NumbersHistory, FillsTheLargestWindow) {
  const NumbersHistory history = steady_history(3000, NumbersHistory::capacity);
  EXPECT_EQ(history.size(), NumbersHistory::capacity);
  EXPECT_EQ(history.newest(NumbersHistory::capacity - 1).step, 3000u - NumbersHistory::capacity + 1);
}

TEST(NumbersHistory, StepsWithoutTargetsAreLeftOut) {
  NumbersHistory history = steady_history(10);
  history.add({.step = 11, .loss = 0.0, .grad_norm = 0.0, .counted_targets = 0});
  EXPECT_EQ(history.size(), 10);
}

TEST(NumbersHistory, CountsSkippedSteps) {
  NumbersHistory history;
  EXPECT_EQ(history.skipped_since(0), 0);
  for (const std::uint64_t step : {5u, 9u, 40u}) history.skip(step);
  EXPECT_EQ(history.skipped(), (std::vector<std::uint64_t>{5, 9, 40}));
  EXPECT_EQ(history.skipped_since(5), 3);
  EXPECT_EQ(history.skipped_since(6), 2);
  EXPECT_EQ(history.skipped_since(41), 0);
}

TEST(NumbersHistory, TextKeepsEveryBit) {
  NumbersHistory history = steady_history(200);
  history.add(numbers_at(201, 0.1 + 0.2, std::numeric_limits<double>::denorm_min()));
  history.skip(202);
  history.skip(std::numeric_limits<std::uint64_t>::max());
  const std::string text = history.text();
  EXPECT_EQ(text.size(), 16u * (2 + 3 * 128 + 2));
  const auto read = NumbersHistory::from_text(text);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->text(), text);
  EXPECT_EQ(read->window_steps(), 128);
  EXPECT_EQ(read->newest(127).step, history.newest(127).step);
  EXPECT_EQ(read->skipped(), history.skipped());
  EXPECT_EQ(NumbersHistory::from_text(NumbersHistory().text())->size(), 0);
}

// The place in the ring is no part of the text.
TEST(NumbersHistory, EqualContentsHaveEqualTexts) {
  NumbersHistory shrunk = steady_history(50, 64);
  shrunk.set_window(8);
  const auto read = NumbersHistory::from_text(shrunk.text());
  ASSERT_TRUE(read.has_value());
  NumbersHistory other = *read;
  for (NumbersHistory* each : {&shrunk, &other}) each->add(numbers_at(51, 2.5, 0.5));
  EXPECT_EQ(other.text(), shrunk.text());
}

TEST(NumbersHistory, OtherTextsAreNone) {
  NumbersHistory history = steady_history(3, 8);
  history.skip(2);
  const std::string good = history.text();
  ASSERT_TRUE(NumbersHistory::from_text(good).has_value());
  for (std::size_t size = 0; size < good.size(); ++size) {
    const bool whole = size == good.size() - 16;  // without the skipped step it is one, too
    EXPECT_EQ(NumbersHistory::from_text(good.substr(0, size)).has_value(), whole) << size;
  }
  const auto with = [&](std::size_t at, std::string_view digits) {
    return std::string(good).replace(at, digits.size(), digits);
  };
  for (const std::string& bad : {
           good + "g000000000000003",          // no digit
           good + "+000000000000003",          // a sign
           good + "0000000000000002",          // skipped twice
           with(0, "0000000000000000"),        // a window of 0
           with(0, "0000000000000401"),        // a larger one than there is
           with(16, "0000000000000009"),       // more than the window holds
           with(32 + 48, "0000000000000001"),  // a step twice
           with(32 + 16, "7ff0000000000000"),  // an infinite loss
           with(32 + 32, "7ff8000000000000"),  // a norm that is no number
       }) {
    EXPECT_FALSE(NumbersHistory::from_text(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace holdfast::test
