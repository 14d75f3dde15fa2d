// Tests when what has failed may be used again.
#include "watchdog/growing_pauses.h"

#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

constexpr std::int64_t second_ns = 1'000'000'000;

TEST(GrowingPauses, DoubleUntilTheKeyIsCondemned) {
  GrowingPauses pauses(10'000);
  EXPECT_TRUE(pauses.may_use("gpu", 0));
  std::int64_t now_ns = 0;
  for (int count = 1; count < GrowingPauses::max_failures; ++count) {
    EXPECT_EQ(pauses.failed("gpu", now_ns), count);
    const std::int64_t pause_ns = (10 << count) * second_ns;
    EXPECT_FALSE(pauses.may_use("gpu", now_ns + pause_ns - 1));
    EXPECT_TRUE(pauses.may_use("gpu", now_ns + pause_ns));
    now_ns += pause_ns;
  }
  pauses.failed("gpu", now_ns);
  EXPECT_TRUE(pauses.is_condemned("gpu"));
  EXPECT_FALSE(pauses.may_use("gpu", now_ns + 100'000 * second_ns));
  EXPECT_TRUE(pauses.may_use("another", now_ns));
}

TEST(GrowingPauses, InNeedAKeyIsUsedSoonerButSixTimesAnHourAtMost) {
  GrowingPauses pauses(10'000);
  for (int i = 0; i < 5; ++i) pauses.failed("gpu", i * second_ns);
  EXPECT_FALSE(pauses.may_be_needed("gpu", 33 * second_ns));
  EXPECT_TRUE(pauses.may_be_needed("gpu", 34 * second_ns));
  pauses.failed("gpu", 35 * second_ns);
  EXPECT_FALSE(pauses.may_be_needed("gpu", 3'599 * second_ns));
  EXPECT_TRUE(pauses.may_be_needed("gpu", 3'600 * second_ns));
}

TEST(GrowingPauses, WhereWhatRunsDiesTwiceIsNotUsedForAnHourAndThenLonger) {
  GrowingPauses pauses(10'000);
  EXPECT_FALSE(pauses.died("host", 0));
  EXPECT_TRUE(pauses.may_use("host", 0)) << "once is an accident";
  std::int64_t now_ns = 20 * second_ns;
  for (const int hours : {1, 2, 4}) {
    pauses.returned("host", now_ns);
    EXPECT_TRUE(pauses.died("host", now_ns + second_ns));
    now_ns += second_ns;
    EXPECT_FALSE(pauses.may_use("host", now_ns + hours * 3'600 * second_ns - 1));
    EXPECT_TRUE(pauses.may_be_needed("host", now_ns + 30 * second_ns));
    now_ns += hours * 3'600 * second_ns;
    EXPECT_TRUE(pauses.may_use("host", now_ns));
  }
  pauses.returned("host", now_ns);
  now_ns += (GrowingPauses::default_settled_ms / 1'000 + 1) * second_ns;
  EXPECT_TRUE(pauses.died("host", now_ns));
  EXPECT_TRUE(pauses.may_use("host", now_ns + 20 * second_ns)) << "it was well for long";
  EXPECT_EQ(pauses.deaths("host"), 1);
}

TEST(GrowingPauses, APauseIsNoTimeInWhichItWasWell) {
  GrowingPauses pauses(10'000);
  pauses.died("host", 0);
  pauses.died("host", second_ns);
  pauses.died("host", 3'700 * second_ns);  // in a start that did not train
  EXPECT_EQ(pauses.deaths("host"), 3);
}

TEST(GrowingPauses, AShorterPauseDoesNotEndALongerOne) {
  GrowingPauses pauses(10'000);
  pauses.died("host", 0);
  pauses.died("host", second_ns);
  pauses.failed("host", 2 * second_ns);
  EXPECT_FALSE(pauses.may_use("host", 3'600 * second_ns));
}

TEST(GrowingPauses, WhatHasSettledBeginsAnew) {
  GrowingPauses pauses(10'000);
  pauses.failed("gpu", 0);
  pauses.failed("gpu", second_ns);
  pauses.returned("gpu", 50 * second_ns);
  EXPECT_EQ(pauses.failed("gpu", (51 + GrowingPauses::default_settled_ms / 1'000) * second_ns), 1);
}

}  // namespace
}  // namespace holdfast::test
