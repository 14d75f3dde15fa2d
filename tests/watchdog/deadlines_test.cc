#include "watchdog/deadlines.h"

#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

constexpr DeadlineLimits limits = {.factor = 3.0, .floor_ns = 1'000, .ceiling_ns = 1'000'000};

void take(Deadlines& deadlines, Phase phase, std::int64_t duration_ns, int times,
          WorkKind kind = WorkKind::usual) {
  for (int each = 0; each < times; ++each) deadlines.took(phase, kind, duration_ns);
}

std::int64_t of(const Deadlines& deadlines, Phase phase, WorkKind kind = WorkKind::usual) {
  return deadlines.of(phase, kind);
}

TEST(Deadlines, ArePatientUntilThePhaseIsKnown) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 4);
  EXPECT_EQ(of(deadlines, Phase::step), 12'000) << "twelve floors";
  EXPECT_EQ(deadlines.usual(Phase::step, WorkKind::usual), 0);
  take(deadlines, Phase::step, 2'000, 1);
  EXPECT_EQ(of(deadlines, Phase::step), 6'000);
  EXPECT_EQ(deadlines.usual(Phase::step, WorkKind::usual), 2'000);
}

TEST(Deadlines, OfAPhaseWithoutHistory) {
  const Deadlines deadlines(limits);
  for (const Phase phase :
       {Phase::start_up, Phase::load, Phase::save, Phase::recovery, Phase::spare, Phase::end}) {
    for (const WorkKind kind : {WorkKind::usual, WorkKind::first, WorkKind::beside_save})
      EXPECT_EQ(deadlines.of(phase, kind), 1'000'000) << name_of(phase);
  }
  for (const Phase phase : {Phase::step, Phase::evaluation}) {
    for (const WorkKind kind : {WorkKind::usual, WorkKind::first, WorkKind::beside_save})
      EXPECT_EQ(deadlines.of(phase, kind), 12'000) << name_of(phase);
  }
  EXPECT_EQ(of(Deadlines({.factor = 2, .floor_ns = 50, .ceiling_ns = 100}), Phase::step), 100);
}

TEST(Deadlines, OfAKindWithTooLittleHistoryAreAMultipleOfTheUsual) {
  struct Case {
    WorkKind kind;
    std::int64_t median_ns, expected_ns;
  };
  for (const Case& each : {Case{WorkKind::first, 2'000, 24'000}, Case{WorkKind::beside_save, 2'000, 12'000},
                           Case{WorkKind::first, 10, 4'000}, Case{WorkKind::beside_save, 10, 2'000},
                           Case{WorkKind::first, 200'000, 1'000'000}}) {
    Deadlines deadlines(limits);
    take(deadlines, Phase::step, each.median_ns, 5);
    take(deadlines, Phase::step, 100'000, 4, each.kind);
    EXPECT_EQ(of(deadlines, Phase::step, each.kind), each.expected_ns);
    EXPECT_EQ(of(deadlines, Phase::evaluation, each.kind), 12'000) << "of another phase it says nothing";
  }
}

TEST(Deadlines, OfAKindThatIsKnownAreItsOwn) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 5);
  take(deadlines, Phase::step, 9'000, 5, WorkKind::beside_save);
  take(deadlines, Phase::step, 50'000, 5, WorkKind::first);
  EXPECT_EQ(of(deadlines, Phase::step), 6'000);
  EXPECT_EQ(of(deadlines, Phase::step, WorkKind::beside_save), 27'000);
  EXPECT_EQ(of(deadlines, Phase::step, WorkKind::first), 150'000);
  EXPECT_EQ(deadlines.usual(Phase::step, WorkKind::first), 50'000);
}

TEST(Deadlines, OfAKindAreNeverShorterThanTheUsual) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 5);
  take(deadlines, Phase::step, 100, 5, WorkKind::beside_save);
  EXPECT_EQ(of(deadlines, Phase::step, WorkKind::beside_save), 6'000);
}

TEST(Deadlines, OfARunThatSavesBesideEveryStep) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 9, WorkKind::beside_save);
  EXPECT_EQ(of(deadlines, Phase::step, WorkKind::beside_save), 6'000);
  EXPECT_EQ(of(deadlines, Phase::step), 6'000);
  EXPECT_EQ(of(deadlines, Phase::step, WorkKind::first), 24'000);
}

TEST(Deadlines, PhasesWithoutKindsHaveOneHistory) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::load, 2'000, 3);
  take(deadlines, Phase::load, 2'000, 2, WorkKind::first);
  EXPECT_EQ(of(deadlines, Phase::load), 6'000);
}

TEST(Deadlines, StayBetweenFloorAndCeiling) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 10, 5);
  EXPECT_EQ(of(deadlines, Phase::step), 1'000);
  take(deadlines, Phase::save, 900'000, 5);
  EXPECT_EQ(of(deadlines, Phase::save), 1'000'000);
  EXPECT_EQ(of(Deadlines({.factor = 2, .floor_ns = 50, .ceiling_ns = 10}), Phase::load), 50);
}

TEST(Deadlines, KeepPhasesApart) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 9);
  take(deadlines, Phase::evaluation, 5'000, 9);
  EXPECT_EQ(of(deadlines, Phase::step), 6'000);
  EXPECT_EQ(of(deadlines, Phase::evaluation), 15'000);
  EXPECT_EQ(of(deadlines, Phase::load), 1'000'000);
}

TEST(Deadlines, OneThatTookLongMovesNothing) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 9);
  take(deadlines, Phase::step, 400'000, 4);
  EXPECT_EQ(of(deadlines, Phase::step), 6'000);
}

TEST(Deadlines, FollowARunWhoseStepsAreOthersNow) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 500);
  take(deadlines, Phase::step, 20'000, 31);
  EXPECT_EQ(of(deadlines, Phase::step), 6'000);
  take(deadlines, Phase::step, 20'000, 1);
  EXPECT_EQ(of(deadlines, Phase::step), 60'000);
}

TEST(Deadlines, OfTwoRunsTenTimesApartAreTenTimesApart) {
  Deadlines fast(limits), slow(limits);
  for (int step = 0; step < 100; ++step) {
    const std::int64_t duration_ns = 1'000 + 37 * (step % 11);
    fast.took(Phase::step, WorkKind::usual, duration_ns);
    slow.took(Phase::step, WorkKind::usual, 10 * duration_ns);
  }
  EXPECT_EQ(10 * of(fast, Phase::step), of(slow, Phase::step));
}

TEST(Deadlines, WithMoreWorkEachWhatWasLearnedCountsAsMuchLonger) {
  Deadlines deadlines(limits);
  take(deadlines, Phase::step, 2'000, 10);
  take(deadlines, Phase::step, 6'000, 10, WorkKind::first);
  deadlines.rescale(1.5);
  EXPECT_EQ(of(deadlines, Phase::step), 9'000);
  EXPECT_EQ(of(deadlines, Phase::step, WorkKind::first), 27'000);
  take(deadlines, Phase::step, 2'500, 11);
  EXPECT_EQ(of(deadlines, Phase::step), 7'500) << "what is learned then is as it is";
  EXPECT_EQ(of(deadlines, Phase::load), 1'000'000);
}

}  // namespace
}  // namespace holdfast::test
