#include "tools/chaos/suspects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/chaos/second.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::Optional;

ChaosRun run_with(std::vector<ChaosInjected> injected, std::vector<ReportedHang> verdicts,
                  std::vector<FaultEntry> entries) {
  ChaosRun run;
  run.injected = std::move(injected);
  run.verdicts = std::move(verdicts);
  run.ledger.faults = std::move(entries);
  run.launches = {{.begun_us = 1, .ended_us = 100 * second}};
  return run;
}

ChaosInjected hang(std::int64_t at_s, int rank) {
  return {.fault = ChaosFault::hang, .time_us = at_s * second, .rank = rank};
}
ChaosInjected livelock(std::int64_t at_s, int rank) {
  return {.fault = ChaosFault::livelock, .time_us = at_s * second, .rank = rank};
}
ReportedHang verdict(std::int64_t at_s, int rank) {
  return {.time_us = at_s * second, .rank = rank};
}
FaultEntry mended(FaultLevel level, std::int64_t from_s, std::int64_t to_s) {
  return {.level = level, .time_us = from_s * second, .resumed_us = to_s * second};
}

std::vector<std::optional<NamedRank>> named(const ChaosRun& run) {
  std::vector<std::optional<NamedRank>> all;
  for (const NamedHang& each : find_suspects(run).each) all.push_back(each.named);
  return all;
}

TEST(Suspects, NoRankMayBeEndedOnSlowStorageUnlessItHangs) {
  const ChaosInjected slow{.fault = ChaosFault::slow_storage, .time_us = 10 * second};
  EXPECT_FALSE(find_suspects(run_with({slow}, {verdict(5, 1)}, {})).on_slow_storage.has_value());
  EXPECT_EQ(find_suspects(run_with({slow}, {verdict(12, 1)}, {})).on_slow_storage->rank, 1);
  EXPECT_FALSE(
      find_suspects(run_with({slow, hang(11, 2)}, {verdict(12, 2)}, {})).on_slow_storage.has_value());
}

TEST(Suspects, TheVerdictCountsHoweverTheRunWasMended) {
  for (const FaultLevel level :
       {FaultLevel::in_place, FaultLevel::restart, FaultLevel::launch, FaultLevel::ended}) {
    const auto with = [&](int rank) {
      return named(run_with({hang(10, 2)}, {verdict(12, rank)}, {mended(level, 12, 13)}));
    };
    EXPECT_THAT(with(2), ElementsAre(Optional(NamedRank::right)));
    EXPECT_THAT(with(12), ElementsAre(Optional(NamedRank::other)));
    EXPECT_THAT(with(-1), ElementsAre(Optional(NamedRank::nobody))) << "all wait for each other";
  }
  EXPECT_EQ(find_suspects(run_with({hang(10, 2)}, {verdict(12, 2)}, {})).each[0].verdict_us, 12 * second);
}

TEST(Suspects, NobodySaidWhoItWas) {
  EXPECT_THAT(named(run_with({hang(10, 2)}, {}, {mended(FaultLevel::restart, 30, 31)})),
              ElementsAre(Optional(NamedRank::nobody)))
      << "the others gave up waiting";
  EXPECT_THAT(named(run_with({hang(10, 2)}, {verdict(5, 1)},
                             {mended(FaultLevel::in_place, 5, 6), mended(FaultLevel::restart, 30, 31)})),
              ElementsAre(Optional(NamedRank::nobody)))
      << "that one was of another hang";
  EXPECT_THAT(named(run_with({hang(10, 2)}, {}, {})), ElementsAre(std::nullopt)) << "behind the last step";
  EXPECT_THAT(named(run_with({hang(10, 2)}, {}, {mended(FaultLevel::none, 11, 11)})),
              ElementsAre(std::nullopt))
      << "a save that failed";
}

// The same livelock strikes again in every start, and before its first step.
TEST(Suspects, WhatStruckInTheNextStartIsNoExcuse) {
  const std::vector<FaultEntry> log = {mended(FaultLevel::in_place, 12, 13),
                                       mended(FaultLevel::restart, 45, 95),
                                       mended(FaultLevel::restart, 90, 95)};
  EXPECT_THAT(
      named(run_with({livelock(10, 1), livelock(14, 0), livelock(60, 1)}, {verdict(12, 1), verdict(75, 1)},
                     log)),
      ElementsAre(Optional(NamedRank::right), Optional(NamedRank::nobody), Optional(NamedRank::right)));
}

// What the ranks noticed before is of the start that then could not go on.
TEST(Suspects, AVerdictBehindWhatTheRanksNoticed) {
  FaultEntry noticed = mended(FaultLevel::restart, 11, 15);
  noticed.who = "rank 2 (host a)";
  EXPECT_THAT(
      named(run_with({hang(10, 2)}, {verdict(12, 2)}, {noticed, mended(FaultLevel::restart, 13, 15)})),
      ElementsAre(Optional(NamedRank::right)));
}

TEST(Suspects, ARunThatStoodStillUntilItsTimeWasOver) {
  ChaosRun run = run_with({hang(10, 2)}, {}, {});
  EXPECT_THAT(named(run), ElementsAre(std::nullopt));
  run.ran_out_of_time = true;
  EXPECT_THAT(named(run), ElementsAre(Optional(NamedRank::nobody)));
}

// Whoever names two ranks until it is the right one has ended one that could have gone on.
TEST(Suspects, TheFirstVerdictCounts) {
  const ChaosRun run =
      run_with({hang(10, 2)}, {verdict(12, 1), verdict(14, 2)}, {mended(FaultLevel::in_place, 12, 15)});
  EXPECT_THAT(named(run), ElementsAre(Optional(NamedRank::other)));
  EXPECT_EQ(find_suspects(run).each[0].verdict_us, 0);
  EXPECT_EQ(find_suspects(run).baseless_verdicts, 0);
}

TEST(Suspects, TwoThatHangAtOnce) {
  const std::vector<FaultEntry> together = {mended(FaultLevel::in_place, 12, 15)};
  EXPECT_THAT(named(run_with({hang(10, 2), livelock(10, 1)}, {verdict(12, 1), verdict(14, 2)}, together)),
              ElementsAre(Optional(NamedRank::right), Optional(NamedRank::right)));
  EXPECT_THAT(named(run_with({hang(10, 2), livelock(10, 1)}, {verdict(12, 3), verdict(14, 1)}, together)),
              ElementsAre(Optional(NamedRank::other), Optional(NamedRank::right)));
  // Nobody could go on without the first, and the start that follows ends the second, too.
  EXPECT_THAT(named(run_with({hang(10, 2), livelock(10, 1)}, {verdict(12, 2)},
                             {mended(FaultLevel::restart, 12, 15)})),
              ElementsAre(Optional(NamedRank::right), std::nullopt));
  // But where the others went on, the second had to be named.
  EXPECT_THAT(named(run_with({hang(10, 2), livelock(10, 1)}, {verdict(12, 2)}, together)),
              ElementsAre(Optional(NamedRank::right), Optional(NamedRank::nobody)));
}

TEST(Suspects, TheSameRankInAnotherStart) {
  EXPECT_THAT(named(run_with({livelock(10, 2), livelock(30, 2)}, {verdict(12, 2), verdict(32, 2)},
                             {mended(FaultLevel::restart, 14, 16), mended(FaultLevel::in_place, 32, 33)})),
              ElementsAre(Optional(NamedRank::right), Optional(NamedRank::right)));
  EXPECT_THAT(named(run_with({livelock(10, 2), livelock(30, 2)}, {verdict(32, 2)},
                             {mended(FaultLevel::restart, 14, 16), mended(FaultLevel::in_place, 32, 33)})),
              ElementsAre(Optional(NamedRank::nobody), Optional(NamedRank::right)));
}

TEST(Suspects, AnotherFaultEndedItBefore) {
  const std::vector<FaultEntry> again = {mended(FaultLevel::restart, 11, 14)};
  for (const ChaosFault fault : {ChaosFault::mpirun_killed, ChaosFault::job_killed}) {
    EXPECT_THAT(named(run_with({hang(10, 2), {.fault = fault, .time_us = 11 * second}}, {}, again)),
                ElementsAre(std::nullopt, std::nullopt));
  }
  EXPECT_THAT(named(run_with({hang(10, 2), {.fault = ChaosFault::kill, .time_us = 11 * second, .rank = 2}},
                             {}, again)),
              ElementsAre(std::nullopt, std::nullopt));
  // The launch that it belonged to is over; what the next one says is about others.
  ChaosRun run = run_with({hang(10, 2)}, {verdict(32, 1)}, {});
  run.launches = {{.begun_us = 1, .ended_us = 20 * second},
                  {.begun_us = 21 * second, .ended_us = 90 * second}};
  EXPECT_THAT(named(run), ElementsAre(std::nullopt));
  EXPECT_EQ(find_suspects(run).baseless_verdicts, 1);
}

TEST(Suspects, AVerdictWhileNobodyHangs) {
  const ChaosRun run = run_with({{.fault = ChaosFault::slow_rank, .time_us = 10 * second, .rank = 2}},
                                {verdict(12, 2), verdict(50, -1)}, {mended(FaultLevel::in_place, 12, 13)});
  EXPECT_EQ(find_suspects(run).baseless_verdicts, 1) << "the second accuses nobody";
  EXPECT_THAT(named(run), ElementsAre(std::nullopt));
}

}  // namespace
}  // namespace holdfast::test
