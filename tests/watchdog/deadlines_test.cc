#include "watchdog/deadlines.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

constexpr DeadlineLimits limits = {.factor = 3.0, .floor_ns = 1'000, .ceiling_ns = 1'000'000};

void take(Deadlines& deadlines, Phase phase, std::int64_t duration_ns, int times) {
  for (int each = 0; each < times; ++each) deadlines.took(phase, duration_ns);
}

TEST(Deadlines, ArePatientUntilThePhaseIsKnown) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 4);
  EXPECT_EQ(deadlines.of(Phase::step), 1'000'000);
  EXPECT_EQ(deadlines.usual(Phase::step), 0);
  take(deadlines, Phase::step, 2'000, 1);
  EXPECT_EQ(deadlines.of(Phase::step), 6'000);
  EXPECT_EQ(deadlines.usual(Phase::step), 2'000);
}

TEST(Deadlines, StayBetweenFloorAndCeiling) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 10, 5);
  EXPECT_EQ(deadlines.of(Phase::step), 1'000);
  take(deadlines, Phase::save, 900'000, 5);
  EXPECT_EQ(deadlines.of(Phase::save), 1'000'000);
  EXPECT_EQ(Deadlines({.factor = 2, .floor_ns = 50, .ceiling_ns = 10}).of(Phase::load), 50);
}

TEST(Deadlines, KeepPhasesApart) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 9);
  take(deadlines, Phase::evaluation, 5'000, 9);
  EXPECT_EQ(deadlines.of(Phase::step), 6'000);
  EXPECT_EQ(deadlines.of(Phase::evaluation), 15'000);
  EXPECT_EQ(deadlines.of(Phase::load), 1'000'000);
}

TEST(Deadlines, OneThatTookLongMovesNothing) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 9);
  take(deadlines, Phase::step, 400'000, 4);
  EXPECT_EQ(deadlines.of(Phase::step), 6'000);
}

TEST(Deadlines, FollowARunWhoseStepsAreOthersNow) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 500);
  take(deadlines, Phase::step, 20'000, 31);
  EXPECT_EQ(deadlines.of(Phase::step), 6'000);
  take(deadlines, Phase::step, 20'000, 1);
  EXPECT_EQ(deadlines.of(Phase::step), 60'000);
}

TEST(Deadlines, OfTwoRunsTenTimesApartAreTenTimesApart) {
  Deadlines fast(limits), slow(limits);
  for (int step = 0; step < 100; ++step) {
    const std::int64_t duration_ns = 1'000 + 37 * (step % 11);
    fast.took(Phase::step, duration_ns);
    slow.took(Phase::step, 10 * duration_ns);
  }
  EXPECT_EQ(10 * fast.of(Phase::step), slow.of(Phase::step));
}

TEST(Deadlines, WithMoreWorkEachWhatWasLearnedCountsAsMuchLonger) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 10);
  deadlines.rescale(1.5);
  EXPECT_EQ(deadlines.of(Phase::step), 9'000);
  take(deadlines, Phase::step, 2'500, 11);
  EXPECT_EQ(deadlines.of(Phase::step), 7'500) << "what is learned then is as it is";
  EXPECT_EQ(deadlines.of(Phase::load), 1'000'000);
}

TEST(Deadlines, WhatOthersShowCountsForTheFirstTimesOfWorkThatAllDo) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 4);
  EXPECT_EQ(deadlines.alone(Phase::step), 6'000);
  EXPECT_EQ(deadlines.alone(Phase::evaluation), 6'000);
  take(deadlines, Phase::step, 2'000, 1);
  EXPECT_EQ(deadlines.alone(Phase::step), 0) << "it has a deadline now";
  for (const Phase phase :
       {Phase::start_up, Phase::load, Phase::save, Phase::recovery, Phase::spare, Phase::end})
    EXPECT_EQ(deadlines.alone(phase), 0) << name_of(phase);
  EXPECT_EQ(Deadlines({.factor = 2, .floor_ns = 50, .ceiling_ns = 100}).alone(Phase::step), 100);
}

TEST(Deadlines, OthersThatNeededLongGiveLong) {
  EXPECT_EQ(Deadlines::alone_among(6'000, 100), 6'000);
  EXPECT_EQ(Deadlines::alone_among(6'000, 601), 6'010);
  EXPECT_EQ(Deadlines::alone_among(6'000, -5), 6'000);
}

TEST(Deadlines, AlmostAsLongAsTheOthersWait) {
  EXPECT_EQ(Deadlines::alone_until(6'000, 5'000), 6'000);
  EXPECT_EQ(Deadlines::alone_until(6'000, 10'000), 9'000);
}

TEST(Deadlines, TheLongestIsOfTheWorkOfNow) {
  Deadlines deadlines(limits);
  EXPECT_EQ(deadlines.longest(Phase::step), 0);
  for (const std::int64_t duration_ns : {300, 2'000, 400}) deadlines.took(Phase::step, duration_ns);
  EXPECT_EQ(deadlines.longest(Phase::step), 2'000);
  EXPECT_EQ(deadlines.longest(Phase::evaluation), 0);
  deadlines.rescale(1.0);
  EXPECT_EQ(deadlines.longest(Phase::step), 0);
  deadlines.took(Phase::step, 500);
  EXPECT_EQ(deadlines.longest(Phase::step), 500);
}

}  // namespace
}  // namespace holdfast
