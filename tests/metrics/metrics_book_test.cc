#include "runtime/metrics/metrics_book.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "runtime/run/event_log.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/run_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

template <Event E>
Json line_of_event(const E& event) {
  EventLine line;
  return Json::parse(put_event(event, line).end());
}

// The value in the sample of this name and these labels; empty: there is none.
std::string sample(const std::string& text, const std::string& name) {
  const std::size_t at = text.find("\n" + name + " ");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + name.size() + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

constexpr std::int64_t second_us = 1'000'000, begin_us = 1'700'000'000 * second_us;

class MetricsBookTest : public testing::Test {
 protected:
  void step(std::uint64_t number, double at_s, double loss, bool again = false) {
    StepEvent event{.time_us = begin_us + static_cast<std::int64_t>(at_s * 1e6),
                    .step = number,
                    .loss = loss,
                    .tokens = 512 * number,
                    .step_duration_ms = 1000,
                    .tokens_per_sec = 512};
    if (again) event.recomputed = true;
    book_.take(line_of_event(event));
  }
  std::string value(const std::string& name) const { return sample(book_.text(), name); }

  MetricsBook book_;
};

TEST_F(MetricsBookTest, HasTheNumbersOfTheNewestEventsAndSums) {
  book_.take(line_of_event(StartEvent{.time_us = begin_us,
                                      .run = "",
                                      .ranks = 4,
                                      .hosts = std::map<std::string, int>{{"n0", 2}, {"n1", 2}},
                                      .steps = 100,
                                      .device = "cpu"}));
  step(1, 1, 5.5);
  step(2, 2, 5.25);
  for (const double stall_ms : {250.0, 500.0})
    book_.take(line_of_event(CheckpointEvent{
        .time_us = begin_us + 3 * second_us, .step = 2, .bytes = 1'000'000, .stall_ms = stall_ms}));
  EXPECT_EQ(value("holdfast_loss"), "5.25");
  EXPECT_EQ(value("holdfast_step"), "2");
  EXPECT_EQ(value("holdfast_step_duration_seconds"), "1");
  EXPECT_EQ(value("holdfast_steps_total"), "2");
  EXPECT_EQ(value("holdfast_last_start_ranks"), "4");
  EXPECT_EQ(value("holdfast_ranks_on_host{host=\"n1\"}"), "2");
  EXPECT_EQ(value("holdfast_last_checkpoint_stall_seconds"), "0.5");
  EXPECT_EQ(value("holdfast_checkpoint_stall_seconds_total"), "0.75");
  EXPECT_EQ(value("holdfast_events_total{kind=\"checkpoint\"}"), "2");
  EXPECT_EQ(value("holdfast_event_timestamp_seconds{kind=\"step\"}"), "1700000002");
  EXPECT_THAT(book_.text(), HasSubstr(R"(holdfast_run_info{device="cpu"} 1)"));
  EXPECT_TRUE(book_.text().ends_with("# EOF\n"));
}

TEST_F(MetricsBookTest, HasWhatWasUsedOfEachSource) {
  StartEvent start{.time_us = begin_us};
  start.sources = {{"a", 10, 1.0}, {"b", 40, 1.0}};
  book_.take(line_of_event(start));
  const auto step = [&](std::uint64_t number, std::vector<std::uint64_t> samples) {
    StepEvent event{.time_us = begin_us, .step = number, .tokens = 640 * number};
    event.source_samples = std::move(samples);
    book_.take(line_of_event(event));
  };
  step(1, {12, 8});
  EXPECT_EQ(value(R"(holdfast_source_samples{source="0",path="a"})"), "12");
  EXPECT_EQ(value(R"(holdfast_source_tokens{source="1",path="b"})"), "256");
  EXPECT_EQ(value(R"(holdfast_source_epochs{source="0",path="a"})"), "1.2");
  const Json state = book_.state();
  book_ = MetricsBook();
  book_.begin_from(state);
  step(2, {20, 20});
  EXPECT_EQ(value(R"(holdfast_source_epochs{source="1",path="b"})"), "0.5");
  start.sources->front().path = "moved";
  book_.take(line_of_event(start));
  step(3, {30, 30});
  EXPECT_EQ(value(R"(holdfast_source_samples{source="0",path="moved"})"), "30");
  EXPECT_EQ(value(R"(holdfast_source_samples{source="0",path="a"})"), "");
}

// So that the files of several runs can lie beside each other.
TEST_F(MetricsBookTest, HasTheRunAsALabel) {
  step(1, 1, 5);
  book_.take(line_of_event(StartEvent{.time_us = begin_us, .run = "ab\"c"}));
  EXPECT_EQ(value(R"(holdfast_loss{run="ab\"c"})"), "5");
  EXPECT_EQ(value(R"(holdfast_events_total{run="ab\"c",kind="step"})"), "1");
}

// A number that the newest event does not have is not that of an older one.
TEST_F(MetricsBookTest, WhatAnEventDoesNotSayIsGone) {
  step(1, 1, 5, /*again=*/true);
  EXPECT_EQ(value("holdfast_recomputed"), "1");
  step(2, 2, 5);
  EXPECT_EQ(value("holdfast_recomputed"), "");
}

TEST_F(MetricsBookTest, ARunIsUnderWayUntilItIsOver) {
  const auto finish = [&](const char* state, const char* reason) {
    book_.take(line_of_event(FinishEvent{.time_us = begin_us, .state = state, .reason = reason}));
    return value("holdfast_under_way");
  };
  book_.take(line_of_event(StartEvent{.time_us = begin_us}));
  EXPECT_EQ(finish(FinishEvent::failed, "no disk"), "1")
      << "it makes no progress, which somebody has to hear";
  EXPECT_EQ(finish("saved", another_start_reason), "1");
  EXPECT_EQ(finish("finished", ""), "0");
}

TEST_F(MetricsBookTest, TellsThingsOfOneKindFromEachOther) {
  for (const int rank : {1, 1, 2})
    book_.take(line_of_event(
        StragglerEvent{.time_us = begin_us, .rank = rank, .host = "n0", .of = "rank", .factor = 1.0 + rank}));
  EXPECT_EQ(value(R"(holdfast_last_straggler_factor{rank="1",host="n0",of="rank"})"), "2");
  EXPECT_EQ(value(R"(holdfast_straggler_events_total{rank="1",host="n0",of="rank"})"), "2");
  EXPECT_EQ(value(R"(holdfast_straggler_events_total{rank="2",host="n0",of="rank"})"), "1");
}

TEST_F(MetricsBookTest, StepsThatAreMadeAgainAreNoGoodput) {
  book_.take(line_of_event(StartEvent{.time_us = begin_us}));
  for (std::uint64_t number = 1; number <= 4; ++number) step(number, static_cast<double>(number), 5);
  EXPECT_EQ(value("holdfast_goodput_ratio"), "1");
  book_.take(line_of_event(FaultEvent{.time_us = begin_us + 5 * second_us,
                                      .step = 4,
                                      .what = FaultEvent::rank,
                                      .cause = "rank-died",
                                      .reason = "x"}));
  step(3, 7, 5, true);
  book_.take(line_of_event(RecoveryEvent{.time_us = begin_us + 7 * second_us,
                                         .reason = "loss",
                                         .level = 1,
                                         .lost_steps = 2,
                                         .resumed_from = "ram"}));
  step(4, 8, 5, true);
  // 8 s: four steps that count, two of them made twice, a second until the fault and one of recovery.
  EXPECT_EQ(value("holdfast_goodput_ratio"), "0.5");
  EXPECT_EQ(value(R"(holdfast_time_seconds{use="training"})"), "4");
  EXPECT_EQ(value(R"(holdfast_time_seconds{use="lost work, stalls"})"), "3");
  EXPECT_EQ(value(R"(holdfast_time_seconds{use="recovery in place"})"), "1");
  EXPECT_EQ(value("holdfast_steps_total"), "6");
  EXPECT_EQ(value("holdfast_steps_again_total"), "2");
  EXPECT_EQ(value(R"(holdfast_fault_events_total{what="rank",cause="rank-died"})"), "1");
  EXPECT_EQ(value(R"(holdfast_fault_events_total{what="rank",cause="rank-hangs"})"), "0");
  EXPECT_EQ(value(R"(holdfast_last_recovery_lost_steps{reason="loss",resumed_from="ram"})"), "2");
}

TEST_F(MetricsBookTest, SaysWhatIsArmedAndWhatItCosts) {
  book_.take(line_of_event(StartEvent{.time_us = begin_us, .ranks = 2}));
  EXPECT_THAT(book_.text(), testing::Not(testing::HasSubstr("holdfast_cost")));
  book_.take(line_of_event(StartEvent{.time_us = begin_us,
                                      .ranks = 2,
                                      .armed = std::map<std::string, std::string>{{"watchdog", "5s"}},
                                      .unarmed = std::map<std::string, std::string>{{"spares", "none"}},
                                      .cost_per_rank_hour = 3600.0,
                                      .cost_currency = "$"}));
  EXPECT_EQ(value(R"(holdfast_armed{protection="watchdog"})"), "1");
  EXPECT_EQ(value(R"(holdfast_armed{protection="spares"})"), "0");
  step(1, 1.0, 5);
  step(2, 2.0, 5);
  book_.take(line_of_event(RecoveryEvent{.time_us = begin_us + 2'000'000,
                                         .level = RecoveryEvent::by_launcher,
                                         .ranks_before = 2,
                                         .ranks_after = 2}));
  EXPECT_EQ(value(R"(holdfast_armed{protection="watchdog"})"), "1") << "its start says what is on";
  EXPECT_EQ(value(R"(holdfast_time_cost{use="training",currency="$"})"), "4");
  EXPECT_EQ(value(R"(holdfast_cost{currency="$"})"), "4");
}

TEST_F(MetricsBookTest, NumbersThatAreNotFiniteAreSaid) {
  step(1, 1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(value("holdfast_loss"), "NaN");
  step(2, 2, 5);
  EXPECT_EQ(value("holdfast_loss"), "5");
}

// Every number of every kind is there by itself, with a help and one type, and no name is there twice.
TEST_F(MetricsBookTest, EveryNumberOfTheSchemaIsAMetric) {
  const auto take = [&](auto event) {
    event.time_us = begin_us;
    book_.take(line_of_event(event));
  };
  std::apply([&](const auto&... event) { (take(event), ...); }, EventKinds());
  const std::string text = book_.text();
  std::set<std::string> names;
  for (std::size_t at = text.find("# TYPE "); at != std::string::npos; at = text.find("# TYPE ", at + 1)) {
    const std::size_t begin = at + 7;
    EXPECT_TRUE(names.insert(text.substr(begin, text.find(' ', begin) - begin)).second);
  }
  EXPECT_GE(names.size(), 60U);
  for (const EventKind& kind : event_schema()) {
    for (const EventField& field : kind.fields) {
      if (field.type != "number" || !field.always) continue;
      std::string name(field.name);
      if (field.unit == "ms") name = name.substr(0, name.size() - 3) + "_seconds";
      EXPECT_TRUE(names.contains(kind.name == "step" ? "holdfast_" + name
                                                     : fmt::format("holdfast_last_{}_{}", kind.name, name)))
          << kind.name << " " << field.name;
    }
  }
}

TEST_F(MetricsBookTest, WhatIsNoEventIsNoMetric) {
  const std::string before = book_.text();
  for (const char* line : {"null", "[]", "7", "{}", R"({"event":3})"}) book_.take(Json::parse_any(line));
  EXPECT_EQ(book_.text(), before);
  book_.take(Json::parse_any(R"({"event":"of a later version","time_us":1,"loss":"high"})"));
  book_.take(Json::parse_any(R"({"event":"step","time_us":"late","loss":"high","step":-3})"));
  EXPECT_EQ(value("holdfast_events_total{kind=\"of a later version\"}"), "1");
  EXPECT_THAT(book_.text(), Not(HasSubstr("high")));
}

}  // namespace
}  // namespace holdfast::test
