#include "tools/chaos/chaos_summary.h"
#include "runtime/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/chaos/second.h"
#include "tools/chaos/chaos_report.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

ChaosRun run_with(ChaosFault fault, std::int64_t time_us, std::vector<FaultEntry> entries) {
  ChaosRun run;
  run.plan.layout = {.ranks = 4};
  run.injected = {{.fault = fault, .time_us = time_us, .what = "kill -9 of rank 2 <b>"}};
  run.launches = {{.begun_us = 1, .ended_us = 100 * second}};
  run.ledger.faults = std::move(entries);
  return run;
}

TEST(ChaosSummary, HealedInPlace) {
  const ChaosRun run =
      run_with(ChaosFault::kill, 10 * second,
               {{.level = FaultLevel::in_place, .time_us = 4 * second, .resumed_us = 5 * second},
                {.level = FaultLevel::in_place,
                 .time_us = 10 * second + 4'000,
                 .resumed_us = 10 * second + 90'000,
                 .first_us = 1,
                 .is_last = true,
                 .shrink_ms = 6.0}});
  const CheckedFault checked = check(run).front();
  EXPECT_EQ(checked.outcome, ChaosOutcome::in_place);
  EXPECT_EQ(checked.notice_ms, 4.0);
  EXPECT_EQ(checked.mend_ms, 90.0);
  EXPECT_FALSE(checked.in_recovery);
}

TEST(ChaosSummary, WhileAnotherIsMended) {
  const ChaosRun run =
      run_with(ChaosFault::kill_in_recovery, 10 * second,
               {{.level = FaultLevel::in_place, .time_us = 9 * second + 950'000, .resumed_us = 11 * second}});
  const CheckedFault checked = check(run).front();
  EXPECT_TRUE(checked.in_recovery);
  EXPECT_EQ(checked.outcome, ChaosOutcome::in_place);
  EXPECT_EQ(checked.notice_ms, -1.0) << "it was noticed together with the one before";
}

// The rank that noticed the first death is dead, too, and what the log has begins later.
TEST(ChaosSummary, WhileTheBoardSaysThatAnotherIsMended) {
  ChaosRun run =
      run_with(ChaosFault::kill_in_recovery, 10 * second,
               {{.level = FaultLevel::in_place, .time_us = 10 * second + 30'000, .resumed_us = 11 * second}});
  EXPECT_FALSE(check(run).front().in_recovery);
  run.injected.front().during_recovery = true;
  EXPECT_TRUE(check(run).front().in_recovery);
}

TEST(ChaosSummary, Outcomes) {
  const auto outcome = [](ChaosFault fault, FaultLevel level) {
    return check(run_with(fault, 10 * second,
                          {{.level = level, .time_us = 10 * second, .resumed_us = 12 * second}}))
        .front()
        .outcome;
  };
  EXPECT_EQ(outcome(ChaosFault::mpirun_killed, FaultLevel::restart), ChaosOutcome::restarted);
  EXPECT_EQ(outcome(ChaosFault::job_killed, FaultLevel::launch), ChaosOutcome::launched_again);
  EXPECT_EQ(check(run_with(ChaosFault::kill, 10 * second, {})).front().outcome,
            ChaosOutcome::nothing_to_mend);
  EXPECT_EQ(outcome(ChaosFault::kill, FaultLevel::none), ChaosOutcome::nothing_to_mend)
      << "a save that failed";

  ChaosRun given_up =
      run_with(ChaosFault::kill, 10 * second,
               {{.level = FaultLevel::restart, .time_us = 10 * second, .resumed_us = 30 * second}});
  given_up.launches = {{.begun_us = 1, .ended_us = 20 * second, .exit_code = 76},
                       {.begun_us = 21 * second, .ended_us = 40 * second}};
  EXPECT_EQ(check(given_up).front().outcome, ChaosOutcome::ended_truthfully);

  ChaosRun wrong = given_up;
  wrong.wrong = "other bits";
  EXPECT_EQ(check(wrong).front().outcome, ChaosOutcome::wrong);
}

// A run that ends by itself explains itself, or it is wrong, whatever was done to it.
TEST(ChaosLaunches, EndTruthfullyOrWrongly) {
  const auto end = [](ExitCode code, const char* words, bool disk_was_full = false) {
    return end_of({.exit_code = static_cast<int>(code), .last_words = words}, disk_was_full);
  };
  const char* const full = "step 9 could not be saved: the disk is full";
  EXPECT_EQ(end(ExitCode::done, ""), LaunchEnd::done);
  EXPECT_EQ(end(ExitCode::communication, "1 rank is left"), LaunchEnd::ended_truthfully);
  EXPECT_EQ(end(ExitCode::communication, ""), LaunchEnd::wrong) << "it says nothing";
  EXPECT_EQ(end(ExitCode::checkpoint, full, true), LaunchEnd::ended_truthfully);
  EXPECT_EQ(end(ExitCode::checkpoint, full, false), LaunchEnd::wrong) << "it was not";
  EXPECT_EQ(end(ExitCode::checkpoint, "the manifest is damaged", true), LaunchEnd::wrong);
  for (const bool disk_was_full : {false, true}) {
    for (const ExitCode code : {ExitCode::config, ExitCode::does_not_fit, ExitCode::data, ExitCode::numerics,
                                ExitCode::saved, ExitCode{134}})
      EXPECT_EQ(end(code, full, disk_was_full), LaunchEnd::wrong) << static_cast<int>(code);
  }
  EXPECT_EQ(end_of({.killed = true, .exit_code = 9, .last_words = "words"}, false), LaunchEnd::wrong);
  const ChaosLaunch numerics{.exit_code = static_cast<int>(ExitCode::numerics), .last_words = "step 9: bits"};
  EXPECT_EQ(end_of(numerics, false, /*numbers_were_wrong=*/true), LaunchEnd::ended_truthfully);
}

TEST(ChaosLaunches, AreCountedByWhyAnotherOneFollowed) {
  std::vector<ChaosRun> runs(3, run_with(ChaosFault::kill, 10 * second, {}));
  runs[1].launches.resize(4);  // two launchers were killed, and it ended truthfully once
  runs[1].ended_truthfully = 1;
  runs[2].launches.clear();  // it could not be started
  const ChaosSummary summary = summarize(runs);
  EXPECT_EQ(summary.launches, 5);
  EXPECT_EQ(summary.launched_again, 2);
  EXPECT_EQ(summary.ended_truthfully, 1);
  EXPECT_THAT(to_text(summary), HasSubstr("5 launches of 3 runs: 2 after the launcher was killed, 1 after a "
                                          "run that ended truthfully\n"));
  const Json json = Json::parse(chaos_json({}, runs, summary));
  EXPECT_EQ(json["launches"], (Json{{"all", 5}, {"launched_again", 2}, {"ended_truthfully", 1}}));
  EXPECT_EQ(json["each"][1]["ended_truthfully"], 1);
  EXPECT_THAT(chaos_html({}, runs, summary), HasSubstr("of 5 launches; 2 more were killed"));
}

TEST(ChaosSummary, HangsAreCountedByWhomTheVerdictNamed) {
  const auto hung = [](int named) {
    ChaosRun run = run_with(ChaosFault::livelock, 10 * second,
                            {{.level = FaultLevel::restart,
                              .time_us = 15 * second,
                              .resumed_us = 17 * second,
                              .noticed = "rank 2 (host a) hangs: step 12 for 2.0 s; all 4 ranks died"}});
    run.injected.front().rank = 2;
    run.verdicts = {{.time_us = 12 * second, .rank = named, .sentence = "hangs"}};
    return run;
  };
  std::vector<ChaosRun> runs = {hung(2)};
  ChaosSummary summary = summarize(runs);
  EXPECT_EQ(summary.hangs, 1);
  EXPECT_EQ(summary.count_of(NamedRank::right), 1);
  EXPECT_EQ(check(runs.front()).front().notice_ms, 2'000.0) << "until the verdict, not until the start ended";
  EXPECT_THAT(to_text(summary),
              HasSubstr("of 1 hang, the verdict named the right rank 1 time, another one 0, none 0\n"));
  EXPECT_THAT(to_text(summary), HasSubstr("hang noticed"));
  EXPECT_THAT(chaos_html({}, runs, summary), HasSubstr("1 of 1"));

  runs.push_back(hung(3));
  runs.push_back(hung(-1));
  runs.push_back(run_with(ChaosFault::hang, 10 * second, {}));  // behind the last step
  runs.push_back(run_with(ChaosFault::kill, 10 * second, {}));
  runs.back().verdicts = {{.time_us = 12 * second, .rank = 1, .sentence = "hangs"}};
  summary = summarize(runs);
  EXPECT_THAT(
      to_text(summary),
      HasSubstr("of 4 hangs, the verdict named the right rank 1 time, another one 1, none 1; 1 was over "
                "before anybody had to notice; and 1 verdict named a rank while none hung"));
  const Json json = Json::parse(chaos_json({}, runs, summary));
  EXPECT_EQ(json["hangs"],
            (Json{{"injected", 4}, {"right", 1}, {"other", 1}, {"nobody", 1}, {"baseless_verdicts", 1}}));
  EXPECT_EQ(json["each"][1]["faults"][0]["named"], "other");
  EXPECT_EQ(json["each"][1]["verdicts"][0]["rank"], 3);
}

TEST(ChaosSummary, AFullDiskIsToldAndNoMore) {
  const ChaosRun run =
      run_with(ChaosFault::full_disk, 10 * second,
               {{.level = FaultLevel::none, .time_us = 10 * second + 70'000},
                {.level = FaultLevel::in_place, .time_us = 30 * second, .resumed_us = 31 * second}});
  EXPECT_EQ(check(run).front().outcome, ChaosOutcome::nothing_to_mend);
  EXPECT_EQ(check(run).front().notice_ms, 70.0);
  ChaosRun ended = run;
  ended.launches = {{.begun_us = 1, .ended_us = 20 * second, .exit_code = 5},
                    {.begun_us = 21 * second, .ended_us = 40 * second}};
  EXPECT_EQ(check(ended).front().outcome, ChaosOutcome::ended_truthfully);
}

TEST(ChaosSummary, PercentilesAreMeasuredValues) {
  ChaosDistribution times{.name = "t", .values_ms = {1, 2, 3, 4, 5, 6, 7, 8, 9, 100}};
  EXPECT_EQ(times.percentile(0.5), 5.0);
  EXPECT_EQ(times.percentile(0.9), 9.0);
  EXPECT_EQ(times.percentile(0.99), 100.0);
  EXPECT_EQ(times.percentile(1.0), 100.0);
  EXPECT_EQ(ChaosDistribution{}.percentile(0.5), 0.0);
}

TEST(ChaosReport, TellsTheSameInEveryForm) {
  std::vector<ChaosRun> runs = {run_with(ChaosFault::kill, 10 * second,
                                         {{.level = FaultLevel::in_place,
                                           .time_us = 10 * second + 4'000,
                                           .resumed_us = 10 * second + 90'000,
                                           .first_us = 1,
                                           .is_last = true}}),
                                run_with(ChaosFault::crash, 10 * second, {})};
  runs[1].wrong = "other bits than <the> undisturbed run";
  const ChaosSummary summary = summarize(runs);
  EXPECT_EQ(summary.runs, 2);
  EXPECT_EQ(summary.right, 1);
  EXPECT_EQ(summary.kills, 1);
  EXPECT_EQ(summary.faults, 2);
  const ChaosHeader header{.name = "chaos", .skipped = {{ChaosFault::hang, "no guard"}}};
  const Json json = Json::parse(chaos_json(header, runs, summary));
  EXPECT_EQ(json["faults"]["kill"]["in place"], 1);
  EXPECT_EQ(json["faults"]["crash"]["wrong"], 1);
  EXPECT_EQ(json["skipped"]["hang"], "no guard");
  EXPECT_EQ(json["times_ms"]["death noticed"]["median"], 4.0);
  EXPECT_EQ(json["each"][1]["right"], false);
  const std::string html = chaos_html(header, runs, summary);
  EXPECT_THAT(html, HasSubstr("1 wrong"));
  EXPECT_THAT(html, HasSubstr("left out: no guard"));
  EXPECT_THAT(html, Not(HasSubstr("<b>")));
  EXPECT_THAT(html, Not(HasSubstr("<the>")));
  EXPECT_THAT(to_text(summary), HasSubstr("death noticed"));
}

}  // namespace
}  // namespace holdfast::test
