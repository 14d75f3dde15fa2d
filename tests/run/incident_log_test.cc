#include "runtime/run/incident_log.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "runtime/report/playbook.h"
#include "runtime/report/report_sections.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/run_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Reads the incidents of a whole log; lines that are not whole are skipped.
IncidentLog read_incidents(std::string_view event_lines) {
  IncidentReader reader;
  for_each_event(event_lines, [&](const Json& event) { reader.read(event); });
  const SpanTimes live_us = reader.times_us();
  IncidentLog ledger = std::move(reader).finish();
  for (std::size_t use = 0; use < span_uses; ++use)
    EXPECT_EQ(live_us[use], ledger.time_us(static_cast<SpanUse>(use))) << "while the log is read";
  return ledger;
}

// A log in the making; times are milliseconds since its begin.
class Log {
 public:
  Log& start(int at_ms, const std::string& more = "\"resumed_from_step\":null") {
    return line(
        at_ms, "start",
        fmt::format("\"ranks\":4,\"join_ms\":10.0,\"worker_ms\":5.0,\"state_ms\":5.0,\"gemm_peak_ms\":0.0,{}",
                    more));
  }
  Log& step(int at_ms, int step, double duration_ms = 100.0) {
    return line(at_ms, "step", fmt::format("\"step\":{},\"step_duration_ms\":{}", step, duration_ms));
  }
  Log& line(int at_ms, const std::string& event, const std::string& more) {
    text_ += fmt::format("{{\"event\":\"{}\",\"time_us\":{},{}}}\n", event, time_us(at_ms), more);
    return *this;
  }
  static std::int64_t time_us(int at_ms) { return 1'700'000'000'000'000 + at_ms * 1000LL; }
  IncidentLog ledger() const { return read_incidents(text_); }
  std::string text_;
};

// 4 ranks for 0.7 s, then 2 for 0.3 s; what is computed again moves with the ranks that it had.
TEST(IncidentLog, CountsTheMoneyOfEachClass) {
  const std::string priced = R"("resumed_from_step":null,"cost_per_rank_hour":3600.0,"cost_currency":"$")";
  Log log;
  log.start(20, priced).step(120, 1).step(220, 2).step(320, 3);
  log.line(420, "fault", R"("step":3,"what":"rank","cause":"rank-died","lost":"rank 3","reason":"x")");
  log.step(720, 3, 100.0);
  log.line(720, "recovery", R"("reason":"loss","level":1,"ranks_before":4,"ranks_after":2,"lost_steps":1)");
  log.step(820, 4).step(920, 5).step(1'020, 6);
  const IncidentLog ledger = log.ledger();
  EXPECT_EQ(ledger.price.per_rank_hour, 3600.0);
  const std::array<double, span_uses> money = money_of(ledger.rank_times_us, ledger.price);
  const auto of = [&](SpanUse use) { return money[static_cast<std::size_t>(use)]; };
  EXPECT_NEAR(of(SpanUse::training), 3 * 0.1 * 4 + 3 * 0.1 * 2, 1e-9);
  EXPECT_NEAR(of(SpanUse::lost), 0.1 * 4 + 0.1 * 4, 1e-9) << "step 3 the first time, and until the fault";
  EXPECT_NEAR(of(SpanUse::recovery), 0.2 * 4, 1e-9);
  double all = 0.0;
  for (const double each : money) all += each;
  EXPECT_NEAR(all, 4 * 0.72 + 2 * 0.3, 1e-9);
  EXPECT_THAT(money_sentence(ledger.rank_times_us, ledger.price),
              testing::StartsWith("$3.48: training $1.80"));
  EXPECT_EQ(money_sentence(ledger.rank_times_us, {}), "");
}

// Nobody keeps the places of ranks for an hour where no launcher makes another start: that hour costs nothing.
TEST(IncidentLog, RanksThatAreGoneCostNothing) {
  const std::string priced = R"("resumed_from_step":null,"cost_per_rank_hour":3600.0,"cost_currency":"$")";
  const std::string by_launcher = R"("level":2,"step":1,"cause":"start-ended","reason":"x")";
  for (const bool is_held : {false, true}) {
    Log log;
    log.start(20, priced).step(120, 1);
    if (is_held) log.line(120, "fault", by_launcher);
    log.start(3'600'140, priced).step(3'600'240, 1);
    const IncidentLog ledger = log.ledger();
    const std::array<double, span_uses> money = money_of(ledger.rank_times_us, ledger.price);
    double all = 0.0;
    for (const double each : money) all += each;
    EXPECT_NEAR(all, is_held ? 4 * 3600.24 : 4 * 0.24, 1e-9);
    EXPECT_EQ(ledger.time_us(SpanUse::restart), 3'600'020'000);
  }
}

// What a restart waited for hosts costs what the ranks before it cost, also where others follow.
TEST(IncidentLog, WaitingIsPricedByTheRanksBeforeIt) {
  const std::string priced = R"("resumed_from_step":null,"cost_per_rank_hour":3600.0,"cost_currency":"$")";
  Log log;
  log.start(20, priced).step(120, 1);
  log.line(120, "fault", R"("level":2,"step":1,"cause":"start-ended","reason":"x")");
  log.line(10'140, "start", R"("ranks":1,"join_ms":20.0,)" + priced).step(10'240, 1);
  log.line(10'250, "recovery", R"("level":2,"ranks_before":4,"ranks_after":1,"waited_for_hosts_ms":9000)");
  const IncidentLog ledger = log.ledger();
  for (const std::int64_t rank_us : ledger.rank_times_us) EXPECT_GE(rank_us, 0);
  EXPECT_EQ(ledger.time_us(SpanUse::waiting), 9'000'000);
  const std::array<double, span_uses> money = money_of(ledger.rank_times_us, ledger.price);
  const std::int64_t restart_us = ledger.time_us(SpanUse::restart);
  EXPECT_EQ(restart_us, 1'020'000);
  EXPECT_NEAR(money[static_cast<std::size_t>(SpanUse::waiting)], 9.0 * 4, 0.2);
}

void expect_uses(const IncidentLog& ledger, const std::map<SpanUse, int>& expected_ms) {
  for (std::size_t i = 0; i < span_uses; ++i) {
    const auto use = static_cast<SpanUse>(i);
    const auto found = expected_ms.find(use);
    EXPECT_EQ(ledger.time_us(use), 1000 * (found == expected_ms.end() ? 0 : found->second)) << name_of(use);
  }
  std::int64_t sum = 0, sum_of_uses = 0;
  for (const std::int64_t each : ledger.times_us) sum_of_uses += each;
  for (std::size_t i = 0; i < ledger.spans.size(); ++i) {
    sum += ledger.spans[i].end_us - ledger.spans[i].begin_us;
    if (i > 0) {
      EXPECT_EQ(ledger.spans[i].begin_us, ledger.spans[i - 1].end_us);
      EXPECT_NE(ledger.spans[i].use, ledger.spans[i - 1].use);
    }
  }
  EXPECT_EQ(sum, ledger.end_us() - ledger.begin_us());
  EXPECT_EQ(sum_of_uses, sum);
}

const std::string death =
    "\"step\":3,\"what\":\"rank\",\"lost\":\"rank 2 (host "
    "a)\",\"noticed_us\":1700000000350000,\"reason\":\"it ended\"";
const std::string healed =
    "\"level\":1,\"ranks_before\":4,\"ranks_after\":3,\"lost_steps\":1,\"resumed_from_step\":2,\"resumed_"
    "from\":\"ram\","
    "\"duration_ms\":180.0,\"shrink_ms\":10.0,\"plan_ms\":20.0,\"load_ms\":30.0,\"replay_ms\":120.0";

TEST(IncidentLog, NothingHappened) {
  const IncidentLog ledger = Log().start(0).step(100, 1).step(200, 2).ledger();
  expect_uses(ledger, {{SpanUse::start_up, 20}, {SpanUse::training, 200}});
  EXPECT_TRUE(ledger.faults.empty());
  EXPECT_EQ(summary_of(ledger), "");
  EXPECT_THAT(faults_section(ledger), testing::HasSubstr("Where the time went"));
  EXPECT_THAT(faults_section(ledger), testing::Not(testing::HasSubstr("<h2>Faults")));
  EXPECT_EQ(faults_section({}), "");
  EXPECT_TRUE(read_incidents("").spans.empty());
  EXPECT_EQ(read_incidents("").effective_ratio(), 0.0);
}

TEST(IncidentLog, SavingAndEvaluationAreTimeBesideSteps) {
  Log log;
  log.start(0).step(100, 1).line(150, "checkpoint", "\"step\":1").step(250, 2);
  const IncidentLog ledger = log.ledger();
  expect_uses(ledger, {{SpanUse::start_up, 20}, {SpanUse::training, 200}, {SpanUse::other, 50}});
  ASSERT_EQ(ledger.saves.size(), 1U);
  EXPECT_EQ(ledger.saves[0].step, 1U);
}

TEST(IncidentLog, EventsThatSayWhatTimeTheyTookMakeClasses) {
  Log log;
  log.start(0).step(100, 1);
  log.line(130, "evaluation", "\"step\":1,\"loss\":2.0,\"duration_ms\":20.0");  // 10 ms before it
  // 40 ms between it and the step, of which 15 are a save's.
  log.line(270, "step",
           "\"step\":2,\"step_duration_ms\":100.0,\"save_ms\":15.0,\"stall_ms\":5.0,\"data_ms\":7.0,"
           "\"again_ms\":30.0");
  expect_uses(log.ledger(), {{SpanUse::start_up, 20},
                             {SpanUse::training, 158},
                             {SpanUse::evaluation, 20},
                             {SpanUse::saving, 20},
                             {SpanUse::data, 7},
                             {SpanUse::checking, 30},
                             {SpanUse::other, 35}});
  // The parts of a step are never more than the step.
  log.line(370, "step", "\"step\":3,\"step_duration_ms\":100.0,\"data_ms\":70.0,\"again_ms\":60.0");
  EXPECT_EQ(log.ledger().time_us(SpanUse::training), 158'000);
  EXPECT_EQ(log.ledger().time_us(SpanUse::checking), 60'000);
}

TEST(IncidentLog, WhatASlowRankCostsIsCountedOnce) {
  const auto slow = [](double lost_seconds, const char* more) {
    return fmt::format("\"rank\":2,\"host\":\"a\",\"of\":\"rank\",\"since_step\":1,\"lost_seconds\":{}{}",
                       lost_seconds, more);
  };
  Log log;
  log.start(0).step(100, 1).step(200, 2).line(200, "straggler", slow(0.05, ""));
  log.step(300, 3).line(300, "straggler", slow(0.08, ""));
  log.step(400, 4).line(400, "straggler", slow(0.09, ",\"until_step\":4"));
  const std::map<SpanUse, int> expected = {
      {SpanUse::start_up, 20}, {SpanUse::training, 310}, {SpanUse::straggling, 90}};
  expect_uses(log.ledger(), expected);
  EXPECT_NEAR(log.ledger().effective_ratio(), 310.0 / 420.0, 1e-9);
  // What rank 0 waits for its own data is in its steps.
  log.line(400, "straggler", "\"rank\":0,\"of\":\"input\",\"since_step\":1,\"lost_seconds\":0.1");
  expect_uses(log.ledger(), expected);
  // A claim of more than there is does not make the training negative, and neither do steps that are lost.
  log.line(400, "straggler", slow(9.0, ""));
  EXPECT_EQ(log.ledger().time_us(SpanUse::straggling), 400'000);
  log.line(410, "fault", death).step(530, 3).line(531, "recovery", healed);
  const IncidentLog ledger = log.ledger();
  EXPECT_GE(ledger.time_us(SpanUse::training), 0);
  std::int64_t sum_us = 0;
  for (const std::int64_t each : ledger.times_us) sum_us += each;
  EXPECT_EQ(sum_us, ledger.end_us() - ledger.begin_us());
}

TEST(IncidentLog, WaitingForHostsIsNoTimeOfTheRestart) {
  for (const bool is_told_late : {false, true}) {
    Log log;
    log.start(0).step(100, 1).step(200, 2);
    log.line(300, "fault", "\"level\":2,\"step\":2,\"reason\":\"a host is gone\"");
    log.start(2020, "\"resumed_from_step\":2");
    const std::string again = "\"level\":2,\"ranks_before\":4,\"ranks_after\":4,\"waited_for_hosts_ms\":1500";
    if (!is_told_late) log.line(2030, "recovery", again);
    log.step(2200, 3);
    if (is_told_late) log.line(2200, "recovery", again);
    const IncidentLog ledger = log.step(2300, 4).ledger();
    expect_uses(ledger, {{SpanUse::start_up, 20},
                         {SpanUse::training, 400},
                         {SpanUse::lost, 100},
                         {SpanUse::waiting, 1500},
                         {SpanUse::restart, 300}});
  }
}

TEST(IncidentLog, ALogWithoutItsBegin) {
  const std::map<SpanUse, int> expected = {{SpanUse::training, 200}, {SpanUse::other, 50}};
  Log log;
  log.step(200, 2).line(250, "checkpoint", "\"step\":2").step(350, 3);
  expect_uses(log.ledger(), expected);
  Log saved;
  saved.line(200, "checkpoint", "\"step\":2").step(350, 3).step(450, 4);
  expect_uses(saved.ledger(), expected);
  // The death of a start that it does not have is followed by one that it has.
  log.start(5000, "\"resumed_from_step\":2").step(5100, 3);
  EXPECT_EQ(log.ledger().faults.size(), 1U);
  EXPECT_EQ(log.ledger().time_us(SpanUse::restart), 4'650'000);
  // A launcher speaks before the first start, which is no death.
  Log launched;
  launched.line(0, "exclude", "\"host\":\"a\"").start(500).step(600, 1);
  expect_uses(launched.ledger(), {{SpanUse::start_up, 20}, {SpanUse::training, 100}});
  EXPECT_TRUE(launched.ledger().faults.empty());
}

// New ranks that did not join are behind the run with its next step.
TEST(IncidentLog, AGrowthThatFailed) {
  Log log;
  log.start(0).step(100, 1);
  log.line(150, "fault",
           "\"step\":1,\"what\":\"growth\",\"cause\":\"growth-failed\",\"reason\":\"nobody came\"");
  log.step(260, 2).step(400, 3, 130.0);
  const IncidentLog ledger = log.ledger();
  ASSERT_EQ(ledger.faults.size(), 1U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::none);
  EXPECT_EQ(ledger.faults[0].resumed_us, Log::time_us(260));
  EXPECT_EQ(playbook_entry(ledger.faults[0], nullptr, false).kind, "growth-failed");
  EXPECT_EQ(ledger.time_us(SpanUse::other), 10'000);
  EXPECT_EQ(ledger.time_us(SpanUse::recovery), 10'000);
  log.line(450, "fault", "\"step\":3,\"what\":\"rank\",\"lost\":\"rank 2\",\"reason\":\"it ended\"");
  log.step(600, 3).line(600, "recovery", healed);
  ASSERT_EQ(log.ledger().faults.size(), 2U);
  EXPECT_EQ(log.ledger().faults[0].action, "training went on");
  EXPECT_DOUBLE_EQ(log.ledger().faults[1].pause_s(), 0.15);
}

// A step of which a reader is reminded is lost as one that it has read: without what was saving or waiting.
TEST(IncidentLog, RemindedStepsAreLostWithoutTheirParts) {
  Log log;
  log.start(0);
  log.line(100, "step", "\"step\":1,\"step_duration_ms\":100.0,\"stall_ms\":30.0,\"data_ms\":20.0");
  const std::string first = log.text_;
  log.line(150, "fault", death).step(300, 1).line(300, "recovery", healed);
  IncidentReader before(/*keeps_spans=*/false);
  for_each_event(first, [&](const Json& event) { before.read(event); });
  IncidentReader after(Json::parse_any(before.state().dump_any()));
  for_each_event(first, [&](const Json& event) { after.remind(event); });
  for_each_event(std::string_view(log.text_).substr(first.size()),
                 [&](const Json& event) { after.read(event); });
  EXPECT_EQ(after.times_us(), log.ledger().times_us);
}

TEST(IncidentLog, AllRanksThatAreSlowerWaitForNobody) {
  Log log;
  log.start(0).step(100, 1);
  log.line(100, "straggler", "\"of\":\"all\",\"since_step\":1,\"lost_seconds\":0.05");
  EXPECT_EQ(log.ledger().time_us(SpanUse::straggling), 0);
}

// One that goes on through very many others is counted once, too.
TEST(IncidentLog, ManyEpisodesOfSlowRanks) {
  Log log;
  log.start(0).step(10'000'000, 1, 10'000'000.0);
  const auto slow = [&](int rank, int lost_seconds) {
    log.line(
        10'000'000, "straggler",
        fmt::format("\"rank\":{},\"of\":\"rank\",\"since_step\":1,\"lost_seconds\":{}", rank, lost_seconds));
  };
  slow(9999, 100);
  for (int rank = 1000; rank < 2500; ++rank) slow(rank, 1);
  slow(9999, 101);
  EXPECT_EQ(log.ledger().time_us(SpanUse::straggling), 1'601'000'000);
}

// A reader that goes on from the state of another one ends up with the same, whether or not the run had gone back before.
TEST(IncidentLog, GoesOnFromAState) {
  Log log;
  log.start(0).step(100, 1).step(200, 2);
  log.line(200, "straggler", "\"rank\":2,\"of\":\"rank\",\"since_step\":1,\"lost_seconds\":0.05");
  const std::string first = log.text_;
  log.line(300, "fault", "\"level\":2,\"step\":2,\"reason\":\"a host is gone\"");
  log.line(400, "straggler", "\"rank\":2,\"of\":\"rank\",\"since_step\":1,\"lost_seconds\":0.07");
  log.start(2020, "\"resumed_from_step\":1").step(2200, 2).step(2300, 3);
  IncidentReader before(/*keeps_spans=*/false);
  for_each_event(first, [&](const Json& event) { before.read(event); });
  IncidentReader after(Json::parse_any(before.state().dump_any()));
  for_each_event(first, [&](const Json& event) { after.remind(event); });
  for_each_event(std::string_view(log.text_).substr(first.size()),
                 [&](const Json& event) { after.read(event); });
  const IncidentLog whole = log.ledger();
  EXPECT_EQ(after.times_us(), whole.times_us);
  EXPECT_EQ(after.lost_steps(), whole.lost_steps);

  Log back;
  back.start(0).step(100, 1).step(200, 2).step(300, 3);
  back.line(350, "fault", death).step(450, 2).line(450, "recovery", healed);
  const std::string until_back = back.text_;
  back.step(600, 3, 150.0).step(700, 4);
  IncidentReader until(/*keeps_spans=*/false);
  for_each_event(until_back, [&](const Json& event) { until.read(event); });
  IncidentReader beyond(Json::parse_any(until.state().dump_any()));
  for_each_event(until_back, [&](const Json& event) { beyond.remind(event); });
  for_each_event(std::string_view(back.text_).substr(until_back.size()),
                 [&](const Json& event) { beyond.read(event); });
  EXPECT_EQ(beyond.times_us(), back.ledger().times_us);
}

TEST(IncidentLog, HealedInPlace) {
  Log log;
  log.start(0).step(100, 1).step(200, 2).step(300, 3);
  log.line(410, "fault", death).step(530, 3).line(531, "recovery", healed).step(631, 4);
  const IncidentLog ledger = log.ledger();
  // Step 3 as it was first, and half a step of the next are lost; 80 ms are recovery; the event takes 1 ms.
  expect_uses(ledger, {{SpanUse::start_up, 20},
                       {SpanUse::training, 400},
                       {SpanUse::lost, 150},
                       {SpanUse::recovery, 80},
                       {SpanUse::other, 1}});
  ASSERT_EQ(ledger.faults.size(), 1U);
  const FaultEntry& fault = ledger.faults[0];
  EXPECT_EQ(fault.level, FaultLevel::in_place);
  EXPECT_EQ(fault.time_us, Log::time_us(350));
  EXPECT_EQ(fault.resumed_us, Log::time_us(530));
  EXPECT_DOUBLE_EQ(fault.pause_s(), 0.18);
  EXPECT_EQ(fault.who, "rank 2 (host a)");
  EXPECT_EQ(fault.noticed, "it ended");
  EXPECT_EQ(fault.action, "3 of 4 ranks went on from step 2 in RAM; 1 step again");
  EXPECT_EQ(fault.shrink_ms, 10.0);
  EXPECT_EQ(fault.replay_ms, 120.0);
  EXPECT_EQ(ledger.lost_steps, 1U);
  EXPECT_NEAR(ledger.effective_ratio(), 400.0 / 651.0, 1e-9);
  EXPECT_EQ(summary_of(ledger), "1 fault: 1 healed in place; 1 step computed again; goodput 61.4 %");
}

TEST(IncidentLog, TwoFaultsMendedTogether) {
  Log log;
  log.start(0).step(100, 1).step(200, 2).step(300, 3).line(410, "fault", death);
  log.line(450, "fault",
           "\"step\":3,\"what\":\"rank\",\"lost\":\"rank 3 (host a)\",\"noticed_us\":1700000000440000");
  const IncidentLog ledger = log.step(600, 3).line(600, "recovery", healed).ledger();
  ASSERT_EQ(ledger.faults.size(), 2U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::in_place);
  EXPECT_EQ(ledger.faults[0].action, "mended together with the next");
  EXPECT_DOUBLE_EQ(ledger.faults[0].pause_s(), 0.0);
  EXPECT_DOUBLE_EQ(ledger.faults[1].pause_s(), 0.25) << "since the first was noticed";
  expect_uses(
      ledger,
      {{SpanUse::start_up, 20}, {SpanUse::training, 300}, {SpanUse::lost, 150}, {SpanUse::recovery, 150}});
}

TEST(IncidentLog, StartedAgain) {
  Log log;
  log.start(0).step(100, 1).step(200, 2).step(300, 3).step(400, 4);
  log.line(500, "fault", "\"level\":2,\"step\":4,\"reason\":\"mpirun was killed by signal 9\"");
  log.start(1500, "\"resumed_from_step\":2,\"resumed_from\":\"disk\"").step(1700, 3);
  log.line(1710, "recovery",
           "\"level\":2,\"ranks_before\":4,\"ranks_after\":4,\"lost_steps\":2,\"duration_ms\":1210");
  const IncidentLog ledger = log.step(1800, 4).ledger();
  expect_uses(
      ledger,
      {{SpanUse::start_up, 20}, {SpanUse::training, 400}, {SpanUse::lost, 300}, {SpanUse::restart, 1100}});
  ASSERT_EQ(ledger.faults.size(), 1U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::restart);
  EXPECT_EQ(ledger.faults[0].action, "started again on 4 ranks from step 2 on disk; 2 steps again");
  EXPECT_DOUBLE_EQ(ledger.faults[0].pause_s(), 1.2);
  EXPECT_EQ(ledger.lost_steps, 2U);
}

// The next leader says which lines the one before could not write: before its start, or in place before the
// fault. That ends nothing, and is not the last word of the one before.
TEST(IncidentLog, LinesThatDiedWithTheirWriter) {
  const std::string gap = "\"first_step\":2,\"last_step\":3";
  Log log;
  log.start(0).step(100, 1);
  log.line(500, "fault", "\"level\":2,\"step\":1,\"reason\":\"mpirun was killed by signal 9\"");
  log.line(1400, "gap", gap).start(1500, "\"resumed_from_step\":3,\"resumed_from\":\"ram\"").step(1700, 4);
  const IncidentLog ledger = log.ledger();
  ASSERT_EQ(ledger.faults.size(), 1U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::restart);
  EXPECT_EQ(ledger.faults[0].action, "started again on 4 ranks from step 3 in RAM");
  EXPECT_EQ(ledger.faults[0].resumed_us, Log::time_us(1700));
  EXPECT_EQ(ledger.lost_steps, 0U);

  Log silent_log;
  silent_log.start(0).step(100, 1).line(1400, "gap", gap);
  silent_log.start(1500, "\"resumed_from_step\":3,\"resumed_from\":\"ram\"").step(1700, 4);
  const IncidentLog silent = silent_log.ledger();
  ASSERT_EQ(silent.faults.size(), 1U);
  EXPECT_EQ(silent.faults[0].time_us, Log::time_us(100));
  EXPECT_EQ(silent.faults[0].step, 3U);
  EXPECT_EQ(silent.lost_steps, 0U);

  Log healed_log;
  healed_log.start(0).step(100, 1).line(460, "gap", gap).line(410, "fault", death).step(530, 4);
  const IncidentLog healed_ledger = healed_log.line(530, "recovery", healed).ledger();
  ASSERT_EQ(healed_ledger.faults.size(), 1U);
  EXPECT_EQ(healed_ledger.faults[0].level, FaultLevel::in_place);
  EXPECT_DOUBLE_EQ(healed_ledger.faults[0].pause_s(), 0.18);
}

TEST(IncidentLog, AnEndWithoutAWord) {
  Log log;
  log.start(0)
      .step(100, 1)
      .step(200, 2)
      .start(5000, "\"resumed_from_step\":1,\"resumed_from\":\"ram\"")
      .step(5100, 2);
  const IncidentLog ledger = log.ledger();
  expect_uses(
      ledger,
      {{SpanUse::start_up, 20}, {SpanUse::training, 200}, {SpanUse::lost, 100}, {SpanUse::restart, 4800}});
  ASSERT_EQ(ledger.faults.size(), 1U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::launch);
  EXPECT_EQ(ledger.faults[0].time_us, Log::time_us(200));
  EXPECT_EQ(ledger.faults[0].action, "started again on 4 ranks from step 1 in RAM; 1 step again");
}

TEST(IncidentLog, AStopThatWasAskedForIsNoFault) {
  Log log;
  log.start(0).step(100, 1).line(120, "finish", "\"state\":\"saved\",\"step\":1,\"exit_code\":75");
  log.start(5000, "\"resumed_from_step\":1,\"resumed_from\":\"disk\"").step(5100, 2);
  log.line(5110, "finish", "\"state\":\"finished\",\"step\":2,\"exit_code\":0");
  const IncidentLog ledger = log.ledger();
  EXPECT_TRUE(ledger.faults.empty());
  expect_uses(
      ledger,
      {{SpanUse::start_up, 40}, {SpanUse::training, 200}, {SpanUse::saving, 30}, {SpanUse::paused, 4860}});
  EXPECT_NEAR(ledger.effective_ratio(), 200.0 / 270.0, 1e-9) << "a pause is no time of the run's";
}

TEST(IncidentLog, AStartWithMoreRanksIsNoFaultButTakesItsTime) {
  Log log;
  log.start(0).step(100, 1).line(
      120, "finish",
      fmt::format("\"state\":\"saved\",\"step\":1,\"exit_code\":75,\"reason\":\"{}\"", another_start_reason));
  log.start(5000, "\"resumed_from_step\":1,\"resumed_from\":\"ram\"").step(5200, 2);
  log.line(5210, "finish", "\"state\":\"finished\",\"step\":2,\"exit_code\":0");
  const IncidentLog ledger = log.ledger();
  EXPECT_TRUE(ledger.faults.empty());
  expect_uses(
      ledger,
      {{SpanUse::start_up, 20}, {SpanUse::training, 200}, {SpanUse::saving, 30}, {SpanUse::restart, 4980}});
}

// Preempted in a recovery, or in the start behind a fault: what is in memory is saved before another step.
TEST(IncidentLog, SavedAndStoppedWithoutAnotherStep) {
  const std::string saved = "\"state\":\"saved\",\"step\":2,\"exit_code\":75";
  Log log;
  log.start(0).step(100, 1).step(200, 2).step(300, 3).line(410, "fault", death);
  log.line(500, "checkpoint", "\"step\":2").line(510, "finish", saved);
  const IncidentLog ledger = log.ledger();
  ASSERT_EQ(ledger.faults.size(), 1U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::in_place);
  EXPECT_EQ(ledger.faults[0].action, "step 2 was saved and the run stopped, as it was asked to");
  EXPECT_DOUBLE_EQ(ledger.faults[0].pause_s(), 0.16);
  EXPECT_THAT(summary_of(ledger), HasSubstr("1 healed in place;"));
  expect_uses(
      ledger,
      {{SpanUse::start_up, 20}, {SpanUse::training, 300}, {SpanUse::lost, 50}, {SpanUse::recovery, 160}});

  // It goes on later, which is nothing that the fault did.
  log.start(5000, "\"resumed_from_step\":2,\"resumed_from\":\"disk\"").step(5100, 3);
  const IncidentLog whole = log.ledger();
  ASSERT_EQ(whole.faults.size(), 1U);
  EXPECT_EQ(whole.faults[0].level, FaultLevel::in_place);
  EXPECT_DOUBLE_EQ(whole.faults[0].pause_s(), 0.16);
  EXPECT_EQ(whole.lost_steps, 1U);

  // As the run says it since.
  Log said;
  said.start(0).step(100, 1).step(200, 2).step(300, 3).line(410, "fault", death);
  said.line(500, "checkpoint", "\"step\":2").line(505, "recovery", healed).line(510, "finish", saved);
  EXPECT_EQ(said.ledger().faults[0].action, "3 of 4 ranks went on from step 2 in RAM; 1 step again");
  EXPECT_EQ(said.ledger().faults[0].level, FaultLevel::in_place);

  Log again;
  again.start(0).step(100, 1).step(200, 2);
  again.line(500, "fault", "\"level\":2,\"step\":2,\"reason\":\"mpirun was killed by signal 9\"");
  again.start(1500, "\"resumed_from_step\":2,\"resumed_from\":\"ram\"").line(1600, "finish", saved);
  again.start(9000, "\"resumed_from_step\":2,\"resumed_from\":\"disk\"").step(9100, 3);
  const IncidentLog restarted = again.ledger();
  ASSERT_EQ(restarted.faults.size(), 1U);
  EXPECT_EQ(restarted.faults[0].level, FaultLevel::restart);
  EXPECT_DOUBLE_EQ(restarted.faults[0].pause_s(), 1.1) << "not the time until somebody started it again";
  EXPECT_EQ(restarted.faults[0].action, "step 2 was saved and the run stopped, as it was asked to");
}

TEST(IncidentLog, AFailedSaveIsBesideTraining) {
  Log log;
  log.start(0)
      .step(100, 1)
      .line(150, "fault", "\"step\":1,\"what\":\"save\",\"reason\":\"no space\"")
      .step(250, 2, 150.0);
  const IncidentLog ledger = log.ledger();
  ASSERT_EQ(ledger.faults.size(), 1U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::none);
  EXPECT_EQ(ledger.faults[0].noticed, "save: no space");
  EXPECT_FALSE(ledger.disturbed());
  expect_uses(ledger, {{SpanUse::start_up, 20}, {SpanUse::training, 250}});
}

TEST(IncidentLog, TheEndOfARunThatFailed) {
  Log log;
  log.start(0).step(100, 1);
  log.line(200, "finish", "\"state\":\"failed\",\"step\":1,\"exit_code\":76,\"reason\":\"too few are left\"");
  const IncidentLog ledger = log.ledger();
  ASSERT_EQ(ledger.faults.size(), 1U);
  EXPECT_EQ(ledger.faults[0].level, FaultLevel::ended);
  EXPECT_EQ(ledger.faults[0].action, "ended with exit code 76: too few are left");
  EXPECT_THAT(summary_of(ledger), HasSubstr("1 not mended"));
}

TEST(IncidentLog, LinesThatAreNotWholeAndForeignFields) {
  const IncidentLog ledger = read_incidents(
      "{\"event\":\"start\",\"time_us\":1000000,\"ranks\":\"four\"}\nnonsense\n{\"event\":\"step\",\"time_"
      "us\":\"late\"}\n"
      "{\"event\":\"step\",\"time_us\":2000000,\"step\":1,\"step_duration_ms\":null}\n{\"event\":\"ste");
  EXPECT_TRUE(ledger.faults.empty());
  EXPECT_EQ(ledger.end_us() - ledger.begin_us(), 1'000'000);
}

TEST(FaultReport, PictureAndTable) {
  Log log;
  log.start(0).step(100, 1).step(200, 2).step(300, 3).line(305, "checkpoint", "\"step\":3");
  log.line(410, "fault", death).step(530, 3).line(531, "recovery", healed).step(631, 4);
  const std::string html = faults_section(log.ledger());
  EXPECT_THAT(html, HasSubstr("Effective training time"));
  EXPECT_THAT(html, HasSubstr("class=\"span use-recovery\""));
  EXPECT_THAT(
      html,
      HasSubstr("<title>rank 2 (host a): 3 of 4 ranks went on from step 2 in RAM; 1 step again</title>"));
  EXPECT_THAT(html, HasSubstr("checkpoint of step 3"));
  EXPECT_THAT(html, HasSubstr(">0.18 s<"));
  EXPECT_THAT(html, HasSubstr("shrink 0.01 s, plan 0.02 s, load 0.03 s, first step 0.12 s"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(FaultReport, WordsOfTheLogAreNoMarkup) {
  Log log;
  log.start(0)
      .step(100, 1)
      .line(150, "fault", "\"step\":1,\"what\":\"save\",\"reason\":\"<script>\"")
      .step(250, 2);
  EXPECT_THAT(faults_section(log.ledger()), Not(HasSubstr("<script>")));
}

}  // namespace
}  // namespace holdfast::test
