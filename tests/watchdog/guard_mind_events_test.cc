// Tests what a guard makes of deaths, of its own lateness, of processes that do not die and of other hosts,
// and when it may leave, on a clock that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/watchdog/guard_mind_host.h"
#include "watchdog/guard_mind.h"

namespace holdfast::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;
using testing::SizeIs;

constexpr std::uint64_t gibibyte = 1'024 * MindHost::mebibyte;

TEST(GuardMind, ADeathGivesTheOthersTheirTimeAnew) {
  MindHost host(3);
  for (const int each : {1, 2}) host.computes(each, 1'500);
  host.stops(2);
  host.pass(225);
  host.dies(0);
  host.pass(10'000);
  ASSERT_THAT(host.killed(), ElementsAre(2, 1));
  EXPECT_THAT(host.texts(GuardAction::Kind::take_flight)[0], "rank 0 (host a) died");
  EXPECT_EQ(host.killed_ms(2), 1'550) << "it is stopped, which the death does not excuse";
  EXPECT_EQ(host.killed_ms(1), 1'575 + 1'500 + 2 * tick_ms) << "after the end of the second";
}

TEST(GuardMind, ADeathBetweenTwoLooksMakesThemTwoFirstOnes) {
  MindHost host(3);
  host.waits(0, for_ever_ms);
  host.computes(1, 100);
  host.stops(1);
  host.pass(125);
  host.dies(2);
  host.tick();
  EXPECT_THAT(host.killed(), IsEmpty());
  host.tick();
  EXPECT_THAT(host.killed(), ElementsAre(1));
}

TEST(GuardMind, TellsOnceOfAllThatDieAtOnce) {
  MindHost host(4);
  host.pass(1'000);
  host.dies(1);
  host.dies(2);
  host.slot(3).left = true;
  host.dies(3);
  host.pass(1'000);
  EXPECT_THAT(host.actions(), ElementsAre(GuardAction{.kind = GuardAction::Kind::take_flight,
                                                      .text = "rank 1, rank 2 (host a) died"}));
}

TEST(GuardMind, TellsHowTheyDiedAsFarAsItIsKnown) {
  const ProcessEnd killed = {.killed = true, .code = 9}, left = {.killed = false, .code = 3};
  MindHost host(6);
  host.pass(100);
  host.slot(0).step = 12;
  host.slot(2).step = 12;
  host.slot(0).phase = Phase::step;
  host.slot(2).phase = Phase::save;
  host.slot(3).step = 4;
  host.slot(3).phase = Phase::step;
  host.dies(0, killed);
  host.dies(1);
  host.dies(2, left);
  host.dies(3, killed);
  host.slot(4).left = true;
  host.dies(4, left);
  host.pass(1'000);
  const std::string known =
      "rank 0, rank 3 (host a) died: signal 9 (SIGKILL); rank 2 (host a) died: exit code 3";
  using Kind = GuardAction::Kind;
  EXPECT_THAT(
      host.actions(),
      ElementsAre(
          GuardAction{.kind = Kind::take_flight,
                      .text =
                          "rank 0, rank 3 (host a) died: signal 9 (SIGKILL); rank 1 (host a) died; rank 2 "
                          "(host a) died: exit code 3"},
          GuardAction{.kind = Kind::say, .text = known},
          GuardAction{
              .kind = Kind::report_end, .slot = 0, .rank = 0, .text = "signal 9 (SIGKILL)", .step = 11},
          GuardAction{.kind = Kind::report_end, .slot = 2, .rank = 2, .text = "exit code 3", .step = 12},
          GuardAction{
              .kind = Kind::report_end, .slot = 3, .rank = 3, .text = "signal 9 (SIGKILL)", .step = 3}));
}

TEST(GuardMind, NamesTheKernelOfAPluginWhereItCanHaveEndedTheProcess) {
  MindHost host(3);
  const KernelName name = {.op = "add", .implementation = "mine", .digest = "01", .library = "mine.so"};
  for (const int each : {0, 1, 2}) host.slot(each).plugin = name;
  host.pass(100);
  host.dies(0, ProcessEnd{.killed = true, .code = 11});
  host.dies(1, ProcessEnd{.killed = true, .code = 9});
  host.dies(2, ProcessEnd{.killed = false, .code = 3});
  host.pass(100);
  EXPECT_THAT(host.texts(GuardAction::Kind::report_end),
              ElementsAre("signal 11 (SIGSEGV), while it ran kernel mine of add, of the plug-in mine.so",
                          "signal 9 (SIGKILL)", "exit code 3"));
  std::vector<KernelFault> faults;
  for (const GuardAction& action : host.actions()) {
    if (action.kind == GuardAction::Kind::judge_kernel) faults.push_back(action.fault);
  }
  const auto fault = [&](int rank, KernelEnd how) {
    return KernelFault{.kernel = name, .how = how, .rank = rank, .host = "a", .step = 8};
  };
  EXPECT_THAT(faults,
              ElementsAre(fault(0, KernelEnd::crash), fault(1, KernelEnd::other), fault(2, KernelEnd::other)))
      << "of each it is said, because those that go on wait for it";
}

TEST(GuardMind, JudgesAKernelThatHangsBeforeItsProcessIsEnded) {
  using Kind = GuardAction::Kind;
  MindHost host(3);
  host.waits(0, for_ever_ms);
  for (const int each : {1, 2}) {
    host.slot(each).plugin = {.op = "add", .implementation = "mine", .digest = "01", .library = "mine.so"};
    host.computes(each, each == 1 ? 100 : 5'000);
  }
  host.stops(2);
  host.pass(12'000);
  ASSERT_THAT(host.killed(), ElementsAre(1, 2));
  std::vector<std::pair<int, KernelEnd>> judged;
  bool is_before = true;
  for (const GuardAction& action : host.actions()) {
    if (action.kind == Kind::judge_kernel) judged.emplace_back(action.rank, action.fault.how);
    if (action.kind == Kind::kill && judged.empty()) is_before = false;
  }
  EXPECT_TRUE(is_before);
  EXPECT_THAT(judged, ElementsAre(std::pair(1, KernelEnd::hang), std::pair(2, KernelEnd::other)))
      << "one that somebody has stopped does not hang in it";
}

TEST(GuardMind, OfTheOneThatItKillsItSaysNoSecondTime) {
  MindHost host(2);
  host.waits(0, for_ever_ms);
  host.computes(1, 100);
  host.rank(1).end = ProcessEnd{.killed = true, .code = 9};
  host.pass(1'000);
  ASSERT_THAT(host.killed(), ElementsAre(1));
  EXPECT_THAT(host.texts(GuardAction::Kind::say), SizeIs(1)) << "that it hangs";
  EXPECT_THAT(host.texts(GuardAction::Kind::report_end), IsEmpty());
}

TEST(GuardMind, TellsOfSparesThatAreLost) {
  MindHost host(4);
  for (const int each : {1, 2, 3}) host.slot(each).phase = Phase::spare;
  host.pass(100);
  host.dies(0);
  host.slot(1).left = true;
  host.dies(1);
  host.pass(100);
  EXPECT_THAT(host.texts(GuardAction::Kind::post_lost_spares), IsEmpty())
      << "one was active, one went by itself";
  host.dies(2);
  host.dies(3);
  host.pass(100);
  EXPECT_THAT(host.texts(GuardAction::Kind::post_lost_spares),
              ElementsAre("rank 2 (host a), rank 3 (host a)"));
  WatchedRank distant = {.slot = {}, .host = "b"};
  distant.slot.launched_rank = 7;
  EXPECT_EQ(
      GuardMind::post_lost_spares({{distant}}),
      GuardActions({{.kind = GuardAction::Kind::post_lost_spares, .rank = 7, .text = "rank 7 (host b)"}}));
  EXPECT_THAT(GuardMind::post_lost_spares({}), IsEmpty());
}

TEST(GuardMind, ALateTickIsNoEvidence) {
  struct Case {
    std::int64_t passed_ms, wall_passed_ms;
    bool late;
  };
  for (const Case& each : {Case{1'025, 1'025, false}, Case{1'026, 1'025, true}, Case{25, 1'026, true},
                           Case{3'600'000, 25, true}, Case{25, 3'600'000, true}}) {
    MindHost host(3);
    host.waits(0, for_ever_ms);
    for (const int rank : {1, 2}) host.computes(rank, 1'000);
    host.stops(2);
    host.pass(800);
    host.tick(each.passed_ms, each.wall_passed_ms);
    const std::int64_t late_ms = host.now_ms;
    host.pass(10'000);
    EXPECT_THAT(host.killed(), SizeIs(2));
    const std::int64_t first_ms = std::min(host.killed_ms(1), host.killed_ms(2));
    if (each.late) {
      EXPECT_EQ(first_ms, late_ms + 1'000 + 2 * tick_ms);
    } else {
      EXPECT_EQ(first_ms, late_ms + tick_ms);
    }
  }
}

TEST(GuardMind, TheFirstTickIsNotLate) {
  GuardMind mind({}, "a", 1);
  EXPECT_FALSE(mind.begin_tick(5'000'000 * ms, 5'000'000'000));
  EXPECT_FALSE(mind.begin_tick(5'000'025 * ms, 5'000'025'000));
  EXPECT_TRUE(mind.begin_tick(5'002'000 * ms, 5'002'000'000)) << "the network must hear of it, too";
}

TEST(GuardMind, TicksThatAreLateAgainAndAgainAreToldLessAndLess) {
  MindHost host(1);
  host.tick(5'000);
  host.pass(70'000);  // a single one is forgotten
  host.tick(5'000);
  host.tick(2'025);
  EXPECT_THAT(host.texts(GuardAction::Kind::say), IsEmpty());
  host.tick(2'025);
  ASSERT_THAT(host.texts(GuardAction::Kind::say), SizeIs(1));
  EXPECT_THAT(host.texts(GuardAction::Kind::say)[0],
              HasSubstr("the guard came late 3 times in 9 s, by up to 5.0 s"));
  std::vector<std::int64_t> told_ms;
  for (int tick = 0; tick < 7'200; ++tick) {
    const std::size_t before = host.texts(GuardAction::Kind::say).size();
    host.tick(2'000);
    if (host.texts(GuardAction::Kind::say).size() > before) told_ms.push_back(host.now_ms);
  }
  ASSERT_THAT(told_ms, SizeIs(AllOf(Gt(5U), Lt(10U)))) << "in four hours";
  for (std::size_t i = 1; i + 1 < told_ms.size(); ++i)
    EXPECT_GE(told_ms[i + 1] - told_ms[i], told_ms[i] - told_ms[i - 1]);
}

TEST(GuardMind, ALateTickIsNoSecondLook) {
  MindHost host(2);
  host.waits(0, for_ever_ms);
  host.computes(1, 500);
  host.pass(525);
  host.tick(5'000);
  EXPECT_THAT(host.done, IsEmpty());
  host.pass(525);
  EXPECT_THAT(host.done, IsEmpty());
  host.tick();
  EXPECT_THAT(host.killed(), ElementsAre(1));
}

TEST(GuardMind, AProcessThatDoesNotDieEndsTheHost) {
  MindHost host(4);
  host.slot(3).left = true;
  host.dies(3);
  host.tick();
  host.waits(0, for_ever_ms);
  host.computes(1, 100);
  host.rank(1).held = true;
  host.pass(10'150);
  EXPECT_THAT(host.killed(), ElementsAre(1));
  host.tick();  // 1 MiB is worth a millisecond
  EXPECT_THAT(host.killed(), ElementsAre(1, 0, 1, 2));
  const std::string sentence = "process 101 (host a) does not die of SIGKILL: the system holds it";
  EXPECT_THAT(host.texts(GuardAction::Kind::say),
              ElementsAre(testing::_, sentence + "; all ranks of this host are ended"));
  EXPECT_THAT(host.texts(GuardAction::Kind::post_hang), ElementsAre(testing::_, sentence));
  EXPECT_EQ(host.done.back().action,
            (GuardAction{.kind = GuardAction::Kind::report, .rank = -1, .text = sentence}));
  host.pass(600'000);
  EXPECT_THAT(host.texts(GuardAction::Kind::say), SizeIs(2)) << "once";
}

TEST(GuardMind, AKilledProcessHasTimeForTheMemoryThatItHad) {
  struct Case {
    std::uint64_t before, after;
    std::int64_t patience_ms;
  };
  for (const Case& each : {Case{4 * gibibyte, gibibyte, 14'000}, Case{4 * gibibyte, 0, 60'000},
                           Case{100 * gibibyte, 0, 110'000}, Case{0, 0, 10'000}}) {
    MindHost host(2);
    host.computes(1, 100);
    host.rank(1).held = true;
    host.rank(1).process.resident_bytes = each.before;
    host.pass(150);
    ASSERT_THAT(host.killed(), ElementsAre(1));
    host.rank(1).process.resident_bytes = each.after;
    host.pass(each.patience_ms - tick_ms);
    EXPECT_THAT(host.killed(), ElementsAre(1));
    host.tick();
    EXPECT_THAT(host.killed(), ElementsAre(1, 0, 1));
  }
}

TEST(GuardMind, ASlotThatIsTakenAgainIsAnother) {
  MindHost host(3);
  host.computes(0, 1'000);
  host.computes(1, 100);
  host.rank(1).held = true;
  host.pass(500);
  ASSERT_THAT(host.killed(), ElementsAre(1));
  host.rank(1) = {.slot = host.slot(1)};
  host.slot(1).started_ticks = 8;  // it came under the same number
  host.computes(1, 2'000);
  host.done.clear();
  host.pass(1'025);
  EXPECT_EQ(host.killed_ms(0), 1'050) << "nobody is dying any more";
  host.pass(10'000);
  EXPECT_EQ(host.killed_ms(1), 1'075 + 2'000 + 2 * tick_ms);
  EXPECT_THAT(host.killed(), ElementsAre(0, 1));
}

WatchedRank distant_rank(int rank, std::int64_t begun_ns, std::int64_t deadline_ms) {
  WatchedRank one = {.slot = {}, .host = "b", .own_host = false};
  one.slot.process = 200 + rank;
  one.slot.launched_rank = rank;
  one.slot.phase = Phase::step;
  one.slot.begun_ns = one.slot.heartbeat_ns = begun_ns;
  one.slot.deadline_ns = deadline_ms * ms;
  return one;
}

TEST(GuardMind, OneThatHangsOnAnotherHostIsLeftToItsGuard) {
  MindHost host(2);
  for (int each = 0; each < 2; ++each) host.waits(each, 100);
  host.distant = {distant_rank(2, host.now_ns(), 100)};
  host.pass(60'000);
  EXPECT_THAT(host.done, IsEmpty()) << "and there is no ring, for that one does not wait";
  host.distant[0].ended = true;
  host.pass(500);
  EXPECT_THAT(host.killed(), ElementsAre(0, 1)) << "now there is";
}

TEST(GuardMind, RanksOfOtherHostsThatWaitAreEvidence) {
  MindHost host(2);
  host.waits(1, for_ever_ms);
  host.rank(1).looks = false;
  host.pass(5'000);
  EXPECT_THAT(host.done, IsEmpty()) << "it has its time, and nobody misses it";
  EXPECT_LE(host.distant_looks, 10) << "twice a second while nobody may hang";
  host.distant = {distant_rank(2, host.now_ns(), 1'000)};
  host.distant[0].slot.wait_begun_ns = host.now_ns();
  host.pass(1'000, [&] { host.distant[0].slot.heartbeat_ns = host.now_ns(); });
  EXPECT_THAT(host.done, IsEmpty());
  host.pass(600, [&] { host.distant[0].slot.heartbeat_ns = host.now_ns(); });
  EXPECT_THAT(host.killed(), ElementsAre(1));
}

TEST(GuardMind, ALateTickGivesRanksOfOtherHostsTheirTimeAnew) {
  MindHost host(1);
  host.waits(0, for_ever_ms);
  host.rank(0).looks = false;
  host.distant = {distant_rank(2, host.now_ns(), 5'000)};
  host.distant[0].slot.wait_begun_ns = host.now_ns();
  const auto looks = [&] { host.distant[0].slot.heartbeat_ns = host.now_ns(); };
  host.pass(4'000, looks);
  host.tick(3'000);
  host.pass(5'000, looks);
  EXPECT_THAT(host.done, IsEmpty());
  host.pass(600, looks);
  EXPECT_THAT(host.killed(), ElementsAre(0));
}

TEST(GuardMind, AfterALateTickRanksOfOtherHostsAreNoEvidenceEitherWhileOwnOnesAreOverTheirTime) {
  MindHost host(2);
  host.waits(0, 100);
  host.slot(0).wait_peer = 5;
  host.waits(1, for_ever_ms);
  host.rank(1).looks = false;
  host.distant = {distant_rank(2, host.now_ns(), 5'000)};
  host.distant[0].slot.wait_begun_ns = host.now_ns();
  host.distant[0].slot.wait_peer = 1;
  const auto looks = [&] { host.distant[0].slot.heartbeat_ns = host.now_ns(); };
  host.pass(4'000, looks);
  host.tick(3'000);
  host.pass(5'000, looks);
  EXPECT_THAT(host.done, IsEmpty());
  host.pass(100, looks);
  EXPECT_THAT(host.killed(), ElementsAre(1));
}

TEST(GuardMind, LeavesWithTheLastRank) {
  MindHost host(2);
  host.pass(1'000);
  host.slot(0).left = true;
  host.dies(0);
  host.tick();
  EXPECT_FALSE(host.mind.nobody_left());
  EXPECT_FALSE(host.mind.may_leave(host.now_ns()));
  host.dies(1);
  host.tick();
  EXPECT_TRUE(host.mind.nobody_left());
  EXPECT_TRUE(host.mind.may_leave(host.now_ns())) << "nobody else has to hear of it";
}

TEST(GuardMind, TellsOtherHostsOfADeathBeforeItLeaves) {
  MindHost host(2);
  host.has_peers = true;
  host.pass(1'000);
  host.dies(0);
  host.tick();
  host.pass(400);
  host.slot(1).left = true;
  host.dies(1);
  host.tick();
  EXPECT_TRUE(host.mind.nobody_left());
  EXPECT_FALSE(host.mind.may_leave(host.now_ns()));
  EXPECT_FALSE(host.mind.may_leave(host.now_ns() + 75 * ms)) << "half a second after the death";
  EXPECT_TRUE(host.mind.may_leave(host.now_ns() + 76 * ms));
}

}  // namespace
}  // namespace holdfast::test
