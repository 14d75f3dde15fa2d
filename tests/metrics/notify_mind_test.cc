#include "runtime/metrics/notify_mind.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t second_ns = 1'000'000'000;

Json event(const std::string& kind, const std::string& more) {
  return Json::parse_any(fmt::format(R"({{"event":"{}","time_us":1700000000000000{}}})", kind, more));
}
Json fault(int step) {
  const std::string lost = R"x(,"what":"rank","lost":"rank 2 (host a)","reason":"it\nended")x";
  return event("fault", fmt::format(R"(,"step":{}{})", step, lost));
}

TEST(NotifyMind, TellsWhatPeopleShouldKnow) {
  NotifyMind mind({.at_most = 100}, 0);
  const auto sentence = [&](const Json& json) {
    const std::optional<Notification> notice = mind.take(json, 0);
    return notice.has_value() ? notice->news.sentence : std::string("-");
  };
  EXPECT_EQ(sentence(event("start", R"(,"run":"abc","ranks":4,"resumed_from_step":null)")),
            "the run starts on 4 ranks");
  EXPECT_EQ(mind.run(), "abc");
  EXPECT_EQ(sentence(event("start", R"(,"run":"abc","ranks":1,"resumed_from_step":7,"resumed_from":"ram")")),
            "the run starts again on 1 rank, from step 7 in RAM");
  EXPECT_EQ(sentence(event("step", R"(,"step":8)")), "-");
  EXPECT_EQ(sentence(event("checkpoint", R"(,"step":8)")), "-");
  EXPECT_EQ(sentence(event("something", "")), "-");
  EXPECT_EQ(sentence(fault(8)), "lost rank 2 (host a): it ended");
  EXPECT_EQ(sentence(event("fault", R"(,"step":8,"what":"save","reason":"the disk is full")")),
            "save failed: the disk is full");
  EXPECT_EQ(
      sentence(event("recovery",
                     R"(,"level":1,"ranks_before":4,"ranks_after":3,"lost_steps":1,"duration_ms":250.0)")),
      "the run goes on in place with 3 of 4 ranks after 0.25 s; 1 step again");
  EXPECT_EQ(sentence(event("verdict", R"(,"step":9,"reason":"the loss is not finite")")),
            "the loss is not finite");
  EXPECT_EQ(sentence(event("drain", R"(,"step":9,"host":"n1","reason":"xid 79")")),
            "host n1 is left after step 9: xid 79");
  EXPECT_EQ(sentence(event("finish", R"(,"state":"saved","step":9,"reason":"sealed for another start")")),
            "-");
  EXPECT_EQ(sentence(event("finish", R"(,"state":"failed","step":9,"exit_code":5,"reason":"no disk")")),
            "failed at step 9 with exit code 5: no disk");
}

TEST(NotifyMind, ASlowRankIsToldWhenItIsFoundAndWhenItIsOver) {
  NotifyMind mind({}, 0);
  const auto tells = [&](const char* more) {
    return mind
        .take(event("straggler",
                    fmt::format(R"(,"rank":1,"of":"rank","since_step":5,"reason":"slow"{})", more)),
              0)
        .has_value();
  };
  EXPECT_TRUE(tells(""));
  EXPECT_FALSE(tells(""));
  EXPECT_TRUE(tells(R"(,"until_step":9)"));
}

TEST(NotifyMind, AFloodIsLeftOutAndCounted) {
  NotifyMind mind({.at_most = 3}, 0);
  int told = 0;
  for (int step = 0; step < 50; ++step) told += mind.take(fault(step), second_ns) ? 1 : 0;
  EXPECT_EQ(told, 3);
  EXPECT_EQ(mind.left_out(), 47U);
  // A third of an hour makes room for one, which tells of the others.
  EXPECT_FALSE(mind.take(fault(50), 1100 * second_ns).has_value());
  const std::optional<Notification> next = mind.take(fault(51), 1300 * second_ns);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->left_out, 48U);
  EXPECT_EQ(mind.left_out(), 0U);
  EXPECT_FALSE(mind.take(fault(52), 1301 * second_ns).has_value());
  // The end is always told.
  const std::optional<Notification> end =
      mind.take(event("finish", R"(,"state":"finished","step":60)"), 1302 * second_ns);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->left_out, 1U);
  EXPECT_EQ(variables_of(*end, "abc", "runs/a").at("HOLDFAST_STATE"), "finished");
}

TEST(NotifyMind, WhereALauncherDecidesTheEndOfAStartIsNoEnd) {
  NotifyMind mind({.ends_with_start = false}, 0);
  EXPECT_FALSE(mind.take(event("finish", R"(,"state":"failed","step":60)"), 0).has_value());
  static_cast<void>(mind.take(event("step", R"(,"step":61)"), 0));
  EXPECT_EQ(mind.tell_end({.kind = "finish", .sentence = "it is over", .state = "failed"}).news.step, 61U);
}

TEST(NotifyMind, AHeartbeatNeedsSteps) {
  NotifyMind mind({.at_most = 1, .heartbeat_ms = 1000}, 0);
  const Json step = event("step", R"(,"step":5)");
  EXPECT_FALSE(mind.beat(0, 0).has_value());
  static_cast<void>(mind.take(step, 0));
  EXPECT_TRUE(mind.beat(0, 0).has_value());
  static_cast<void>(mind.take(step, 0));
  EXPECT_FALSE(mind.beat(second_ns / 2, 0).has_value()) << "too soon";
  const std::optional<Notification> beat = mind.beat(second_ns, 0);
  ASSERT_TRUE(beat.has_value());
  EXPECT_EQ(beat->news.step, 5U);
  EXPECT_FALSE(mind.beat(5 * second_ns, 0).has_value()) << "no step since";
  static_cast<void>(mind.take(step, 0));
  static_cast<void>(mind.take(event("finish", R"(,"state":"finished","step":5)"), 0));
  EXPECT_FALSE(mind.beat(9 * second_ns, 0).has_value()) << "the run is over";
  static_cast<void>(mind.take(event("start", R"(,"run":"abc","ranks":4,"resumed_from_step":5)"), 0));
  static_cast<void>(mind.take(step, 0));
  EXPECT_TRUE(mind.beat(10 * second_ns, 0).has_value()) << "it has gone on";
  NotifyMind silent({}, 0);
  static_cast<void>(silent.take(step, 0));
  EXPECT_FALSE(silent.beat(second_ns, 0).has_value()) << "off";
}

TEST(NotifyMind, TheSentenceIsOneBoundedLine) {
  std::string sentence = "a\nb\tc";
  for (int i = 0; i < 1000; ++i) sentence += "\u20ac";
  const std::string told = variables_of({.news = {.kind = "fault", .sentence = sentence}}, "abc", "runs/a")
                               .at("HOLDFAST_SENTENCE");
  EXPECT_EQ(told.substr(0, 5), "a b c");
  EXPECT_LE(told.size(), 2000U);
  EXPECT_EQ(told.substr(told.size() - 3), "\u20ac");
}

TEST(NotifyMind, WhatCouldNotBeToldIsLeftOut) {
  NotifyMind mind({}, 0, "abc");
  EXPECT_EQ(mind.run(), "abc");
  mind.leave_out({.news = {.kind = "fault"}, .left_out = 2});
  mind.leave_out({.news = {.kind = heartbeat_kind}, .left_out = 1});
  EXPECT_EQ(mind.tell_end({.state = "failed"}).left_out, 4U);
}

TEST(NotifyMind, TheEnvironmentIsSafeAndComplete) {
  const auto variables = variables_of(
      {.news = {.kind = "fault", .sentence = "host \x1b[31mn1", .step = 7, .time_us = 1'700'000'000'500'000},
       .left_out = 2},
      "abc", "runs/a");
  EXPECT_EQ(variables.at("HOLDFAST_EVENT"), "fault");
  EXPECT_EQ(variables.at("HOLDFAST_SENTENCE"), "host \\x1b[31mn1");
  EXPECT_EQ(variables.at("HOLDFAST_STEP"), "7");
  EXPECT_EQ(variables.at("HOLDFAST_TIME"), "1700000000");
  EXPECT_EQ(variables.at("HOLDFAST_RUN"), "abc");
  EXPECT_EQ(variables.at("HOLDFAST_DIRECTORY"), "runs/a");
  EXPECT_EQ(variables.at("HOLDFAST_LEFT_OUT"), "2");
  for (const char* empty :
       {"HOLDFAST_HOST", "HOLDFAST_RANK", "HOLDFAST_CAUSE", "HOLDFAST_STATE", "HOLDFAST_EXIT_CODE"})
    EXPECT_EQ(variables.at(empty), "") << empty;
}

}  // namespace
}  // namespace holdfast::test
