#include "watchdog/detector.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/watchdog/milliseconds.h"

namespace holdfast::test {
namespace {

using HangKind = HangReport::Kind;
using testing::HasSubstr;

constexpr std::int64_t now_ns = 1'000'000 * ms, silent_ns = 2'000 * ms;

WatchedRank computes(int rank, std::int64_t for_ms, std::int64_t deadline_ms = 5'000) {
  WatchedRank one;
  one.slot.process = 100 + rank;
  one.slot.launched_rank = rank;
  one.slot.phase = Phase::step;
  one.slot.step = 9;
  one.slot.begun_ns = one.slot.heartbeat_ns = now_ns - for_ms * ms;
  one.slot.deadline_ns = deadline_ms * ms;
  one.slot.median_ns = 31 * ms;
  one.host = "a";
  return one;
}

WatchedRank waits(int rank, std::int64_t for_ms, int peer = -1, std::int64_t looked_before_ms = 3) {
  WatchedRank one = computes(rank, for_ms);
  one.slot.wait_begun_ns = one.slot.begun_ns + 10 * ms;
  one.slot.heartbeat_ns = now_ns - looked_before_ms * ms;
  one.slot.wait_operation = "an all-reduce";
  one.slot.wait_number = 77;
  one.slot.wait_peer = peer;
  return one;
}

WatchedRank stopped(WatchedRank one) {
  one.stopped = true;
  return one;
}

HangReport report_on(const std::vector<WatchedRank>& ranks) {
  return find_hung_rank(ranks, now_ns, silent_ns);
}

TEST(Detector, NobodyIsOverHisTime) {
  EXPECT_EQ(report_on({}).kind, HangKind::none);
  EXPECT_EQ(report_on({computes(0, 4'999), waits(1, 4'000), computes(2, 10)}).kind, HangKind::none);
  EXPECT_EQ(report_on({stopped(computes(0, 100)), waits(1, 4'000)}).kind, HangKind::none);
}

TEST(Detector, OneThatIsStopped) {
  const HangReport report = report_on({waits(0, 5'200), waits(1, 5'200), stopped(computes(2, 5'200))});
  EXPECT_EQ(report.kind, HangKind::rank);
  EXPECT_EQ(report.index, 2u);
  EXPECT_EQ(report.sentence, "rank 2 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it is stopped");
}

TEST(Detector, TimesHaveTheUnitThatFits) {
  struct Case {
    std::int64_t median_ns;
    const char* text;
  };
  for (const Case& each :
       {Case{4'321, "0.004 ms"}, Case{37'000, "0.04 ms"}, Case{412'000, "0.4 ms"}, Case{990'000, "1 ms"},
        Case{1'260'000, "1.3 ms"}, Case{9'940'000, "9.9 ms"}, Case{12 * ms, "12 ms"},
        Case{999 * ms, "999 ms"}, Case{3'120 * ms, "3.1 s"}, Case{150'000 * ms, "150 s"}}) {
    WatchedRank one = stopped(computes(0, 5'200));
    one.slot.median_ns = each.median_ns;
    EXPECT_EQ(report_on({one}).sentence,
              fmt::format("rank 0 (host a) hangs: step 9 for 5.2 s, {} are usual; it is stopped", each.text));
  }
}

TEST(Detector, OneThatSpins) {
  const HangReport report = report_on({waits(0, 5'300), computes(1, 5'200), waits(2, 5'300)});
  EXPECT_EQ(report.kind, HangKind::rank);
  EXPECT_EQ(report.index, 1u);
  EXPECT_EQ(report.sentence, "rank 1 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it waits for nobody");
}

TEST(Detector, OneThatIsStuckInAWait) {
  const HangReport report = report_on({waits(0, 5'300), waits(1, 5'200, 3, 4'100), waits(2, 5'300)});
  EXPECT_EQ(report.kind, HangKind::rank);
  EXPECT_EQ(report.index, 1u);
  EXPECT_EQ(
      report.sentence,
      "rank 1 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it waits for an all-reduce (number 77) "
      "with rank 3 and has not looked for 4.1 s");
  const HangReport of_stopped = report_on({stopped(waits(0, 6'000, -1, 5'500))});
  EXPECT_EQ(of_stopped.sentence,
            "rank 0 (host a) hangs: step 9 for 6.0 s, 31 ms are usual; it is stopped; it waits for an "
            "all-reduce (number 77)");
}

TEST(Detector, ThoseThatWaitAndLookAreNeverSuspected) {
  for (std::int64_t over_ms = 5'001; over_ms < 9'000; over_ms += 97) {
    const HangReport report =
        report_on({waits(0, over_ms), waits(1, over_ms, 0), computes(2, 4'000), waits(3, over_ms, 2)});
    EXPECT_EQ(report.kind, HangKind::none) << over_ms;
  }
  for (int guilty = 0; guilty < 4; ++guilty) {
    std::vector<WatchedRank> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.push_back(rank == guilty ? computes(rank, 5'001) : waits(rank, 50'000, guilty));
    }
    EXPECT_EQ(report_on(ranks).index, static_cast<std::size_t>(guilty));
  }
}

TEST(Detector, OfTwoAtOnceTheOneThatIsOverForLongest) {
  const HangReport report = report_on({waits(0, 9'000), computes(1, 5'100), computes(2, 5'200)});
  EXPECT_EQ(report.index, 2u);
  // By its own measure.
  EXPECT_EQ(report_on({computes(0, 9'000, 8'999), computes(1, 5'200)}).index, 1u);
}

TEST(Detector, AllStoppedAreTakenOneByOne) {
  std::vector<WatchedRank> ranks = {stopped(waits(0, 5'100)), stopped(computes(1, 5'300)),
                                    stopped(waits(2, 5'200))};
  for (const std::size_t expected : {1u, 2u, 0u}) {
    const HangReport report = report_on(ranks);
    ASSERT_EQ(report.kind, HangKind::rank);
    EXPECT_EQ(report.index, expected);
    ranks[expected].ended = true;
  }
  EXPECT_EQ(report_on(ranks).kind, HangKind::none);
}

TEST(Detector, WithinItsTimeButStoppedWhileOthersWaitForIt) {
  EXPECT_EQ(report_on({waits(0, 5'100), stopped(computes(1, 100, 600'000))}).index, 1u);
  EXPECT_EQ(report_on({waits(0, 5'100, 1), stopped(computes(1, 100, 600'000))}).kind, HangKind::rank);
  EXPECT_EQ(report_on({waits(0, 5'100, 2), stopped(computes(1, 100, 600'000)), computes(2, 5)}).kind,
            HangKind::none)
      << "they wait for another one";
  EXPECT_EQ(report_on({waits(0, 4'900, 1), stopped(computes(1, 100, 600'000))}).kind, HangKind::none);
  WatchedRank silent = waits(1, 4'000, 0, 3'000);
  silent.slot.deadline_ns = 600'000 * ms;
  EXPECT_EQ(report_on({waits(0, 5'100), silent}).index, 1u);
}

TEST(Detector, ACycleHasNoSink) {
  EXPECT_EQ(report_on({waits(0, 9'900, 1), waits(1, 9'900, 0)}).kind, HangKind::none) << "patience first";
  const HangReport report = report_on({waits(0, 10'100, 1), waits(1, 10'200, 2), waits(2, 10'100, 0)});
  EXPECT_EQ(report.kind, HangKind::deadlock);
  EXPECT_EQ(
      report.sentence,
      "all ranks wait for each other: rank 0, step 9, for an all-reduce (number 77) with rank 1 for 10.1 "
      "s; rank 1, step 9, for an all-reduce (number 77) with rank 2 for 10.2 s; and 1 more");
}

TEST(Detector, HostsThatWaitForEachOtherNeedNotAllEnd) {
  const auto on = [](const char* host, WatchedRank one) {
    one.host = host;
    return one;
  };
  const auto report = [&](std::int64_t over) {
    return report_on({on("a", waits(0, over, 1)), on("b", waits(1, over, 2)), on("c", waits(2, over, 1))});
  };
  EXPECT_EQ(report(10'100).kind, HangKind::deadlock);
  EXPECT_THAT(report(10'100).hosts, testing::ElementsAre("c")) << "a may wait because of them";
  EXPECT_THAT(report(15'100).hosts, testing::IsEmpty()) << "that did not help";
  EXPECT_THAT(report_on({on("a", waits(0, 10'100, 1)), on("a", waits(1, 10'100, 0))}).hosts,
              testing::IsEmpty());
}

TEST(Detector, WhoMayBeAwaitedIsNoReasonToEndAll) {
  EXPECT_EQ(report_on({waits(0, 20'000), waits(1, 20'000), computes(2, 300, 600'000)}).kind, HangKind::none)
      << "a rank with more time is at work";
  std::vector<WatchedRank> ranks = {waits(0, 20'000), waits(1, 20'000)};
  ranks[0].slot.members = 4;
  EXPECT_EQ(report_on(ranks).kind, HangKind::none) << "two of another host";
  ranks[0].slot.members = 2;
  EXPECT_EQ(report_on(ranks).kind, HangKind::deadlock);
  WatchedRank leader = waits(0, 12'000);
  leader.slot.phase = Phase::recovery;
  leader.slot.wait_operation = "new ranks";
  leader.slot.deadline_ns = 30'000 * ms;
  EXPECT_EQ(report_on({leader, waits(1, 20'000, 0)}).kind, HangKind::none) << "it waits within its own limit";
  leader.slot.deadline_ns = 11'000 * ms;
  EXPECT_EQ(report_on({leader, waits(1, 20'000, 0)}).kind, HangKind::deadlock);
}

TEST(Detector, TheDeadAndThoseThatLeaveAreNotSuspected) {
  std::vector<WatchedRank> ranks = {waits(0, 5'200), computes(1, 90'000), computes(2, 90'000)};
  ranks[1].ended = true;
  ranks[2].slot.left = true;
  EXPECT_EQ(report_on(ranks).kind, HangKind::none);
  ranks[0] = waits(0, 10'001, 1);
  ranks[0].slot.members = 3;
  EXPECT_EQ(report_on(ranks).kind, HangKind::deadlock) << "who waits for the dead waits in vain";
}

// Of a kind that was not done often enough.
WatchedRank unknown(WatchedRank one) {
  one.slot.deadline_ns = 60'000 * ms;
  one.slot.ceiling_ns = 600'000 * ms;
  one.slot.median_ns = 0;
  return one;
}

WatchedRank lived(WatchedRank one, std::int64_t before_ms) {
  one.slot.life_ns = now_ns - before_ms * ms;
  return one;
}

WatchedRank with_ceiling(WatchedRank one, std::int64_t ceiling_ms) {
  one.slot.ceiling_ns = ceiling_ms * ms;
  return one;
}

TEST(Detector, SignsOfLifeExcuseUntilTheCeiling) {
  struct Case {
    const char* name;
    std::int64_t for_ms, lived_before_ms;  // -1: never
    bool hangs;
  };
  for (const Case& each : std::vector<Case>{{"none at all", 5'100, -1, true},
                                            {"just now", 5'100, 100, false},
                                            {"for long", 90'000, 100, false},
                                            {"almost a deadline before", 90'000, 4'900, false},
                                            {"a deadline before", 90'000, 5'100, true},
                                            {"of the phase before", 4'900, 60'000, false},
                                            {"past the ceiling", 100'100, 100, true},
                                            {"just within the ceiling", 99'900, 100, false}}) {
    WatchedRank one = with_ceiling(computes(1, each.for_ms), 100'000);
    if (each.lived_before_ms >= 0) one = lived(one, each.lived_before_ms);
    EXPECT_EQ(report_on({waits(0, 200'000), one}).kind, each.hangs ? HangKind::rank : HangKind::none)
        << each.name;
    EXPECT_EQ(may_hang(one, now_ns), each.hangs) << each.name;
  }
}

TEST(Detector, SaysHowLongTheLastSignOfLifeIsAgo) {
  EXPECT_EQ(
      report_on({lived(with_ceiling(computes(1, 9'000), 100'000), 5'100)}).sentence,
      "rank 1 (host a) hangs: step 9 for 9.0 s, 31 ms are usual; no sign of life for 5.1 s; it waits for "
      "nobody");
  EXPECT_EQ(
      report_on({lived(with_ceiling(computes(1, 100'100), 100'000), 20)}).sentence,
      "rank 1 (host a) hangs: step 9 for 100 s, 31 ms are usual; there are signs of life, but 100 s are "
      "the most; it waits for nobody");
}

TEST(Detector, NamesTheKindThatTheTimeIsOf) {
  WatchedRank one = computes(1, 5'200);
  one.slot.kind = WorkKind::first;
  EXPECT_THAT(report_on({one}).sentence, HasSubstr("step 9 for 5.2 s, 31 ms are usual for a first one; it"));
  one.slot.kind = WorkKind::beside_save;
  EXPECT_THAT(report_on({one}).sentence, HasSubstr("step 9 for 5.2 s, 31 ms are usual beside a save; it"));
  one.slot.median_ns = 0;
  EXPECT_THAT(report_on({one}).sentence, HasSubstr("step 9 for 5.2 s, 5.0 s are the limit; it"));
}

TEST(Detector, ALimitThatWasGivenHoldsWhateverSignsThereAre) {
  const WatchedRank one = lived(with_ceiling(computes(1, 5'100), 5'000), 10);
  EXPECT_EQ(report_on({waits(0, 5'100), one}).kind, HangKind::rank);
  EXPECT_EQ(report_on({waits(0, 5'100), lived(with_ceiling(computes(1, 5'100), 0), 10)}).kind, HangKind::rank)
      << "no ceiling: the deadline is one";
}

TEST(Detector, AStoppedOneIsExcusedByNothingLater) {
  const WatchedRank one = stopped(lived(with_ceiling(computes(1, 9'000), 100'000), 5'100));
  EXPECT_EQ(report_on({waits(0, 5'300), one}).index, 1u);
}

TEST(Detector, OfAnUnknownKindTheLimitCountsForEverybody) {
  EXPECT_EQ(report_on({unknown(waits(0, 70'000)), unknown(computes(1, 59'900))}).kind, HangKind::none);
  EXPECT_EQ(report_on({unknown(waits(0, 70'000)), unknown(computes(1, 60'100))}).sentence,
            "rank 1 (host a) hangs: step 9 for 60.1 s, 60.0 s are the limit; it waits for nobody");
  EXPECT_EQ(report_on({unknown(computes(0, 60'100))}).kind, HangKind::rank) << "also alone";
  EXPECT_EQ(report_on({unknown(computes(0, 60'100)), unknown(computes(1, 60'200))}).index, 1u);
  EXPECT_EQ(report_on({lived(unknown(computes(0, 400'000)), 59'000)}).kind, HangKind::none);
}

// Of a run of five.
std::vector<WatchedRank> three_wait_for(const WatchedRank& one, const WatchedRank& other) {
  std::vector<WatchedRank> ranks = {unknown(waits(0, 70'000)), one, unknown(waits(2, 70'000)), other,
                                    unknown(waits(4, 70'000))};
  for (WatchedRank& rank : ranks) rank.slot.members = 5;
  return ranks;
}

TEST(Detector, OfAnUnknownKindSeveralThatMoreOthersWaitFor) {
  const HangReport report =
      report_on(three_wait_for(unknown(computes(1, 69'000)), stopped(unknown(computes(3, 69'500)))));
  ASSERT_EQ(report.kind, HangKind::rank);
  EXPECT_EQ(report.index, 3u);
  EXPECT_THAT(report.sentence, HasSubstr("60.0 s are the limit; it is stopped"));
  ASSERT_EQ(report.others.size(), 1u);
  EXPECT_EQ(report.others[0].index, 1u);
  EXPECT_THAT(report.others[0].sentence, HasSubstr("rank 1 (host a) hangs: step 9 for 69.0 s"));
}

TEST(Detector, OfAnUnknownKindOnlyThoseThatHaveHadTheirTime) {
  const WatchedRank hangs = unknown(computes(1, 69'000));
  const auto others = [&](const WatchedRank& other) {
    const HangReport report = report_on(three_wait_for(hangs, other));
    EXPECT_EQ(report.index, 1u);
    return report.others.size();
  };
  EXPECT_EQ(others(unknown(computes(3, 60'100))), 1u);
  EXPECT_EQ(others(unknown(computes(3, 54'100))), 1u) << "it stopped a moment later";
  EXPECT_EQ(others(unknown(computes(3, 53'900))), 0u);
  EXPECT_EQ(others(lived(unknown(computes(3, 69'000)), 100)), 0u);
  EXPECT_EQ(others(computes(3, 13'000)), 0u) << "it has learned its time: it may hang for the first";
  EXPECT_EQ(others(unknown(waits(3, 69'000))), 0u);
}

TEST(Detector, OfAnUnknownKindTheMostAreNotEndedAtOnce) {
  std::vector<WatchedRank> ranks = three_wait_for(unknown(computes(1, 69'000)), unknown(computes(3, 69'100)));
  EXPECT_EQ(report_on(ranks).others.size(), 1u);
  ranks.pop_back();
  EXPECT_EQ(report_on(ranks).index, 3u);
  EXPECT_EQ(report_on(ranks).others.size(), 0u) << "two and two";
}

// On a busy machine the guard looks before such a rank begins anything.
TEST(Detector, NamesTheKernelOfAPluginThatRuns) {
  WatchedRank one = computes(1, 5'200);
  one.slot.plugin = {.op = "add", .implementation = "mine", .digest = "01", .library = "mine.so"};
  EXPECT_EQ(
      report_on({waits(0, 5'300), one}).sentence,
      "rank 1 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it runs kernel mine of add, of the plug-in "
      "mine.so");
}

TEST(Detector, OneThatHasJustGotWhatItWaitedForHasItsWholeDeadline) {
  WatchedRank one = with_ceiling(computes(1, 9'100), 100'000);
  EXPECT_EQ(report_on({one}).kind, HangKind::rank);
  one.slot.heartbeat_ns = now_ns - 40 * ms;
  EXPECT_EQ(report_on({one}).kind, HangKind::none);
  EXPECT_EQ(report_on({waits(0, 9'100), one}).kind, HangKind::none);
  one.slot.heartbeat_ns = now_ns - 5'001 * ms;
  EXPECT_EQ(report_on({waits(0, 9'100), one}).index, 1u);
}

TEST(Detector, OneThatWaitsForStorageHasTheCeiling) {
  WatchedRank one = with_ceiling(computes(1, 99'000), 100'000);
  one.slot.storage_begun_ns = now_ns - 98'000 * ms;
  one.slot.storage_what = "training data";
  EXPECT_EQ(report_on({waits(0, 99'000), one}).kind, HangKind::none);
  EXPECT_EQ(report_on({waits(0, 99'000), stopped(one)}).kind, HangKind::rank)
      << "no file system explains that";
  one.slot.begun_ns = now_ns - 101'000 * ms;
  EXPECT_EQ(report_on({waits(0, 99'000), one}).sentence,
            "rank 1 (host a) hangs: step 9 for 101 s, 31 ms are usual; it waits for storage (training data)");
}

TEST(Detector, AllThatWaitForStorageAreOneCause) {
  std::vector<WatchedRank> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(with_ceiling(computes(rank, 13'000), 600'000));
    ranks.back().slot.storage_begun_ns = now_ns - (12'000 + rank) * ms;
    ranks.back().slot.storage_what = "training data";
  }
  const auto sentence = [&] { return storage_sentence(ranks, now_ns, 10'000 * ms); };
  EXPECT_EQ(
      sentence(),
      "ranks 0, 1, 2 (host a) wait for storage for 12.0 s (training data): nobody is ended for it before "
      "600 s");
  ranks[0].slot.life_ns = now_ns - 9'000 * ms;
  ranks[1].ended = true;
  EXPECT_EQ(
      sentence(),
      "rank 2 (host a) waits for storage for 12.0 s (training data): nobody is ended for it before 600 s");
  ranks[2].slot.storage_begun_ns = now_ns - 9'000 * ms;
  EXPECT_EQ(sentence(), "");
  EXPECT_EQ(storage_sentence({}, now_ns, 1), "");
}

TEST(Detector, WhatWasBeforeThenIsNoEvidence) {
  std::vector<WatchedRank> ranks = {waits(0, 5'300), computes(1, 5'200), waits(2, 5'300)};
  ranks[1].evidence_since_ns = now_ns - 4'900 * ms;
  EXPECT_EQ(report_on(ranks).kind, HangKind::none);
  ranks[1].evidence_since_ns = now_ns - 5'100 * ms;
  EXPECT_EQ(report_on(ranks).kind, HangKind::rank);
}

TEST(Detector, ALookAtAllIsWorthItWhereThereMayBeAHang) {
  EXPECT_FALSE(may_hang(computes(0, 4'900), now_ns));
  EXPECT_TRUE(may_hang(computes(0, 5'100), now_ns));
  EXPECT_FALSE(may_hang(unknown(computes(0, 59'900)), now_ns));
  EXPECT_TRUE(may_hang(unknown(computes(0, 60'100)), now_ns));
}

TEST(Detector, ASpareMayWaitForEver) {
  WatchedRank spare = waits(3, 90'000'000);
  spare.slot.phase = Phase::spare;
  spare.slot.median_ns = 0;
  EXPECT_EQ(report_on({computes(0, 10), spare}).kind, HangKind::none);
  EXPECT_EQ(report_on({waits(0, 10'100, 1), waits(1, 10'100, 0), spare}).kind, HangKind::deadlock);
  spare.slot.wait_begun_ns = 0;
  spare.slot.begun_ns = now_ns - 90'000 * ms;
  spare.slot.heartbeat_ns = now_ns - 5'100 * ms;
  const HangReport report = report_on({computes(0, 10), spare});
  EXPECT_EQ(report.index, 1u);
  EXPECT_EQ(
      report.sentence,
      "rank 3 (host a) hangs: spare, step 9 for 90.0 s, 5.0 s are the limit; no sign of life for 5.1 s");
}

TEST(Detector, PhasesWithALimitOfTheirOwn) {
  WatchedRank recovers = computes(1, 2'100, 2'000);
  recovers.slot.phase = Phase::recovery;
  recovers.slot.median_ns = 0;
  const HangReport report = report_on({waits(0, 2'100), recovers});
  EXPECT_EQ(report.sentence,
            "rank 1 (host a) hangs: recovery, step 9 for 2.1 s, 2.0 s are the limit; it waits for nobody");
  EXPECT_EQ(report_on({computes(0, 1'000'000, 0)}).kind, HangKind::none) << "0: no limit";
}

// The others wait for it no longer than for their time to recover, which is shorter than a first step may take.
TEST(Detector, OneInAStepThatOthersWaitForInARecovery) {
  const auto recovers = [](int rank, std::int64_t for_ms) {
    WatchedRank one = waits(rank, for_ms);
    one.slot.phase = Phase::recovery;
    one.slot.deadline_ns = 15'000 * ms;
    one.slot.median_ns = 0;
    return one;
  };
  WatchedRank hangs = computes(1, 17'000, 60'000);
  hangs.slot.median_ns = 0;
  EXPECT_EQ(report_on({recovers(0, 14'900), hangs, recovers(2, 14'800)}).kind, HangKind::none);
  const HangReport report = report_on({recovers(0, 15'200), hangs, recovers(2, 15'100)});
  EXPECT_EQ(report.kind, HangKind::rank);
  EXPECT_EQ(report.index, 1u);
  EXPECT_EQ(
      report.sentence,
      "rank 1 (host a) hangs: step 9 for 17.0 s, 60.0 s are the limit; it waits for nobody; others wait "
      "for it in a recovery for 15.2 s");
  WatchedRank lives = hangs;
  lives.slot.life_ns = now_ns - 10'000 * ms;
  EXPECT_EQ(report_on({recovers(0, 15'200), lives, recovers(2, 15'100)}).kind, HangKind::none);
  WatchedRank reads = hangs;
  reads.slot.storage_begun_ns = now_ns - 16'000 * ms;
  reads.slot.ceiling_ns = 600'000 * ms;
  EXPECT_EQ(report_on({recovers(0, 15'200), reads, recovers(2, 15'100)}).kind, HangKind::none);
  WatchedRank loads = hangs;
  loads.slot.phase = Phase::load;
  EXPECT_EQ(report_on({recovers(0, 15'200), loads, recovers(2, 15'100)}).kind, HangKind::none);
  EXPECT_EQ(report_on({recovers(0, 15'200), waits(1, 4'000, 0), recovers(2, 15'100)}).kind, HangKind::none);
}

TEST(Detector, NamesTheRankOfAnotherHost) {
  WatchedRank distant = stopped(computes(5, 6'000));
  distant.host = "b";
  distant.own_host = false;
  const HangReport report = report_on({waits(0, 6'000), distant});
  EXPECT_EQ(report.index, 1u);
  EXPECT_THAT(report.sentence, HasSubstr("rank 5 (host b) hangs"));
}

TEST(Detector, EverySentenceFitsOnTheBoard) {
  WatchedRank one = waits(1'234, 599'999, 4'321, 599'000);
  one.host = std::string(64, 'h');
  one.slot.wait_operation = std::string(31, 'o');
  one.slot.wait_number = ~0u;
  one.slot.step = 123'456'789'012;
  EXPECT_LT(report_on({one}).sentence.size(), board_text_bytes + 40);
}

}  // namespace
}  // namespace holdfast::test
