#include "watchdog/detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast {
namespace {

using Kind = HangVerdict::Kind;
using testing::HasSubstr;

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t now_ns = 1'000'000 * ms, silent_ns = 2'000 * ms;

WatchedRank computes(int rank, std::int64_t for_ms, std::int64_t deadline_ms = 5'000) {
  WatchedRank one;
  one.slot.process = 100 + rank;
  one.slot.launched_rank = rank;
  one.slot.phase = Phase::step;
  one.slot.step = 9;
  one.slot.begun_ns = one.slot.beat_ns = now_ns - for_ms * ms;
  one.slot.deadline_ns = deadline_ms * ms;
  one.slot.usual_ns = 31 * ms;
  one.host = "a";
  return one;
}

WatchedRank waits(int rank, std::int64_t for_ms, int peer = -1, std::int64_t looked_before_ms = 3) {
  WatchedRank one = computes(rank, for_ms);
  one.slot.wait_begun_ns = one.slot.begun_ns + 10 * ms;
  one.slot.beat_ns = now_ns - looked_before_ms * ms;
  one.slot.wait_operation = "an all-reduce";
  one.slot.wait_number = 77;
  one.slot.wait_peer = peer;
  return one;
}

WatchedRank stopped(WatchedRank one) {
  one.stopped = true;
  return one;
}

HangVerdict verdict_on(const std::vector<WatchedRank>& ranks) {
  return find_culprit(ranks, now_ns, silent_ns);
}

TEST(Detector, NobodyIsOverHisTime) {
  EXPECT_EQ(verdict_on({}).kind, Kind::none);
  EXPECT_EQ(verdict_on({computes(0, 4'999), waits(1, 4'000), computes(2, 10)}).kind, Kind::none);
  EXPECT_EQ(verdict_on({stopped(computes(0, 100)), waits(1, 4'000)}).kind, Kind::none);
}

TEST(Detector, OneThatIsStopped) {
  const HangVerdict verdict = verdict_on({waits(0, 5'200), waits(1, 5'200), stopped(computes(2, 5'200))});
  EXPECT_EQ(verdict.kind, Kind::culprit);
  EXPECT_EQ(verdict.index, 2u);
  EXPECT_EQ(verdict.sentence, "rank 2 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it is stopped");
}

TEST(Detector, TimesHaveTheUnitThatFits) {
  struct Case {
    std::int64_t usual_ns;
    const char* text;
  };
  for (const Case& each :
       {Case{4'321, "0.004 ms"}, Case{37'000, "0.04 ms"}, Case{412'000, "0.4 ms"}, Case{990'000, "1 ms"},
        Case{1'260'000, "1.3 ms"}, Case{9'940'000, "9.9 ms"}, Case{12 * ms, "12 ms"},
        Case{999 * ms, "999 ms"}, Case{3'120 * ms, "3.1 s"}, Case{150'000 * ms, "150 s"}}) {
    WatchedRank one = stopped(computes(0, 5'200));
    one.slot.usual_ns = each.usual_ns;
    EXPECT_EQ(verdict_on({one}).sentence,
              fmt::format("rank 0 (host a) hangs: step 9 for 5.2 s, {} are usual; it is stopped", each.text));
  }
}

TEST(Detector, OneThatSpins) {
  const HangVerdict verdict = verdict_on({waits(0, 5'300), computes(1, 5'200), waits(2, 5'300)});
  EXPECT_EQ(verdict.kind, Kind::culprit);
  EXPECT_EQ(verdict.index, 1u);
  EXPECT_EQ(verdict.sentence,
            "rank 1 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it waits for nobody");
}

TEST(Detector, OneThatIsStuckInAWait) {
  const HangVerdict verdict = verdict_on({waits(0, 5'300), waits(1, 5'200, 3, 4'100), waits(2, 5'300)});
  EXPECT_EQ(verdict.kind, Kind::culprit);
  EXPECT_EQ(verdict.index, 1u);
  EXPECT_EQ(
      verdict.sentence,
      "rank 1 (host a) hangs: step 9 for 5.2 s, 31 ms are usual; it waits for an all-reduce (number 77) "
      "with rank 3 and has not looked for 4.1 s");
  const HangVerdict of_stopped = verdict_on({stopped(waits(0, 6'000, -1, 5'500))});
  EXPECT_EQ(of_stopped.sentence,
            "rank 0 (host a) hangs: step 9 for 6.0 s, 31 ms are usual; it is stopped; it waits for an "
            "all-reduce (number 77)");
}

TEST(Detector, ThoseThatWaitAndLookAreNeverBlamed) {
  for (std::int64_t over_ms = 5'001; over_ms < 9'000; over_ms += 97) {
    const HangVerdict verdict =
        verdict_on({waits(0, over_ms), waits(1, over_ms, 0), computes(2, 4'000), waits(3, over_ms, 2)});
    EXPECT_EQ(verdict.kind, Kind::none) << over_ms;
  }
  for (int guilty = 0; guilty < 4; ++guilty) {
    std::vector<WatchedRank> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.push_back(rank == guilty ? computes(rank, 5'001) : waits(rank, 50'000, guilty));
    }
    EXPECT_EQ(verdict_on(ranks).index, static_cast<std::size_t>(guilty));
  }
}

TEST(Detector, OfTwoAtOnceTheOneThatIsOverForLongest) {
  const HangVerdict verdict = verdict_on({waits(0, 9'000), computes(1, 5'100), computes(2, 5'200)});
  EXPECT_EQ(verdict.index, 2u);
  // By its own measure.
  EXPECT_EQ(verdict_on({computes(0, 9'000, 8'999), computes(1, 5'200)}).index, 1u);
}

TEST(Detector, AllStoppedAreTakenOneByOne) {
  std::vector<WatchedRank> ranks = {stopped(waits(0, 5'100)), stopped(computes(1, 5'300)),
                                    stopped(waits(2, 5'200))};
  for (const std::size_t expected : {1u, 2u, 0u}) {
    const HangVerdict verdict = verdict_on(ranks);
    ASSERT_EQ(verdict.kind, Kind::culprit);
    EXPECT_EQ(verdict.index, expected);
    ranks[expected].ended = true;
  }
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
}

TEST(Detector, WithinItsTimeButStoppedWhileOthersWaitForIt) {
  EXPECT_EQ(verdict_on({waits(0, 5'100), stopped(computes(1, 100, 600'000))}).index, 1u);
  EXPECT_EQ(verdict_on({waits(0, 5'100, 1), stopped(computes(1, 100, 600'000))}).kind, Kind::culprit);
  EXPECT_EQ(verdict_on({waits(0, 5'100, 2), stopped(computes(1, 100, 600'000)), computes(2, 5)}).kind,
            Kind::none)
      << "they wait for another one";
  EXPECT_EQ(verdict_on({waits(0, 4'900, 1), stopped(computes(1, 100, 600'000))}).kind, Kind::none);
  WatchedRank silent = waits(1, 4'000, 0, 3'000);
  silent.slot.deadline_ns = 600'000 * ms;
  EXPECT_EQ(verdict_on({waits(0, 5'100), silent}).index, 1u);
}

TEST(Detector, ACycleHasNoSink) {
  EXPECT_EQ(verdict_on({waits(0, 9'900, 1), waits(1, 9'900, 0)}).kind, Kind::none) << "patience first";
  const HangVerdict verdict = verdict_on({waits(0, 10'100, 1), waits(1, 10'200, 2), waits(2, 10'100, 0)});
  EXPECT_EQ(verdict.kind, Kind::no_sink);
  EXPECT_EQ(
      verdict.sentence,
      "all ranks wait for each other: rank 0, step 9, for an all-reduce (number 77) with rank 1 for 10.1 "
      "s; rank 1, step 9, for an all-reduce (number 77) with rank 2 for 10.2 s; and 1 more");
}

TEST(Detector, WhoMayBeAwaitedIsNoReasonToEndAll) {
  EXPECT_EQ(verdict_on({waits(0, 20'000), waits(1, 20'000), computes(2, 300, 600'000)}).kind, Kind::none)
      << "a rank with more time is at work";
  std::vector<WatchedRank> ranks = {waits(0, 20'000), waits(1, 20'000)};
  ranks[0].slot.members = 4;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none) << "two of another host";
  ranks[0].slot.members = 2;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::no_sink);
}

TEST(Detector, TheDeadAndThoseThatLeaveAreNotBlamed) {
  std::vector<WatchedRank> ranks = {waits(0, 5'200), computes(1, 90'000), computes(2, 90'000)};
  ranks[1].ended = true;
  ranks[2].slot.left = true;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
  ranks[0] = waits(0, 10'001, 1);
  ranks[0].slot.members = 3;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::no_sink) << "who waits for the dead waits in vain";
}

// Of the first steps, which may take 600 s: what it did in a step so far says what the others may need.
WatchedRank first(WatchedRank one, int role = 0) {
  one.slot.deadline_ns = 600'000 * ms;
  one.slot.usual_ns = 0;
  one.slot.alone_ns = 30'000 * ms;
  one.slot.role = role;
  one.slot.members = 3;
  return one;
}

TEST(Detector, OfTheFirstStepsTheOneThatAllOthersWaitFor) {
  const HangVerdict verdict =
      verdict_on({first(waits(0, 31'000)), first(computes(1, 30'100)), first(waits(2, 31'000))});
  EXPECT_EQ(verdict.kind, Kind::culprit);
  EXPECT_EQ(verdict.index, 1u);
  EXPECT_EQ(verdict.sentence,
            "rank 1 (host a) hangs: step 9 for 30.1 s, others needed 10 ms; it waits for nobody");
  EXPECT_EQ(verdict_on({first(waits(0, 31'000)), first(computes(1, 29'900)), first(waits(2, 31'000))}).kind,
            Kind::none);
  EXPECT_THAT(
      verdict_on({first(waits(0, 31'000)), stopped(first(computes(1, 30'100))), first(waits(2, 31'000))})
          .sentence,
      HasSubstr("others needed 10 ms; it is stopped"));
  EXPECT_THAT(
      verdict_on({first(waits(0, 31'000)), first(waits(1, 31'000, 0, 30'100)), first(waits(2, 31'000))})
          .sentence,
      HasSubstr("has not looked for 30.1 s"));
}

TEST(Detector, OfTheFirstStepsTenTimesWhatTheSlowestOtherNeeded) {
  WatchedRank slowest = first(waits(0, 70'000));
  slowest.slot.wait_begun_ns = slowest.slot.begun_ns + 6'000 * ms;
  const auto verdict = [&](std::int64_t for_ms) {
    return verdict_on({slowest, first(computes(1, for_ms)), first(waits(2, 70'000))}).kind;
  };
  EXPECT_EQ(verdict(59'900), Kind::none);
  EXPECT_EQ(verdict(60'100), Kind::culprit);
}

TEST(Detector, OfTheFirstStepsNobodyIsBlamedWhereOthersMayBeAtWork) {
  const WatchedRank alone = first(computes(1, 40'000)), other = first(waits(0, 40'000));
  const auto verdict = [&](const WatchedRank& third) { return verdict_on({other, alone, third}).kind; };
  EXPECT_EQ(verdict(first(waits(2, 40'000))), Kind::culprit);
  EXPECT_EQ(verdict(first(waits(2, 40'000), 1)), Kind::culprit) << "one that does the same is enough";
  EXPECT_EQ(verdict(first(computes(2, 40'000))), Kind::none);
  EXPECT_EQ(verdict(stopped(first(waits(2, 40'000)))), Kind::none);
  EXPECT_EQ(verdict_on({other, alone}).kind, Kind::none) << "one is out of sight";
  EXPECT_EQ(verdict_on({first(waits(0, 40'000), 1), alone, first(waits(2, 40'000), 2)}).kind, Kind::none)
      << "nobody does the same work";
  EXPECT_EQ(
      verdict_on({first(waits(0, 40'000), -1), first(computes(1, 40'000), -1), first(waits(2, 40'000), -1)})
          .kind,
      Kind::none);
  WatchedRank elsewhere = first(waits(2, 40'000));
  elsewhere.slot.step = 8;
  EXPECT_EQ(verdict(elsewhere), Kind::none);
  WatchedRank spare = waits(2, 40'000);
  spare.slot.phase = Phase::spare;
  EXPECT_EQ(verdict(spare), Kind::culprit);
}

// Of a run of five.
std::vector<WatchedRank> three_wait_for(const WatchedRank& one, const WatchedRank& other) {
  std::vector<WatchedRank> ranks = {first(waits(0, 40'000)), one, first(waits(2, 40'000)), other,
                                    first(waits(4, 40'000))};
  for (WatchedRank& rank : ranks) rank.slot.members = 5;
  return ranks;
}

TEST(Detector, OfTheFirstStepsSeveralThatMostOthersWaitFor) {
  const HangVerdict verdict =
      verdict_on(three_wait_for(first(computes(1, 39'000)), stopped(first(computes(3, 39'500)))));
  ASSERT_EQ(verdict.kind, Kind::culprit);
  EXPECT_EQ(verdict.index, 1u);
  EXPECT_EQ(verdict.sentence,
            "rank 1 (host a) hangs: step 9 for 39.0 s, others needed 10 ms; it waits for nobody");
  ASSERT_EQ(verdict.others.size(), 1u);
  EXPECT_EQ(verdict.others[0].index, 3u);
  EXPECT_EQ(verdict.others[0].sentence,
            "rank 3 (host a) hangs: step 9 for 39.5 s, others needed 10 ms; it is stopped");
}

TEST(Detector, OfTheFirstStepsSeveralOnlyWhereAllHaveHadTheirTime) {
  const WatchedRank hangs = first(computes(1, 39'000));
  const auto verdict = [&](const WatchedRank& other) {
    return verdict_on(three_wait_for(hangs, other)).kind;
  };
  EXPECT_EQ(verdict(first(computes(3, 30'100))), Kind::culprit);
  EXPECT_EQ(verdict(first(computes(3, 29'900))), Kind::none)
      << "it may be at work, and the first wait for it";
  EXPECT_EQ(verdict(first(computes(3, 39'000), 1)), Kind::none) << "the only one that does such work";
  WatchedRank learned = first(computes(3, 39'000));
  learned.slot.alone_ns = 0;
  EXPECT_EQ(verdict(learned), Kind::none) << "it has a time of its own";
  WatchedRank looks = first(waits(3, 39'000));
  EXPECT_EQ(verdict(looks), Kind::culprit) << "then it is one";
  EXPECT_TRUE(verdict_on(three_wait_for(hangs, looks)).others.empty());
}

TEST(Detector, OfTheFirstStepsTheMostAreNotBlamedByTheFew) {
  std::vector<WatchedRank> ranks = three_wait_for(first(computes(1, 39'000)), first(computes(3, 39'000)));
  EXPECT_EQ(verdict_on(ranks).others.size(), 1u);
  ranks[4] = first(computes(4, 39'000));
  ranks[4].slot.members = 5;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none) << "three are at work, and two have come through";
  ranks.pop_back();
  for (WatchedRank& rank : ranks) rank.slot.members = 4;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none) << "two and two";
}

TEST(Detector, OfTheFirstStepsTheOtherOneAlsoWhenTheFirstHasEnded) {
  std::vector<WatchedRank> ranks = three_wait_for(first(computes(1, 39'000)), first(computes(3, 39'000)));
  ranks[1].ended = true;
  const HangVerdict verdict = verdict_on(ranks);
  EXPECT_EQ(verdict.index, 3u);
  EXPECT_TRUE(verdict.others.empty());
  for (std::size_t each : {0u, 2u, 3u, 4u}) ranks[each].slot.epoch = 1;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none)
      << "it was of the epoch before: one of this one is out of sight";
}

TEST(Detector, OfTheFirstStepsWhoHasJustBegunToComputeHasItsTime) {
  WatchedRank late = first(computes(1, 90'000));
  late.slot.beat_ns = now_ns - 20'000 * ms;  // it waited for somebody until then
  const std::vector<WatchedRank> ranks = {first(waits(0, 90'000)), late, first(waits(2, 90'000))};
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
}

// Rank 0 of the first stage waits; rank 1 is the only one of the second.
std::vector<WatchedRank> two_stages(const WatchedRank& waiting, const WatchedRank& alone) {
  std::vector<WatchedRank> ranks = {first(waiting, 0), first(alone, 1)};
  for (WatchedRank& rank : ranks) rank.slot.members = 2;
  return ranks;
}

TEST(Detector, OfTheFirstStepsTheOnlyOneOfItsStageByWhatItNeededBefore) {
  const auto verdict = [](std::int64_t for_ms, std::int64_t longest_ms) {
    std::vector<WatchedRank> ranks = two_stages(waits(0, 400'000), computes(1, for_ms));
    ranks[1].slot.longest_ns = longest_ms * ms;
    return verdict_on(ranks);
  };
  EXPECT_EQ(verdict(400'000, 0).kind, Kind::none) << "it never did it before";
  EXPECT_EQ(verdict(29'900, 250).kind, Kind::none);
  EXPECT_EQ(verdict(30'100, 250).index, 1u);
  EXPECT_EQ(verdict(30'100, 250).sentence,
            "rank 1 (host a) hangs: step 9 for 30.1 s, it needed 250 ms before; it waits for nobody");
  EXPECT_EQ(verdict(69'900, 7'000).kind, Kind::none);
  EXPECT_EQ(verdict(70'100, 7'000).kind, Kind::culprit);
}

TEST(Detector, OfTheFirstStepsNobodyWhereNobodyKnowsWhoAllAre) {
  std::vector<WatchedRank> ranks = two_stages(waits(0, 400'000), computes(1, 400'000));
  ranks[0].slot.wait_patience_ns = 300'000 * ms;
  ranks[1].slot.longest_ns = 250 * ms;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::culprit);
  ranks[0].slot.members = 3;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none) << "one is out of sight";
  ranks[0].slot.members = 2;
  ranks[1].slot.role = -1;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
}

TEST(Detector, OfTheFirstStepsAStepThatIsLongForAllIsLongForTheOnlyOneOfItsStage) {
  const auto verdict = [](std::int64_t for_ms, std::uint64_t step_of_other) {
    std::vector<WatchedRank> ranks = two_stages(waits(0, 400'000), computes(1, for_ms));
    ranks[0].slot.wait_begun_ns = ranks[0].slot.begun_ns + 6'000 * ms;
    ranks[0].slot.step = step_of_other;
    ranks[1].slot.longest_ns = 250 * ms;
    return verdict_on(ranks).kind;
  };
  EXPECT_EQ(verdict(59'900, 9), Kind::none);
  EXPECT_EQ(verdict(60'100, 9), Kind::culprit);
  EXPECT_EQ(verdict(30'100, 8), Kind::culprit) << "of another step it says nothing";
}

TEST(Detector, OfTheFirstStepsTheOnlyOneOfItsStageWhenTheOthersAreAboutToGiveUp) {
  const auto verdict = [](std::int64_t waits_ms, std::int64_t computes_ms,
                          std::int64_t patience_ms = 300'000) {
    std::vector<WatchedRank> ranks = two_stages(waits(0, waits_ms), computes(1, computes_ms));
    ranks[0].slot.wait_begun_ns = ranks[0].slot.begun_ns;
    ranks[0].slot.wait_patience_ns = patience_ms * ms;
    return verdict_on(ranks);
  };
  EXPECT_EQ(verdict(271'000, 269'900).kind, Kind::none) << "it was at work since";
  EXPECT_EQ(verdict(269'900, 271'000).kind, Kind::none) << "they have more patience";
  EXPECT_EQ(verdict(270'100, 270'100).index, 1u);
  EXPECT_EQ(verdict(270'100, 270'100).sentence,
            "rank 1 (host a) hangs: step 9 for 270 s, others wait 300 s at most; it waits for nobody");
  EXPECT_EQ(verdict(29'900, 29'900, 31'000).kind, Kind::none) << "a short patience makes nobody hang sooner";
  EXPECT_EQ(verdict(30'100, 30'100, 31'000).kind, Kind::culprit);
  EXPECT_EQ(verdict(31'000, 31'000, 29'000).kind, Kind::none)
      << "they give the step up, and the rank may come back";
  EXPECT_EQ(verdict(599'000, 599'000, 0).kind, Kind::none) << "not known";
}

TEST(Detector, OfTheFirstStepsTheLeastPatienceCounts) {
  std::vector<WatchedRank> ranks = {first(waits(0, 100'000), 0), first(computes(1, 95'000), 1),
                                    first(waits(2, 100'000), 0)};
  ranks[0].slot.wait_patience_ns = 3'600'000 * ms;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
  ranks[2].slot.wait_patience_ns = 100'000 * ms;
  EXPECT_EQ(verdict_on(ranks).index, 1u);
  ranks[2].slot.step = 10;
  EXPECT_EQ(verdict_on(ranks).index, 1u) << "it waits in the next step";
  ranks[2].slot.phase = Phase::recovery;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none) << "they have given up, and the rank may come back";
  ranks[2].slot.phase = Phase::evaluation;
  EXPECT_EQ(verdict_on(ranks).index, 1u);
  ranks[2].slot.epoch = 1;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
}

TEST(Detector, OfTheFirstStepsTheOnlyOneOfItsStageThatIsStopped) {
  const std::vector<WatchedRank> ranks = two_stages(waits(0, 40'000), stopped(computes(1, 30'100)));
  EXPECT_EQ(verdict_on(ranks).index, 1u);
  EXPECT_EQ(verdict_on(ranks).sentence,
            "rank 1 (host a) hangs: step 9 for 30.1 s, others wait for it; it is stopped");
  EXPECT_EQ(verdict_on(two_stages(waits(0, 40'000), stopped(computes(1, 29'900)))).kind, Kind::none);
  EXPECT_EQ(verdict_on(two_stages(computes(0, 40'000), stopped(computes(1, 30'100)))).kind, Kind::none)
      << "nobody waits for it";
}

TEST(Detector, OfTheFirstStepsOneThatBeginsSpansIsOnlySlow) {
  std::vector<WatchedRank> ranks = two_stages(waits(0, 400'000), computes(1, 400'000));
  ranks[0].slot.wait_patience_ns = 300'000 * ms;
  for (const std::int64_t longest_ms : {0, 250}) {
    ranks[1].slot.longest_ns = longest_ms * ms;
    ranks[1].worked_ns = now_ns - 29'900 * ms;
    EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
    ranks[1].worked_ns = now_ns - 270'100 * ms;
    EXPECT_EQ(verdict_on(ranks).kind, Kind::culprit);
  }
}

TEST(Detector, OfTheFirstStepsARankForWhichNobodyWaitsHasTheCeiling) {
  WatchedRank one = first(computes(0, 599'000));
  one.slot.members = 1;
  one.slot.longest_ns = 250 * ms;
  EXPECT_EQ(verdict_on({one}).kind, Kind::none);
  EXPECT_EQ(verdict_on({stopped(one)}).kind, Kind::none);
}

TEST(Detector, WhatWasBeforeThenIsNoEvidence) {
  std::vector<WatchedRank> ranks = {waits(0, 5'300), computes(1, 5'200), waits(2, 5'300)};
  ranks[1].anew_ns = now_ns - 4'900 * ms;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
  ranks[1].anew_ns = now_ns - 5'100 * ms;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::culprit);
  ranks = {first(waits(0, 90'000)), first(computes(1, 90'000)), first(waits(2, 90'000))};
  for (WatchedRank& rank : ranks) rank.anew_ns = now_ns - 29'900 * ms;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none);
  ranks[0].slot.wait_begun_ns = ranks[0].slot.begun_ns + 60'000 * ms;
  for (WatchedRank& rank : ranks) rank.anew_ns = now_ns - 31'000 * ms;
  EXPECT_EQ(verdict_on(ranks).kind, Kind::none) << "the others' time counts as a whole";
}

TEST(Detector, ALookAtAllIsWorthItWhereThereMayBeAVerdict) {
  EXPECT_FALSE(may_hang(computes(0, 4'900), now_ns));
  EXPECT_TRUE(may_hang(computes(0, 5'100), now_ns));
  EXPECT_FALSE(may_hang(first(computes(0, 29'900)), now_ns));
  EXPECT_TRUE(may_hang(first(computes(0, 30'100)), now_ns));
  EXPECT_FALSE(may_hang(first(waits(0, 90'000)), now_ns)) << "it looks";
}

TEST(Detector, ASpareMayWaitForEver) {
  WatchedRank spare = waits(3, 90'000'000);
  spare.slot.phase = Phase::spare;
  spare.slot.usual_ns = 0;
  EXPECT_EQ(verdict_on({computes(0, 10), spare}).kind, Kind::none);
  EXPECT_EQ(verdict_on({waits(0, 10'100, 1), waits(1, 10'100, 0), spare}).kind, Kind::no_sink);
  spare.slot.wait_begun_ns = 0;
  spare.slot.begun_ns = now_ns - 90'000 * ms;
  spare.slot.beat_ns = now_ns - 5'100 * ms;
  const HangVerdict verdict = verdict_on({computes(0, 10), spare});
  EXPECT_EQ(verdict.index, 1u);
  EXPECT_EQ(
      verdict.sentence,
      "rank 3 (host a) hangs: spare, step 9 for 90.0 s, 5.0 s are the limit; no sign of life for 5.1 s");
}

TEST(Detector, PhasesWithALimitOfTheirOwn) {
  WatchedRank recovers = computes(1, 2'100, 2'000);
  recovers.slot.phase = Phase::recovery;
  recovers.slot.usual_ns = 0;
  const HangVerdict verdict = verdict_on({waits(0, 2'100), recovers});
  EXPECT_EQ(verdict.sentence,
            "rank 1 (host a) hangs: recovery, step 9 for 2.1 s, 2.0 s are the limit; it waits for nobody");
  EXPECT_EQ(verdict_on({computes(0, 1'000'000, 0)}).kind, Kind::none) << "0: no limit";
}

TEST(Detector, NamesTheRankOfAnotherHost) {
  WatchedRank distant = stopped(computes(5, 6'000));
  distant.host = "b";
  distant.own_host = false;
  const HangVerdict verdict = verdict_on({waits(0, 6'000), distant});
  EXPECT_EQ(verdict.index, 1u);
  EXPECT_THAT(verdict.sentence, HasSubstr("rank 5 (host b) hangs"));
}

TEST(Detector, EverySentenceFitsOnTheBoard) {
  WatchedRank one = waits(1'234, 599'999, 4'321, 599'000);
  one.host = std::string(64, 'h');
  one.slot.wait_operation = std::string(31, 'o');
  one.slot.wait_number = ~0u;
  one.slot.step = 123'456'789'012;
  EXPECT_LT(verdict_on({one}).sentence.size(), board_text_bytes + 40);
}

}  // namespace
}  // namespace holdfast
