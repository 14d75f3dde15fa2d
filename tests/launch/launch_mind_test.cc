// What the launcher decides, as tables, and over random schedules of what happens to its hosts.
#include "runtime/launch/launch_mind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/launch/simulated_launch.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t sec = 1'000'000'000;
const std::vector<LaunchHost> list = {
    {.name = "a", .slots = 2}, {.name = "b", .slots = 2}, {.name = "c", .slots = 2}};
const ScaleUp::Ranks of_three = {{"a", 2}, {"b", 2}, {"c", 2}}, without_c = {{"a", 2}, {"b", 2}};

LaunchMindSettings settings(int least = 2) {
  return {.own_host = "a", .program = "holdfast", .ranks_on = [least](const auto& hosts, int min_ranks) {
            int room = 0;
            for (const LaunchHost& host : hosts) room += host.answers ? host.slots : 0;
            return room >= std::max(min_ranks, least) ? room : 0;
          }};
}

std::vector<std::string> used(const LaunchMind::Choice& choice) {
  std::vector<std::string> names;
  for (const LaunchHost& host : choice.hosts) {
    if (choice.starts && host.answers) names.push_back(host.name);
  }
  return names;
}

class LaunchMindTest : public testing::Test {
 protected:
  LaunchMindTest() { mind.name_hosts(0, list); }

  std::vector<std::string> choose(std::int64_t now_ns,
                                  const std::vector<HostAnswer>& answers = {{0}, {0}, {0}}) {
    mind.heard(now_ns, answers);
    return used(mind.choose(now_ns));
  }
  void begins(std::int64_t now_ns, const ScaleUp::Ranks& ranks) {
    mind.begins(now_ns, ranks, static_cast<int>(2 * ranks.size()), false);
  }
  void trains(std::int64_t now_ns, const ScaleUp::Ranks& ranks) {
    choose(now_ns);
    begins(now_ns, ranks);
    mind.trains(now_ns);
    mind.has(now_ns, ranks);
  }
  static EndedStart failed(ExitCode code, std::vector<UnfitHost> unfit = {}, std::uint64_t step = 0) {
    return {.end = {.record = StartEnd::Record::failed,
                    .code = code,
                    .step_before = step,
                    .step = step,
                    .fault = "it failed"},
            .unfit = std::move(unfit)};
  }

  LaunchMind mind = LaunchMind(settings());
};

TEST_F(LaunchMindTest, WrongInputsOfTheRunEndIt) {
  choose(0);
  begins(0, of_three);
  const RestartDecision decision = mind.ended(sec, failed(ExitCode::config), false);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.code, ExitCode::config);
  EXPECT_EQ(mind.phase(), LaunchPhase::end);
}

TEST_F(LaunchMindTest, WhatEveryHostLacksEndsAFirstStartAndIsWaitedForLater) {
  const std::vector<UnfitHost> unfit = {{"a"}, {"b"}, {"c"}};
  choose(0);
  begins(0, of_three);
  EXPECT_EQ(mind.ended(sec, failed(ExitCode::data, unfit), false).code, ExitCode::data);
  mind = LaunchMind(settings());
  mind.name_hosts(0, list);
  trains(0, of_three);
  EXPECT_TRUE(mind.ended(sec, failed(ExitCode::data, unfit, 5), false).restart);
  EXPECT_THAT(choose(2 * sec), IsEmpty());
  EXPECT_EQ(mind.phase(), LaunchPhase::wait);
  EXPECT_THAT(choose(30 * sec), ElementsAre("a")) << "as few as the run can be";
}

TEST_F(LaunchMindTest, AHostThatSaysItIsUnfitIsLeftOutForAWhile) {
  choose(0);
  begins(0, of_three);
  const RestartDecision decision =
      mind.ended(sec, failed(ExitCode::data, {{.host = "c", .sentence = "no data"}}), false);
  EXPECT_TRUE(decision.restart);
  EXPECT_EQ(decision.delay_ms, 0);
  const std::vector<LaunchNews> news = mind.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].sentence, "host c is left out for 20s: no data");
  ASSERT_TRUE(news[0].excluded.has_value());
  EXPECT_EQ(news[0].excluded->state, HostState::unfit);
  EXPECT_EQ(news[0].excluded->failures, 1);
  EXPECT_THAT(choose(2 * sec), ElementsAre("a", "b"));
  begins(2 * sec, without_c);
  mind.trains(3 * sec);
  mind.has(3 * sec, without_c);
  EXPECT_THAT(mind.candidates(20 * sec), IsEmpty());
  EXPECT_EQ(mind.candidates(40 * sec).size(), 3u);
}

// The ranks that are left are too few: they end with 76, whatever the one that left has said.
TEST_F(LaunchMindTest, AHostThatSaysItIsUnfitIsLeftOutWhereTheOthersAreTooFewWithoutIt) {
  trains(0, without_c);
  EndedStart ended = failed(ExitCode::communication, {{.host = "b", .sentence = "its disk fails"}}, 5);
  ended.died_on = {"b"};
  ended.ended_on = {"a"};
  const RestartDecision decision = mind.ended(sec, ended, false);
  EXPECT_TRUE(decision.restart);
  EXPECT_EQ(decision.delay_ms, 0);
  const std::vector<LaunchNews> news = mind.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].sentence, "host b is left out for 20s: its disk fails");
  EXPECT_EQ(mind.views()[1].failures, 1);
  EXPECT_THAT(choose(2 * sec), ElementsAre("a", "c"));
}

TEST_F(LaunchMindTest, AHostThatTheRunNeedsAndThatFailsInEachStartEndsTheLaunch) {
  mind = LaunchMind(settings(6));
  mind.name_hosts(0, list);
  trains(0, of_three);
  std::int64_t now_ns = 0;
  RestartDecision decision{.restart = true};
  int starts = 0;
  for (; decision.restart && starts < 50; ++starts) {
    now_ns += 3600 * sec;
    EndedStart ended = failed(ExitCode::communication, {{.host = "b", .sentence = "its disk fails"}}, 5);
    ended.died_on = {"b"};
    ended.ended_on = {"a", "c"};
    decision = mind.ended(now_ns, ended, false);
    if (!decision.restart) break;
    EXPECT_THAT(choose(now_ns), IsEmpty()) << "its pause has begun";
    now_ns += 3600 * sec;
    trains(now_ns, of_three);
  }
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.code, ExitCode::communication);
  EXPECT_THAT(decision.sentence, testing::HasSubstr("starts in a row reached no step beyond 5"));
  EXPECT_LT(starts, 10);
}

// The start has gone on without it, and ended for another reason later.
TEST_F(LaunchMindTest, WhatAHostHasSaidOfItselfCountsOnce) {
  const std::vector<UnfitHost> unfit = {{.host = "c", .sentence = "its disk fails"}};
  trains(0, of_three);
  mind.has(sec, without_c, {}, unfit);
  EXPECT_EQ(mind.take_news().size(), 1u);
  ASSERT_TRUE(mind.ended(70 * sec, failed(ExitCode::communication, unfit, 5), false).restart);
  EXPECT_THAT(mind.take_news(), IsEmpty());
  EXPECT_EQ(mind.views()[2].failures, 1);
}

TEST_F(LaunchMindTest, AStartGoesBackToTheHostsThatTrained) {
  trains(0, without_c);
  ASSERT_TRUE(mind.ended(sec, {.end = {.fault = "as asked"}, .is_as_asked = true}, false).restart);
  choose(2 * sec);
  begins(2 * sec, of_three);
  const RestartDecision decision = mind.ended(5 * sec, failed(ExitCode::config, {}, 5), false);
  EXPECT_TRUE(decision.restart) << "the newcomer has another config, and everybody says so";
  EXPECT_THAT(choose(6 * sec), ElementsAre("a", "b"));
}

TEST_F(LaunchMindTest, FewerRanksThatDoNotFitAreTooFewHosts) {
  trains(0, of_three);
  EXPECT_TRUE(mind.ended(sec, {.end = {.step = 5, .fault = "lost"}}, false).restart);
  EXPECT_THAT(choose(2 * sec, {{0}, {0}, {}}), ElementsAre("a", "b"));
  begins(2 * sec, without_c);
  EXPECT_TRUE(mind.ended(4 * sec, failed(ExitCode::does_not_fit, {}, 5), false).restart);
  EXPECT_EQ(mind.min_ranks(), 5);
  EXPECT_THAT(choose(6 * sec, {{0}, {0}, {}}), IsEmpty());
  EXPECT_EQ(mind.phase(), LaunchPhase::wait);
  EXPECT_THAT(choose(7 * sec), ElementsAre("a", "b", "c"));
}

TEST_F(LaunchMindTest, NoMoreHostsComeInTime) {
  mind = LaunchMind(settings(6));
  mind.name_hosts(0, list);
  EXPECT_THAT(choose(0, {{0}, {0}, {}}), IsEmpty());
  mind.heard(1'801 * sec, std::vector<HostAnswer>{{0}, {0}, {}});
  const LaunchMind::Choice choice = mind.choose(1'801 * sec);
  EXPECT_FALSE(choice.starts);
  EXPECT_EQ(choice.sentence,
            "no more hosts came within 1800 s (c is unreachable: it does not answer); start it again when "
            "they are there");
  EXPECT_EQ(mind.phase(), LaunchPhase::end);
}

TEST_F(LaunchMindTest, ABrokenLinkCostsOneHost) {
  const std::vector<SilentPair> silent = {{"b", "c"}, {"c", "b"}};
  trains(0, of_three);
  EXPECT_TRUE(mind.ended(5 * sec, {.end = {.step = 3, .fault = "lost"}, .silent = silent}, false).restart);
  trains(10 * sec, of_three);
  EXPECT_TRUE(
      mind.ended(15 * sec, {.end = {.step_before = 3, .step = 6, .fault = "lost"}, .silent = silent}, false)
          .restart);
  EXPECT_THAT(choose(16 * sec), ElementsAre("a", "b")) << "once is no proof, twice is";
}

TEST_F(LaunchMindTest, HostsThatDoNotReachEachOtherAreNotInOneStart) {
  const std::vector<HostAnswer> all = {{0}, {0}, {0}};
  mind.heard(0, all, std::vector<LinkFault>{{"b", "c", "10.0.0.3"}, {"c", "b", "10.0.0.2"}});
  EXPECT_THAT(used(mind.choose(0)), ElementsAre("a", "b")) << "one of the two is enough";
  const std::vector<LaunchNews> news = mind.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].sentence, "host c cannot be used: host b cannot connect to it at 10.0.0.3");
  ASSERT_TRUE(news[0].excluded.has_value());
  EXPECT_EQ(news[0].excluded->state, HostState::suspected);
  EXPECT_EQ(news[0].excluded->until_ns, 0) << "it is asked again";
  EXPECT_EQ(mind.why_missing(), "c is suspected: host b cannot connect to it at 10.0.0.3");
  mind.heard(sec, all, std::vector<LinkFault>{{"b", "c", "10.0.0.3"}});
  EXPECT_THAT(used(mind.choose(sec)), ElementsAre("a", "b"));
  EXPECT_THAT(mind.take_news(), IsEmpty()) << "it is told once";
  EXPECT_THAT(choose(2 * sec), ElementsAre("a", "b", "c")) << "the link is mended";
  const std::vector<LinkFault> from_a = {{"a", "b", "10.0.0.2"}, {"a", "c", "10.0.0.3"}};
  mind.heard(3 * sec, all, from_a);
  EXPECT_THAT(used(mind.choose(3 * sec)), ElementsAre("b", "c")) << "one host explains both";
}

TEST_F(LaunchMindTest, ALinkToAHostThatTheStartIsWithoutCostsNobody) {
  choose(0);
  begins(0, of_three);
  ASSERT_TRUE(mind.ended(sec, failed(ExitCode::data, {{.host = "b", .sentence = "no data"}}), false).restart);
  const std::vector<LinkFault> links = {{"b", "c", "10.0.0.3"}, {"a", "b", "10.0.0.2"}};
  mind.heard(2 * sec, std::vector<HostAnswer>{{0}, {0}, {0}}, links);
  EXPECT_THAT(used(mind.choose(2 * sec)), ElementsAre("a", "c")) << "the pause of b is not over";
  mind.heard(2 * sec, std::vector<HostAnswer>{{0}, {0}, {}}, std::vector<LinkFault>{{"b", "c", "10.0.0.3"}});
  EXPECT_THAT(used(mind.choose(2 * sec)), ElementsAre("a")) << "c does not answer";
}

TEST_F(LaunchMindTest, ANewcomerThatDoesNotReachTheRunIsNoReasonForAStart) {
  trains(0, without_c);
  mind.take_news();
  const std::vector<HostAnswer> all = {{0}, {0}, {0}};
  std::vector<LaunchHost> asked = mind.candidates(20 * sec);
  ASSERT_EQ(asked.size(), 3u);
  const std::vector<LinkFault> cut = {{"c", "a", "10.0.0.1"}};
  EXPECT_FALSE(mind.is_worth_another_start(20 * sec, asked, all, cut));
  const std::vector<LaunchNews> news = mind.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].sentence, "host c cannot be used: it cannot connect to host a at 10.0.0.1");
  EXPECT_TRUE(mind.is_worth_another_start(60 * sec, asked, all)) << "the link is mended";
}

TEST_F(LaunchMindTest, AHostThatGaveWrongNumbersIsUsedOnlyWhereOthersWillNotDo) {
  mind.set_faulty({{"b", "it gave wrong numbers"}});
  EXPECT_THAT(choose(0), ElementsAre("a", "b", "c")) << "with fewer hosts there were fewer ranks";
  LaunchMindSettings of_four_ranks = settings();
  of_four_ranks.ranks_on = [](const auto& hosts, int) {
    int room = 0;
    for (const LaunchHost& host : hosts) room += host.answers ? host.slots : 0;
    return std::min(room, 4);
  };
  mind = LaunchMind(of_four_ranks);
  mind.name_hosts(0, list);
  mind.set_faulty({{"b", "it gave wrong numbers"}});
  EXPECT_THAT(choose(0), ElementsAre("a", "c"));
  EXPECT_EQ(mind.views()[1].reason, "it gave wrong numbers");
  EXPECT_THAT(choose(0, {{0}, {0}, {}}), ElementsAre("a", "b"));
}

TEST_F(LaunchMindTest, TheOnlyHostIsUsedAgainAfterAPause) {
  const std::vector<UnfitHost> unfit = {{.host = "a", .sentence = "its GPU is gone"}};
  for (const bool has_begun : {false, true}) {
    LaunchMindSettings of_one = settings();
    of_one.has_begun = has_begun;
    of_one.ranks_on = [](const auto&, int) { return 2; };
    mind = LaunchMind(of_one);
    mind.take_all();
    begins(0, {});
    EXPECT_EQ(mind.ended(sec, failed(ExitCode::config, unfit), false).restart, has_begun);
  }
  EXPECT_EQ(mind.last_end().code, ExitCode::communication);
  EXPECT_FALSE((mind.heard(2 * sec, std::vector<HostAnswer>{{0}}), mind.choose(2 * sec)).starts);
  EXPECT_EQ(mind.why_missing(), "a is unfit: its GPU is gone");
  EXPECT_TRUE((mind.heard(22 * sec, std::vector<HostAnswer>{{0}}), mind.choose(22 * sec)).starts);
}

TEST_F(LaunchMindTest, AHostWithOneGpuLessIsUsedWithTheOthers) {
  trains(0, of_three);
  mind.has(sec, {{"a", 2}, {"b", 2}, {"c", 1}}, {},
           std::vector<UnfitHost>{{.host = "c", .sentence = "its GPU is gone"}});
  EXPECT_EQ(mind.views()[2].reason, "it has room for 1 rank alone: its GPU is gone");
  EXPECT_THAT(mind.candidates(15 * sec), IsEmpty()) << "there is no room for more";
  ASSERT_TRUE(mind.ended(16 * sec, {.end = {.step = 5, .fault = "lost"}}, false).restart);
  mind.heard(17 * sec, std::vector<HostAnswer>{{0}, {0}, {0}});
  const LaunchMind::Choice choice = mind.choose(17 * sec);
  EXPECT_THAT(used(choice), ElementsAre("a", "b", "c"));
  EXPECT_EQ(choice.hosts[2].slots, 1);
}

TEST_F(LaunchMindTest, AHostWithRoomForFewerRanksGetsThose) {
  const std::string line = line_of({.ranks = 1, .why = "a rank needs 2 GiB, and this host has 3 GiB"});
  const std::vector<HostAnswer> short_of_room = {
      {0}, {0}, {.code = 0, .output = "here c\n" + line + "\nready\n"}};
  mind.heard(0, short_of_room);
  LaunchMind::Choice choice = mind.choose(0);
  EXPECT_THAT(used(choice), ElementsAre("a", "b", "c"));
  EXPECT_EQ(choice.hosts[2].slots, 1);
  const std::vector<LaunchNews> news = mind.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].sentence,
            "host c: it has room for 1 rank alone: a rank needs 2 GiB, and this host has 3 GiB");
  EXPECT_EQ(mind.views()[2].state, HostState::unfit);
  mind.heard(sec, short_of_room);
  EXPECT_EQ(mind.choose(sec).hosts[2].slots, 1);
  EXPECT_THAT(mind.take_news(), IsEmpty()) << "it is told once";
  mind.heard(2 * sec, std::vector<HostAnswer>{{0}, {0}, {0}});
  EXPECT_EQ(mind.choose(2 * sec).hosts[2].slots, 2);
  EXPECT_EQ(mind.views()[2].state, HostState::ready);
}

TEST_F(LaunchMindTest, AHostMayCallItselfByAnotherName) {
  mind.heard(0,
             std::vector<HostAnswer>{{.code = 0}, {.code = 0}, {.code = 0, .output = "here ip-10-0-0-3\n"}});
  mind.choose(0);
  begins(0, of_three);
  const EndedStart ended = failed(ExitCode::data, {{.host = "ip-10-0-0-3", .sentence = "no data"}});
  EXPECT_TRUE(mind.ended(sec, ended, false).restart);
  EXPECT_THAT(choose(2 * sec), ElementsAre("a", "b"));
  begins(2 * sec, without_c);
  mind.trains(3 * sec);
  mind.has(3 * sec, {{"a", 2}, {"ip-10-0-0-2", 2}});
  EXPECT_FALSE(mind.knows_where_ranks_are()) << "so none of the hosts may be cleaned up beside the run";
  mind.has(4 * sec, {{"a", 2}, {"ip-10-0-0-3", 2}});
  EXPECT_TRUE(mind.knows_where_ranks_are() && mind.has_ranks("c"));
}

TEST_F(LaunchMindTest, OfTwoHostsThatLoseEachOtherAgainOneComesBack) {
  const std::vector<SilentPair> silent = {{"b", "c"}, {"c", "b"}};
  trains(0, of_three);
  mind.has(sec, {{"a", 2}}, silent);
  ASSERT_TRUE(
      mind.ended(2 * sec, {.end = {.step = 3, .fault = "as asked"}, .is_as_asked = true}, false).restart);
  trains(3 * sec, of_three);
  mind.has(4 * sec, {{"a", 2}}, silent);
  EXPECT_TRUE(mind.may_use("b", 5 * sec));
  EXPECT_FALSE(mind.may_use("c", 5 * sec));
}

TEST_F(LaunchMindTest, AHostThatLeftForALostLinkIsNotExcusedByAnOlderSuspicionOfTheOther) {
  const EndedStart as_asked = {.end = {.step = 3, .fault = "as asked"}, .is_as_asked = true};
  trains(0, of_three);
  mind.has(sec, {{"a", 2}});
  ASSERT_TRUE(mind.ended(2 * sec, as_asked, false).restart);
  trains(3 * sec, of_three);
  mind.has(4 * sec, {{"a", 2}, {"c", 2}});
  ASSERT_TRUE(mind.ended(100 * sec, as_asked, false).restart);
  trains(101 * sec, of_three);
  mind.has(102 * sec, {{"a", 2}, {"b", 2}}, std::vector<SilentPair>{{"b", "c"}, {"c", "b"}});
  EXPECT_FALSE(mind.may_use("c", 103 * sec)) << "it would come back and leave again without end";
  EXPECT_TRUE(mind.may_use("b", 103 * sec));
}

// A host that is asked ends what starts have left there: it would end the ranks of this one.
TEST_F(LaunchMindTest, NoHostIsAskedForRoomBeforeItIsKnownWhereTheRanksOfThisStartAre) {
  trains(0, without_c);
  ASSERT_EQ(mind.candidates(40 * sec).size(), 3u);
  mind.leaves();
  ASSERT_TRUE(
      mind.ended(41 * sec, {.end = {.step = 3, .fault = "as asked"}, .is_as_asked = true}, false).restart);
  choose(42 * sec);
  begins(42 * sec, of_three);
  mind.trains(43 * sec);
  EXPECT_THAT(mind.candidates(90 * sec), IsEmpty());
  mind.has(91 * sec, without_c);
  EXPECT_EQ(mind.candidates(140 * sec).size(), 3u);
}

TEST_F(LaunchMindTest, TheOnlyHostIsNotPaused) {
  LaunchMind alone(settings());
  alone.name_hosts(0, std::vector<LaunchHost>{{.name = "a", .slots = 8}});
  for (int start = 0; start < 10; ++start) {
    const std::int64_t now_ns = 10 * start * sec;
    alone.heard(now_ns, std::vector<HostAnswer>{{0}});
    ASSERT_TRUE(alone.choose(now_ns).starts) << start << ": nothing is won by waiting";
    alone.begins(now_ns, {{"a", 8}}, 8, false);
    alone.trains(now_ns + sec);
    alone.has(now_ns + sec, {{"a", 8}});
    alone.has(now_ns + 2 * sec, {{"a", 2}});
    const EndedStart killed = failed(ExitCode::communication, {}, static_cast<std::uint64_t>(start + 1));
    ASSERT_TRUE(alone.ended(now_ns + 3 * sec, killed, false).restart) << start;
  }
}

enum class Crash { in_place, ends_the_start, before_it_trains, before_the_others_train, host_is_gone };

// Returns when the starts of a run on eight hosts began that had h7, whose ranks die soon after they joined, or which is
// gone for half a minute then.
std::vector<std::int64_t> starts_with_the_bad_host(Crash crash, std::int64_t until_s) {
  std::vector<LaunchHost> hosts;
  for (int i = 0; i < 8; ++i) hosts.push_back({.name = fmt::format("h{}", i), .slots = 1});
  const std::string bad = "h7";
  LaunchMindSettings of_eight = settings();
  of_eight.own_host = "h0";
  LaunchMind mind(of_eight);
  mind.name_hosts(0, hosts);
  std::vector<std::int64_t> starts;
  std::int64_t now_s = 0, back_s = 0;
  std::uint64_t step = 0;
  const auto answers = [&] {
    std::vector<HostAnswer> all(8, HostAnswer{.code = 0});
    if (now_s < back_s) all.back() = {};
    return all;
  };
  while (now_s < until_s) {
    mind.heard(++now_s * sec, answers());
    const LaunchMind::Choice choice = mind.choose(now_s * sec);
    if (!choice.starts) continue;
    ScaleUp::Ranks ranks;
    for (const LaunchHost& host : choice.hosts) {
      if (host.answers) ranks[host.name] = 1;
    }
    const bool has_bad = ranks.contains(bad);
    if (has_bad) starts.push_back(now_s);
    mind.begins(now_s * sec, ranks, static_cast<int>(ranks.size()), false);
    EndedStart ended = {.end = {.step_before = step, .step = step, .fault = "lost"}};
    if (has_bad && crash != Crash::host_is_gone) ended.died_on = {bad};
    ended.ended_on = {"h0", "h1", "h2", "h3", "h4", "h5", "h6"};
    now_s += 5;
    bool goes_on = !has_bad || crash != Crash::before_it_trains;
    if (goes_on) {
      mind.trains(now_s * sec);
      if (has_bad && crash == Crash::before_the_others_train) ranks.erase(bad);
      mind.has(now_s * sec, ranks);
      ended.end.step = ++step;
      goes_on = !has_bad || crash == Crash::in_place || crash == Crash::before_the_others_train;
      if (has_bad && goes_on) ranks.erase(bad);
    }
    if (has_bad && crash == Crash::host_is_gone) {
      back_s = now_s + 30;
      for (const std::string& host : ended.ended_on) ended.silent.push_back({.from = host, .of = bad});
    }
    for (; goes_on && now_s < until_s; now_s += 2) {
      mind.has(now_s * sec, ranks);
      const std::vector<LaunchHost> asked = mind.candidates(now_s * sec);
      if (asked.empty() || !mind.is_worth_another_start(now_s * sec, asked, answers())) continue;
      mind.leaves();
      ended = {.end = {.step_before = step, .step = ++step, .fault = "as asked"}, .is_as_asked = true};
      break;
    }
    now_s += mind.ended(now_s * sec, ended, false).delay_ms / 1000;
  }
  return starts;
}

TEST(LaunchMindCrashLoop, ABadHostOfEightCostsTwoStartsAndAnotherAfterAnHour) {
  for (const Crash crash : {Crash::in_place, Crash::ends_the_start, Crash::before_it_trains,
                            Crash::before_the_others_train, Crash::host_is_gone}) {
    const std::vector<std::int64_t> starts = starts_with_the_bad_host(crash, 7'000);
    ASSERT_EQ(starts.size(), 3u) << static_cast<int>(crash) << ": " << testing::PrintToString(starts);
    EXPECT_LT(starts[1], 120);
    EXPECT_GT(starts[2], starts[1] + 3'600) << static_cast<int>(crash);
  }
}

// A run of one copy on two of its four ranks: no start ends only to have both spares again.
TEST_F(LaunchMindTest, SparesThatAreLeftAreReasonEnoughToGoOn) {
  LaunchMindSettings with_spares = settings();
  with_spares.whole = [] { return ScaleUp::Whole{.computing = 2, .kept_spares = 2}; };
  mind = LaunchMind(with_spares);
  mind.name_hosts(0, list);
  trains(0, of_three);
  mind.has(100 * sec, without_c, {}, {}, 2);
  for (std::int64_t now_s = 110; now_s < 1'000; now_s += 10)
    ASSERT_THAT(mind.candidates(now_s * sec), IsEmpty()) << now_s << ": nobody is asked for it";
  mind.has(1'000 * sec, {{"a", 2}}, {}, {}, 0);
  EXPECT_THAT(mind.candidates(1'005 * sec), IsEmpty());
  const std::vector<LaunchHost> asked = mind.candidates(1'010 * sec);
  ASSERT_FALSE(asked.empty()) << "the last spare is in use";
  const std::vector<HostAnswer> all = {{0}, {0}, {0}};
  EXPECT_TRUE(mind.is_worth_another_start(1'010 * sec, asked, all));
}

TEST_F(LaunchMindTest, AHostWhoseRanksEndTwoLongStartsIsLeftOutWithAWord) {
  for (int time = 0; time < 2; ++time) {
    const std::int64_t now_ns = 700 * time * sec;
    trains(now_ns, of_three);
    EXPECT_THAT(mind.take_news(), IsEmpty());
    const EndedStart ended{.end = {.step = 100u * static_cast<unsigned>(time + 1), .fault = "lost"},
                           .died_on = {"c"},
                           .ended_on = {"a", "b"}};
    ASSERT_TRUE(mind.ended(now_ns + 600 * sec, ended, false).restart);
  }
  const std::vector<LaunchNews> news = mind.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_THAT(news[0].sentence, testing::StartsWith("host c is left out for "));
  EXPECT_THAT(news[0].sentence, testing::EndsWith(": its ranks died again, and the run ended"));
  EXPECT_FALSE(mind.may_use("c", (700 + 600 + 3'500) * sec));
  EXPECT_TRUE(mind.may_use("c", (700 + 600 + 3'700) * sec));
}

TEST_F(LaunchMindTest, WhatHappensToSeveralHostsAtOnceIsTheFaultOfNone) {
  for (int time = 0; time < 3; ++time) {
    const std::int64_t now_ns = 1'000 * time * sec;
    trains(now_ns, of_three);
    mind.has(now_ns + sec, {{"a", 2}});
    ASSERT_TRUE(
        mind.ended(now_ns + 2 * sec, {.end = {.fault = "as asked"}, .is_as_asked = true}, false).restart);
    EXPECT_TRUE(mind.may_use("b", now_ns + 100 * sec)) << time;
    EXPECT_TRUE(mind.may_use("c", now_ns + 100 * sec)) << time;
  }
}

TEST_F(LaunchMindTest, AHostThatIsUnfitTwiceMayReturnSoon) {
  const std::vector<UnfitHost> unfit = {{.host = "c", .sentence = "its GPU is gone"}};
  for (int time = 0; time < 2; ++time) {
    const std::int64_t now_ns = 1'000 * time * sec;
    trains(now_ns, of_three);
    mind.has(now_ns + sec, without_c, {}, unfit);
    ASSERT_TRUE(
        mind.ended(now_ns + 2 * sec, {.end = {.fault = "as asked"}, .is_as_asked = true}, false).restart);
    EXPECT_FALSE(mind.may_use("c", now_ns + 3 * sec));
    EXPECT_TRUE(mind.may_use("c", now_ns + 50 * sec)) << time;
  }
}

TEST_F(LaunchMindTest, OwnCallsAreTriedAgainForTenMinutes) {
  const Error full{.code = ExitCode::checkpoint, .message = "the disk is full", .reach = Reach::minute};
  choose(0);
  std::int64_t now_ns = 0;
  RestartDecision decision = mind.own_call_failed(now_ns, full);
  while (decision.restart) {
    now_ns += decision.delay_ms * 1'000'000;
    decision = mind.own_call_failed(now_ns, full);
  }
  EXPECT_EQ(decision.code, ExitCode::communication);
  EXPECT_GT(now_ns, 600 * sec);
  EXPECT_LT(now_ns, 700 * sec);
}

TEST_F(LaunchMindTest, AnMpirunThatCannotBeStartedIsTriedForTenMinutes) {
  const Error refused{
      .code = ExitCode::communication, .message = "no more processes", .reach = Reach::minute};
  std::int64_t now_ns = 0;
  RestartDecision decision{.restart = true};
  while (decision.restart && now_ns < 900 * sec) {
    choose(now_ns);
    begins(now_ns, of_three);  // it was about to be started
    decision = mind.own_call_failed(now_ns, refused);
    now_ns += decision.delay_ms * 1'000'000;
  }
  EXPECT_FALSE(decision.restart);
  EXPECT_LT(now_ns, 700 * sec);
}

TEST(FewestHosts, IsASmallestSetThatExplainsAllReports) {
  const std::vector<LinkedHost> hosts = {
      {.name = "a", .is_own = true}, {.name = "b"}, {.name = "c"}, {.name = "d"}};
  const auto fewest = [&](const std::vector<SilentPair>& pairs) { return fewest_hosts(pairs, hosts); };
  EXPECT_THAT(fewest({}), IsEmpty());
  EXPECT_THAT(fewest({{"a", "b"}, {"b", "a"}}), ElementsAre("b")) << "the launcher has to be on the other";
  EXPECT_THAT(fewest({{"b", "c"}, {"b", "d"}, {"b", "a"}}), ElementsAre("b"));
  EXPECT_THAT(fewest({{"b", "a"}, {"c", "d"}}), ElementsAre("b", "d"));
  EXPECT_THAT(fewest({{"b", "b"}, {"x", "y"}}), IsEmpty());
  std::vector<LinkedHost> suspected = hosts;
  suspected[1].suspicions = 1;
  EXPECT_THAT(fewest_hosts(std::vector<SilentPair>{{"b", "c"}, {"c", "b"}}, suspected), ElementsAre("b"));
}

TEST(LaunchPhases, TheTableHasNoWayOutOfTheEnd) {
  for (std::size_t outcome = 0; outcome + 1 < launch_outcomes; ++outcome)
    EXPECT_FALSE(next_phase(LaunchPhase::end, static_cast<LaunchOutcome>(outcome)).has_value());
  EXPECT_EQ(next_phase(LaunchPhase::train, LaunchOutcome::leaves), LaunchPhase::leave);
}

// Drops faults for as long as the rest still fails.
LaunchSchedule shrunk(LaunchSchedule schedule) {
  for (std::size_t i = 0; i < schedule.size();) {
    LaunchSchedule fewer = schedule;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (SimulatedLaunch(fewer).run().empty()) {
      ++i;
    } else {
      schedule = std::move(fewer);
      i = 0;
    }
  }
  return schedule;
}

void run_schedules(std::uint64_t first_seed, int count) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    const LaunchSchedule schedule = random_schedule(seed);
    if (SimulatedLaunch(schedule).run().empty()) continue;
    const LaunchSchedule least = shrunk(schedule);
    std::string text;
    for (const LaunchFault& fault : least) text += "\n  " + fault.text();
    FAIL() << "seed " << seed << ": " << SimulatedLaunch(least).run() << text;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("{} schedules, {:.0f} a second\n", count, count / took.count());
}

TEST(LaunchSchedules, RandomFaults) {
  run_schedules(1, 30'000);
}
TEST(LaunchSchedules, MoreRandomFaults) {
  run_schedules(1'000'000, 300'000);
}

}  // namespace
}  // namespace holdfast::test
