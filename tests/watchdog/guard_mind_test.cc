// Tests whom a guard ends because it hangs, when, whom it leaves alone, and what it says, on a clock that the
// test moves. That a guard sees and ends real processes: guard_test.cc, guard_hang_test.cc.
#include "watchdog/guard_mind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/watchdog/guard_mind_host.h"
#include "watchdog/deadlines.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr std::uint64_t mebibyte = MindHost::mebibyte;

TEST(GuardMind, EndsTheOneThatHangs) {
  MindHost host(4);
  for (const int innocent : {0, 1, 3}) host.waits(innocent, 50);
  host.computes(2, 100);
  host.pass(125);
  EXPECT_THAT(host.done, IsEmpty());
  host.tick();
  const std::string sentence =
      "rank 2 (host a) hangs: step 9 for 150 ms, 100 ms are the limit; it waits for nobody";
  EXPECT_THAT(host.actions(),
              ElementsAre(GuardAction{.kind = GuardAction::Kind::take_flight, .text = sentence},
                          GuardAction{.kind = GuardAction::Kind::post_hang, .rank = 2, .text = sentence},
                          GuardAction{.kind = GuardAction::Kind::kill, .slot = 2},
                          GuardAction{.kind = GuardAction::Kind::say, .text = sentence + "; it is ended"},
                          GuardAction{.kind = GuardAction::Kind::report, .rank = 2, .text = sentence}));
  host.done.clear();
  for (const int innocent : {0, 1, 3}) host.computes(innocent, for_ever_ms);  // they go on without it
  host.pass(60'000);
  EXPECT_THAT(host.done, IsEmpty()) << "the end of one that was killed is no death";
}

TEST(GuardMind, ASingleLookIsNoEvidence) {
  MindHost host(2);
  host.computes(0, 100);
  host.waits(1, for_ever_ms);
  for (int again = 0; again < 20; ++again) {
    host.pass(125);  // the look that finds it
    host.computes(0, 100);
  }
  EXPECT_THAT(host.done, IsEmpty());
  host.pass(150);
  EXPECT_THAT(host.killed(), ElementsAre(0));
}

TEST(GuardMind, TwoLooksThatFindDifferentOnesAreNoEvidence) {
  MindHost host(3);
  host.waits(2, for_ever_ms);
  for (const int each : {0, 1}) {
    host.slot(each).median_ns = 31 * ms;
    host.computes(each, 100);
  }
  host.slot(1).deadline_ns = 110 * ms;
  host.pass(125);
  host.computes(0, for_ever_ms);
  host.tick();
  EXPECT_THAT(host.done, IsEmpty()) << "now it is the other one";
  host.tick();
  EXPECT_THAT(host.killed(), ElementsAre(1));
}

TEST(GuardMind, OneWithoutADeadlineHasNoLimit) {
  MindHost host(2);
  host.computes(0, 0);
  host.waits(1, for_ever_ms);
  host.pass(600'000);
  EXPECT_THAT(host.done, IsEmpty());
  EXPECT_EQ(host.process_looks, 0) << "nothing of /proc is read while nobody may hang";
  EXPECT_EQ(host.work_looks, 0);
}

TEST(GuardMind, EndsAStoppedOneAlthoughItSaysThatItWaits) {
  MindHost host(3);
  for (int each = 0; each < 3; ++each) host.waits(each, 200);
  host.stops(1);
  host.pass(250);
  ASSERT_THAT(host.killed(), ElementsAre(1));
  EXPECT_THAT(host.texts(GuardAction::Kind::say)[0], HasSubstr("it is stopped"));
}

// Returns a host whose only rank saves, for which it has no less than the ceiling, with a floor of 1 s.
MindHost host_that_saves() {
  MindHost host(1);
  SlotView& slot = host.slot(0);
  host.computes(0, 600'000);
  slot.phase = Phase::save;
  slot.ceiling_ns = slot.deadline_ns;
  slot.floor_ns = 1'000 * ms;
  return host;
}

TEST(GuardMind, HowLongAPhaseMayTakeExcusesNobodyWhoIsStopped) {
  constexpr std::int64_t seen_ms = 1'025, ended_ms = seen_ms + 1'000 + 2 * tick_ms;
  MindHost saves = host_that_saves(), waits = host_that_saves(), reads = host_that_saves();
  waits.slot(0).wait_begun_ns = waits.now_ns();
  reads.slot(0).storage_begun_ns = reads.now_ns();
  for (MindHost* const host : {&saves, &waits, &reads}) {
    host->stops(0);
    host->pass(10'000);
    ASSERT_EQ(host->killed_ms(0), ended_ms);
    EXPECT_THAT(host->texts(GuardAction::Kind::say)[0],
                HasSubstr("it is stopped, which it may be for 1.0 s"));
  }
}

TEST(GuardMind, OneThatIsLetGoOnInTimeHasTheTimeOfItsPhase) {
  MindHost host = host_that_saves();
  for (int again = 0; again < 10; ++again) {
    host.stops(0);
    host.pass(900);
    host.continues(0);
    host.pass(500);
  }
  host.pass(500'000);
  EXPECT_THAT(host.done, IsEmpty());
}

TEST(GuardMind, OneThatWaitsAndLooksIsNotAskedForItsState) {
  MindHost host = host_that_saves();
  host.slot(0).wait_begun_ns = host.now_ns();
  host.rank(0).looks = true;
  host.pass(60'000);
  EXPECT_EQ(host.work_looks, 0);
  EXPECT_EQ(host.process_looks, 0);
}

TEST(GuardMind, EndsAllThatAreStoppedOneAfterTheOther) {
  MindHost host(3);
  for (int each = 0; each < 3; ++each) {
    host.waits(each, 100);
    host.stops(each);
  }
  host.pass(250);
  EXPECT_THAT(host.killed(), ElementsAre(0, 1, 2)) << "a death does not excuse those that are stopped";
  EXPECT_EQ(host.killed_ms(0), 150);
  EXPECT_EQ(host.killed_ms(1), 200);
  EXPECT_EQ(host.killed_ms(2), 250);
  EXPECT_THAT(host.texts(GuardAction::Kind::post_hang), SizeIs(3));
}

TEST(GuardMind, EndsAllThatHangWhereNoTimeIsLearnedYet) {
  MindHost host(5);
  for (int each = 0; each < 5; ++each) each < 3 ? host.waits(each, for_ever_ms) : host.computes(each, 200);
  host.pass(250);
  ASSERT_THAT(host.killed(), ElementsAre(3, 4));
  EXPECT_EQ(host.killed_ms(3), host.killed_ms(4));
  const std::vector<std::string> sentences = host.texts(GuardAction::Kind::post_hang);
  ASSERT_THAT(sentences, SizeIs(2));
  EXPECT_THAT(host.texts(GuardAction::Kind::take_flight), ElementsAre(sentences[0] + "; " + sentences[1]));
  EXPECT_EQ(host.done[3].action.kind, GuardAction::Kind::kill) << "all is told before anybody has gone";
  host.pass(60'000);
  EXPECT_THAT(host.killed(), SizeIs(2));
}

TEST(GuardMind, WhereTimesAreLearnedTheOthersHaveTheirsAnew) {
  MindHost host(5);
  for (int each = 0; each < 5; ++each) {
    each < 3 ? host.waits(each, for_ever_ms) : host.computes(each, each == 3 ? 200 : 210);
    host.slot(each).median_ns = 31 * ms;
  }
  host.pass(2'000);
  EXPECT_THAT(host.killed(), ElementsAre(3, 4));
  EXPECT_EQ(host.killed_ms(3), 250);
  EXPECT_EQ(host.killed_ms(4), 275 + 225 + tick_ms) << "from the death that was seen at 275";
}

TEST(GuardMind, WhileOneDiesNobodyElseIsEnded) {
  MindHost host(3);
  host.waits(0, for_ever_ms);
  for (const int each : {1, 2}) {
    host.computes(each, 100);
    host.slot(each).median_ns = 31 * ms;
  }
  host.rank(1).held = true;
  host.pass(200);
  const int process_looks = host.process_looks;
  host.pass(8'800);
  EXPECT_THAT(host.killed(), ElementsAre(1));
  EXPECT_EQ(host.process_looks, process_looks) << "what /proc says would change nothing";
  host.dies(1);
  const std::int64_t death_ms = host.now_ms + tick_ms;
  host.pass(1'000);
  EXPECT_THAT(host.killed(), ElementsAre(1, 2));
  EXPECT_EQ(host.killed_ms(2), death_ms + 100 + 2 * tick_ms);
}

TEST(GuardMind, OneThatShowsSignsOfLifeIsLeftAlone) {
  for (std::uint64_t SlotView::*const sign :
       {&SlotView::spans_opened, &SlotView::device_ops, &SlotView::moved_bytes}) {
    MindHost host(2);
    host.waits(0, for_ever_ms);
    host.computes(1, 2'000);
    host.slot(1).ceiling_ns = for_ever_ms * ms;
    for (int shown = 0; shown < 40; ++shown) {
      ++(host.slot(1).*sign);
      host.pass(1'500);
    }
    EXPECT_THAT(host.done, IsEmpty());
    host.pass(500);
    EXPECT_THAT(host.killed(), IsEmpty());
    host.pass(75);
    ASSERT_EQ(host.killed_ms(1), 60'000 - 1'475 + 2'000 + 2 * tick_ms);
    EXPECT_THAT(host.texts(GuardAction::Kind::say)[0],
                HasSubstr("step 9 for 60.6 s, 2.0 s are the limit; no sign of life "
                          "for 2.0 s; it waits for nobody; it is ended"));
  }
}

TEST(GuardMind, SignsOfLifeHelpNobodyPastTheCeiling) {
  MindHost host(2);
  host.waits(0, for_ever_ms);
  host.computes(1, 1'500);
  host.slot(1).ceiling_ns = 3'000 * ms;
  host.pass(3'050, [&] { ++host.slot(1).spans_opened; });
  ASSERT_EQ(host.killed_ms(1), 3'050);
  EXPECT_THAT(host.texts(GuardAction::Kind::say)[0],
              HasSubstr("there are signs of life, but 3.0 s are the most"));
  EXPECT_EQ(host.work_looks, 0) << "the board said it already";
}

// Returns when a rank is ended that does this before every tick, with a deadline of 2 s and a ceiling of 9.
std::int64_t end_of_one_that(const std::function<void(ProcessWork&)>& works) {
  MindHost host(2);
  host.waits(0, for_ever_ms);
  host.computes(1, 2'000);
  host.slot(1).ceiling_ns = 9'000 * ms;
  host.pass(20'000, [&] { works(host.rank(1).work); });
  EXPECT_THAT(host.killed(), ElementsAre(1));
  return host.killed_ms(1);
}

TEST(GuardMind, OneThatOnlyBurnsTimeHasNoMoreThanItsDeadline) {
  constexpr std::int64_t at_deadline_ms = 2'050, at_ceiling_ms = 9'050;
  EXPECT_EQ(end_of_one_that([](ProcessWork&) {}), at_deadline_ms) << "a livelock";
  EXPECT_EQ(end_of_one_that([](ProcessWork& work) { ++work.minor_faults; }), at_deadline_ms) << "too few";
  EXPECT_EQ(end_of_one_that([](ProcessWork& work) { work.minor_faults += 4; }), at_ceiling_ms);
  EXPECT_EQ(end_of_one_that([](ProcessWork& work) { ++work.major_faults; }), at_ceiling_ms);
  EXPECT_EQ(end_of_one_that([](ProcessWork& work) { work.resident_bytes += mebibyte; }), at_ceiling_ms);
  EXPECT_EQ(end_of_one_that([](ProcessWork& work) { work.io_bytes += 4'096; }), at_ceiling_ms);
}

TEST(GuardMind, TheFirstStepsAndThoseBesideASaveHaveDeadlinesOfTheirOwn) {
  Deadlines deadlines({.factor = 3, .floor_ns = 50 * ms, .ceiling_ns = 10'000 * ms});
  for (int step = 0; step < 5; ++step) {
    deadlines.took(Phase::step, WorkKind::usual, 100 * ms);
    deadlines.took(Phase::step, WorkKind::first, 600 * ms);
    deadlines.took(Phase::step, WorkKind::beside_save, 200 * ms);
  }
  struct Case {
    WorkKind kind;
    std::int64_t end_ms;
    const char* measure;
  };
  for (const Case& each : {Case{WorkKind::usual, 350, "350 ms, 100 ms are usual;"},
                           Case{WorkKind::first, 1'850, "1.9 s, 600 ms are usual for a first one;"},
                           Case{WorkKind::beside_save, 650, "650 ms, 200 ms are usual beside a save;"}}) {
    MindHost host(2);
    host.waits(0, for_ever_ms);
    host.computes(1, deadlines.of(Phase::step, each.kind) / ms);
    host.slot(1).median_ns = deadlines.usual(Phase::step, each.kind);
    host.slot(1).kind = each.kind;
    host.pass(5'000);
    ASSERT_EQ(host.killed_ms(1), each.end_ms);
    EXPECT_THAT(host.texts(GuardAction::Kind::say)[0], HasSubstr(each.measure));
  }
}

TEST(GuardMind, ThoseThatWaitForStorageAreToldOfOnceAndLeftAlone) {
  MindHost host(3, {.storage_quiet_ms = 300});
  for (int each = 0; each < 3; ++each) {
    host.computes(each, 100);
    host.slot(each).ceiling_ns = 600'000 * ms;
    host.slot(each).storage_what = "training data";
    host.slot(each).storage_begun_ns = host.now_ns();
  }
  host.pass(60'000);
  const std::vector<GuardAction> once = {
      {.kind = GuardAction::Kind::say,
       .text = "ranks 0, 1, 2 (host a) wait for storage for 325 ms (training data): nobody is ended for it "
               "before 600 s"}};
  EXPECT_EQ(host.actions(), once);
  host.slot(1).storage_begun_ns = 0;
  host.computes(1, for_ever_ms);
  host.pass(60'000);
  EXPECT_EQ(host.actions(), once) << "the others still wait";
  for (int each = 0; each < 3; ++each) {
    host.slot(each).storage_begun_ns = 0;
    host.computes(each, for_ever_ms);
  }
  host.pass(1'000);
  host.slot(2).storage_begun_ns = host.now_ns();
  host.pass(1'000);
  EXPECT_THAT(host.texts(GuardAction::Kind::say),
              ElementsAre(once[0].text, StartsWith("rank 2 (host a) waits for storage for 325 ms")));
  host.slot(2).storage_begun_ns = 0;
  host.slot(2).deadline_ns = 100 * ms;
  host.pass(50);
  EXPECT_THAT(host.killed(), ElementsAre(2)) << "no excuse any more";
}

TEST(GuardMind, ASpareMayNotBeSilent) {
  MindHost host(2);
  host.slot(1).phase = Phase::spare;
  host.slot(1).deadline_ns = 5'000 * ms;
  host.rank(1).looks = true;
  host.pass(600'000);
  EXPECT_THAT(host.done, IsEmpty());
  host.rank(1).looks = false;
  host.pass(5'050);
  EXPECT_THAT(host.killed(), ElementsAre(1));
}

TEST(GuardMind, EndsAllWhoWaitForEachOther) {
  MindHost host(3);
  for (int each = 0; each < 3; ++each) host.waits(each, 100);
  host.pass(225);
  EXPECT_THAT(host.done, IsEmpty()) << "twice their time, and a second look";
  host.tick();
  const std::string sentence =
      "all ranks wait for each other: rank 0, step 9, for an all-reduce for 250 ms; rank 1, step 9, for an "
      "all-reduce for 250 ms; and 1 more";
  EXPECT_THAT(host.actions(),
              ElementsAre(GuardAction{.kind = GuardAction::Kind::take_flight, .text = sentence},
                          GuardAction{.kind = GuardAction::Kind::post_hang, .rank = -1, .text = sentence},
                          GuardAction{.kind = GuardAction::Kind::kill, .slot = 0},
                          GuardAction{.kind = GuardAction::Kind::kill, .slot = 1},
                          GuardAction{.kind = GuardAction::Kind::kill, .slot = 2},
                          GuardAction{.kind = GuardAction::Kind::say,
                                      .text = sentence + "; all ranks of this host are ended"},
                          GuardAction{.kind = GuardAction::Kind::report, .rank = -1, .text = sentence}));
}

TEST(GuardMind, EndsAllOfAHostThatHasToLeaveForALostLink) {
  MindHost host(2);
  host.tick();
  host.rank(1).held = true;
  host.leaves_because_of = {"b"};
  host.pass(1'000);
  const std::string sentence =
      "host a and host b do not hear each other, and the other hosts hear both; without host a the others "
      "may "
      "go on";
  EXPECT_THAT(host.actions(),
              ElementsAre(GuardAction{.kind = GuardAction::Kind::take_flight, .text = sentence},
                          GuardAction{.kind = GuardAction::Kind::post_hang, .rank = -1, .text = sentence},
                          GuardAction{.kind = GuardAction::Kind::kill, .slot = 0},
                          GuardAction{.kind = GuardAction::Kind::kill, .slot = 1},
                          GuardAction{.kind = GuardAction::Kind::say,
                                      .text = sentence + "; all ranks of this host are ended"},
                          GuardAction{.kind = GuardAction::Kind::report, .rank = -1, .text = sentence}))
      << "once, though one takes its time to die";
}

TEST(GuardMind, ARingWithoutOneOfTheRunIsNone) {
  MindHost host(3);
  for (int each = 0; each < 3; ++each) {
    host.waits(each, 100);
    host.slot(each).members = 4;
  }
  host.pass(600'000);
  EXPECT_THAT(host.done, IsEmpty()) << "they may wait for the one that nobody sees";
}

}  // namespace
}  // namespace holdfast::test
