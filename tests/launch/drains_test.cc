// Tests which hosts a run leaves when it is asked to, and what it answers.
#include "runtime/launch/drains.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace holdfast::test {
namespace {

using State = DrainRequest::State;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t one_second = 1'000'000'000;

class DrainsTest : public testing::Test {
 protected:
  DrainStep take(const std::vector<DrainRequest>& requests, std::int64_t now_s = 0) {
    return drains_.take(now_s * one_second, requests, hosts_,
                        {.step = 7,
                         .launcher_host = "a",
                         .has_ranks = [&](const std::string& host) { return with_ranks_.contains(host); },
                         .has_room =
                             [&](const std::vector<LaunchHost>& hosts, int ranks) {
                               const auto left = std::ranges::count(hosts, true, &LaunchHost::answers);
                               return left >= min_hosts_ && 2 * left >= ranks;
                             }});
  }
  static DrainRequest asked(const std::string& host, std::int64_t deadline_s = 0) {
    return {.host = host, .deadline_s = deadline_s};
  }
  static DrainRequest sick(const std::string& host) {
    return {.host = host, .state = State::sick, .sentence = "its memory is worse"};
  }
  static DrainRequest notice(const std::string& host) { return {.host = host, .state = State::notice}; }

  std::vector<LaunchHost> hosts_ = {
      {.name = "a", .slots = 2}, {.name = "b", .slots = 2}, {.name = "c", .slots = 2}};
  std::set<std::string> with_ranks_ = {"a", "b"};
  int min_hosts_ = 1;
  Drains drains_;
};

TEST_F(DrainsTest, AHostIsLeftByTheNextStart) {
  DrainStep step = take({asked("b")});
  EXPECT_THAT(step.leave, ElementsAre("b"));
  EXPECT_THAT(step.answers, IsEmpty());
  EXPECT_FALSE(drains_.leaves("b")) << "the start that has ranks there has not been asked to end";
  std::vector<DrainRequest> answers = drains_.begun();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].state, State::begun);
  EXPECT_TRUE(drains_.leaves("b"));
  EXPECT_THAT(drains_.leaving(), ElementsAre("b"));
  EXPECT_THAT(take({answers[0]}).leave, IsEmpty()) << "once";
  answers = drains_.trains(12);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].state, State::drained);
  EXPECT_EQ(answers[0].step, 12u);
  EXPECT_TRUE(drains_.leaves("b")) << "for as long as the request is there";
  EXPECT_THAT(drains_.leaving(), IsEmpty());
  take({});
  EXPECT_FALSE(drains_.leaves("b")) << "it was cancelled";
}

TEST_F(DrainsTest, ALauncherGoesOnWithTheDrainsOfAKilledOne) {
  EXPECT_TRUE(drains_.take_over({.host = "b", .state = State::begun}, hosts_));
  EXPECT_TRUE(drains_.take_over({.host = "c", .state = State::drained}, hosts_));
  EXPECT_FALSE(drains_.take_over({.host = "a", .state = State::refused}, hosts_));
  EXPECT_FALSE(drains_.take_over({.host = "x", .state = State::drained}, hosts_)) << "it has no such host";
  EXPECT_TRUE(drains_.take_over(asked("a"), hosts_)) << "as a request that is still to be answered";
  EXPECT_TRUE(drains_.leaves("b") && drains_.leaves("c"));
  EXPECT_FALSE(drains_.leaves("a"));
  EXPECT_EQ(drains_.trains(3).size(), 1u) << "b is left now, as was c before";
}

TEST_F(DrainsTest, AHostWithoutRanksNeedsNoOtherStart) {
  const DrainStep step = take({asked("c")});
  EXPECT_THAT(step.leave, IsEmpty());
  ASSERT_EQ(step.answers.size(), 1u);
  EXPECT_EQ(step.answers[0].state, State::drained);
  EXPECT_EQ(step.answers[0].step, 7u);
  EXPECT_TRUE(drains_.leaves("c"));
}

TEST_F(DrainsTest, WhatTheRunCannotDoIsRefused) {
  DrainStep step = take({asked("d")});
  ASSERT_EQ(step.answers.size(), 1u);
  EXPECT_EQ(step.answers[0].state, State::refused);
  EXPECT_EQ(step.answers[0].sentence, "the run has no host d; its hosts are a, b, c");
  EXPECT_THAT(take({asked("a")}).answers[0].sentence, HasSubstr("holdfast launch itself is on host a"));
  min_hosts_ = 2;
  step = take({asked("b"), asked("c")});
  EXPECT_THAT(step.leave, ElementsAre("b"));
  ASSERT_EQ(step.answers.size(), 1u) << "one of the two can be left";
  EXPECT_EQ(step.answers[0].host, "c");
  EXPECT_THAT(step.answers[0].sentence, HasSubstr("without host c there is no room"));
  EXPECT_EQ(step.stop, "");
  hosts_.clear();
  step = take({asked("b")});
  EXPECT_THAT(take({asked("e")}).answers[0].sentence, HasSubstr("without a list of hosts"));
}

// It does not wait for anybody's consent.
TEST_F(DrainsTest, ANoticeThatCannotBeHeededStopsTheRun) {
  EXPECT_EQ(take({notice("b")}).stop, "");
  EXPECT_THAT(take({notice("a")}).stop, HasSubstr("holdfast launch with it"));
  EXPECT_EQ(take({notice("elsewhere")}).stop, "") << "none of its hosts, as far as anybody knows";
  min_hosts_ = 3;
  EXPECT_THAT(take({notice("c")}).stop, HasSubstr("no room"));
  hosts_.clear();
  EXPECT_THAT(take({notice("x")}).stop, HasSubstr("about to go away"));
}

TEST_F(DrainsTest, TwoNamesOfAHostAreOneHost) {
  hosts_[1].name = "b.cluster";
  with_ranks_ = {"b.cluster"};
  EXPECT_THAT(take({asked("b"), notice("b.cluster")}).leave, ElementsAre("b.cluster"));
  EXPECT_EQ(drains_.begun().size(), 2u) << "both are answered";
}

TEST_F(DrainsTest, NamesMayLackTheDomain) {
  hosts_[1].name = "b.cluster";
  with_ranks_ = {"b.cluster"};
  const DrainStep step = take({asked("b")});
  EXPECT_THAT(step.leave, ElementsAre("b.cluster"));
  const std::vector<DrainRequest> answers = drains_.begun();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].host, "b") << "the answer goes where it was asked";
}

TEST_F(DrainsTest, ADeadlineRunsFromTheRequestToTheStartWithoutTheHost) {
  take({asked("b", 5)}, 10);
  EXPECT_EQ(drains_.overdue(14 * one_second), std::nullopt);
  EXPECT_EQ(drains_.overdue(15 * one_second), "b");
  take({asked("b", 5)}, 12);
  EXPECT_EQ(drains_.overdue(15 * one_second), "b") << "it is the same request";
  take({asked("b", 20)}, 12);
  EXPECT_EQ(drains_.overdue(31 * one_second), std::nullopt) << "and this is another";
  EXPECT_EQ(drains_.overdue(32 * one_second), "b");
  take({notice("b")}, 13);
  const std::vector<DrainRequest> answers = drains_.begun();
  EXPECT_EQ(drains_.overdue(32 * one_second), "b") << "which a notice does not take back";
  drains_.trains(3);
  EXPECT_EQ(drains_.overdue(99 * one_second), std::nullopt);
}

TEST_F(DrainsTest, ASickHostIsLeftAndItsReasonStays) {
  EXPECT_THAT(take({sick("b")}).leave, ElementsAre("b"));
  std::vector<DrainRequest> answers = drains_.begun();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].sentence, "its memory is worse") << "for the launcher after this one";
  EXPECT_EQ(drains_.reason("b"), "its memory is worse");
  EXPECT_EQ(drains_.reason("c"), "");
  EXPECT_EQ(drains_.trains(4)[0].sentence, "its memory is worse");
  Drains next;
  EXPECT_TRUE(next.take_over(answers[0], hosts_));
  EXPECT_EQ(next.reason("b"), "its memory is worse");
  EXPECT_TRUE(next.take_over(sick("c"), hosts_)) << "it is still to be answered";
  EXPECT_EQ(next.reason("c"), "");
}

// A run that cannot leave a host goes on there: to be sick is not to be gone.
TEST_F(DrainsTest, ASickHostThatTheRunNeedsIsKept) {
  min_hosts_ = 3;
  const DrainStep step = take({sick("b")});
  ASSERT_EQ(step.answers.size(), 1u);
  EXPECT_EQ(step.answers[0].state, State::refused);
  EXPECT_EQ(step.stop, "");
  EXPECT_EQ(take({sick("a")}).stop, "") << "nor for that of the launcher";
}

TEST_F(DrainsTest, AHostIsKeptWhereARunWithoutItWouldBeSlower) {
  DrainRequest slow = sick("b");
  slow.ranks = 5;
  const DrainStep step = take({slow});
  EXPECT_THAT(step.leave, IsEmpty());
  ASSERT_EQ(step.answers.size(), 1u);
  EXPECT_EQ(
      step.answers[0].sentence,
      "without it fewer than 5 ranks have room, with which the run would be slower: its memory is worse");
  slow.ranks = 4;
  EXPECT_THAT(take({slow}).leave, ElementsAre("b"));
}

TEST_F(DrainsTest, NeverMoreThanHalfOfTheHostsAreLeftAsSickWithinFiveMinutes) {
  with_ranks_ = {"a", "b", "c", "d"};
  hosts_.push_back({.name = "d", .slots = 2});
  DrainStep step = take({sick("b"), sick("c"), sick("d")});
  EXPECT_THAT(step.leave, ElementsAre("b", "c"));
  ASSERT_EQ(step.answers.size(), 1u);
  EXPECT_EQ(step.answers[0].host, "d");
  EXPECT_THAT(step.answers[0].sentence,
              HasSubstr("half of the hosts were left as sick within 5 minutes, and no more are: its memory"));
  drains_.begun();
  EXPECT_THAT(take({asked("b"), asked("c"), asked("d")}).leave, ElementsAre("d")) << "a person may go on";
}

TEST(Breaker, LetsHalfOfTheHostsGoInItsTime) {
  EXPECT_FALSE(breaker_lets_leave({}, 0, 1));
  EXPECT_TRUE(breaker_lets_leave({}, 0, 2));
  const std::vector<std::int64_t> left = {0, 100 * one_second};
  EXPECT_FALSE(breaker_lets_leave(left, 299 * one_second, 5));
  EXPECT_TRUE(breaker_lets_leave(left, 299 * one_second, 6));
  EXPECT_TRUE(breaker_lets_leave(left, 300 * one_second, 5)) << "the first was five minutes ago";
  EXPECT_TRUE(breaker_lets_leave(left, 400 * one_second, 2)) << "both were";
}

}  // namespace
}  // namespace holdfast::test
