// Reliability of a planned run: the numbers follow from what is stated, what was measured wins, and each says where it is from.
#include "runtime/plan/reliability_report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/config/loader.h"
#include "runtime/run/failure_record.h"
#include "runtime/run/run_directory.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

const PeakPrices products(1e12, 1e30, "products");

// 8 layers of a small model on 64 GPUs, 8 in a host.
Config cluster_config() {
  Config config;
  config.model.layers = 8;
  config.model.heads = 4;
  config.model.width = 256;
  config.device = "cuda";
  config.run.directory = "unused";
  config.training.steps = 1'000'000;
  config.training.sequence_length = 256;
  config.training.microbatch_size = 8;
  config.parallel.lanes = 64;
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

ReliabilityPlan planned(const Config& config, const RunFigures& figures = {},
                        const ReliabilityOptions& options = {.device_kind = "h100"}) {
  PlannedMachine machine = machine_of(config, 64);
  machine.ranks_per_host = 8;
  machine.prices = &products;
  machine.link_bytes_per_second = 45e9;
  const Result<LayoutPlan> plan = plan_layout(posix_env(), config, 64, machine);
  HF_CHECK(plan.ok(), "{}", plan.error().message);
  return plan_reliability(*plan, machine, figures, options);
}

TEST(Reliability, FollowsFromTheDevices) {
  Config config = cluster_config();
  const ReliabilityPlan plan =
      planned(config, {}, {.device_kind = "h100", .replacement_seconds = 30 * day_seconds});
  EXPECT_NEAR(plan.mtbf_seconds / hour_seconds, 50'677.0 / 64.0, 1.0);
  EXPECT_EQ(plan.hosts, 8);
  ASSERT_TRUE(plan.step_seconds.has_value());
  EXPECT_EQ(plan.step_seconds->source, "estimated above");
  EXPECT_DOUBLE_EQ(plan.training_seconds, 1e6 * plan.step_seconds->value);
  EXPECT_NEAR(plan.p_no_failure, std::exp(-plan.training_seconds / plan.mtbf_seconds), 1e-12);
  EXPECT_GT(plan.spares_95, 0);
  EXPECT_EQ(plan.spares_95 % 8, 0) << "whole hosts";
  EXPECT_GT(plan.spares_99, plan.spares_95);
  EXPECT_DOUBLE_EQ(plan.saving_mtbf_seconds, day_seconds) << "until its history says otherwise";
  const RunTime& time = plan.time;
  EXPECT_NEAR(time.training + time.saves + time.lost + time.recovery + time.waiting, time.elapsed(), 1e-6);
  ASSERT_EQ(plan.others.size(), 3U);
  EXPECT_LT(plan.others[0].elapsed_seconds, time.elapsed()) << "spares are worth it";
  EXPECT_EQ(plan.others[0].ranks, 64.0 + static_cast<double>(plan.spares_95));
  EXPECT_GT(plan.others[2].elapsed_seconds, plan.others[1].elapsed_seconds) << "without any saves";

  config.hazard.mtbf_hours = 64.0;
  EXPECT_NEAR(planned(config).mtbf_seconds, hour_seconds, 1e-6);
  config.hazard.mtbf_hours = 0.0;
  config.checkpoint.mtbf_ms = 1'800'000;
  EXPECT_DOUBLE_EQ(planned(config).mtbf_seconds, 1800.0);
}

TEST(Reliability, TakesWhatTheRunHasMeasured) {
  RunFigures figures{.directory = "runs/a",
                     .ranks = 64,
                     .history = {.failures = 20, .device_seconds = 64 * 20 * hour_seconds},
                     .step_seconds = 2.0,
                     .save = SaveTimes{.step_seconds = 2.0, .cost_seconds = 4.0, .durable_seconds = 30.0},
                     .snapshot = SaveTimes{.step_seconds = 2.0, .cost_seconds = 0.05},
                     .recovery_seconds = 1.5};
  const ReliabilityPlan plan = planned(cluster_config(), figures);
  // The prior, 792 h, says nothing any more: the run is in trouble (of which there is one failure in a quarter of an hour).
  EXPECT_NEAR(plan.mtbf_seconds / hour_seconds, (20.0 + 0.25) / 21.0, 0.01);
  EXPECT_DOUBLE_EQ(plan.training_seconds, 2e6);
  EXPECT_NEAR(plan.ram.interval_seconds, 0.05 / 0.005, 1e-9);
  EXPECT_NEAR(plan.disk.interval_seconds, best_interval_seconds(4.0, plan.saving_mtbf_seconds), 2.0);
  EXPECT_DOUBLE_EQ(plan.reaches[0].reach.recovery_seconds, 1.5);
  EXPECT_DOUBLE_EQ(plan.reaches[0].reach.lost_seconds, 5.0 + 2.0) << "half of ten seconds, and a step";
  Config restarts = cluster_config();
  restarts.elastic.in_place = false;
  const ReliabilityPlan restarted = planned(restarts, figures);
  EXPECT_DOUBLE_EQ(restarted.reaches[0].reach.recovery_seconds, restarted.reaches[1].reach.recovery_seconds)
      << "another start for each process";
  EXPECT_GT(restarted.reaches[1].reach.waiting_seconds, plan.reaches[1].reach.waiting_seconds)
      << "nobody trains until the host is replaced";
  const std::string text = reliability_text(plan, {});
  for (const char* piece :
       {"measured in runs/a", "20 failures in 20h of this run", "cost.per_rank_hour gives"})
    EXPECT_NE(text.find(piece), std::string::npos) << piece << " in " << text;
}

TEST(Reliability, LosesNoMoreThanItMay) {
  Config config = cluster_config();
  config.checkpoint.lose_at_most_ms = 60'000;
  RunFigures figures{.directory = "runs/a",
                     .ranks = 64,
                     .step_seconds = 2.0,
                     .save = SaveTimes{.step_seconds = 2.0, .cost_seconds = 4.0, .durable_seconds = 20.0}};
  const ReliabilityPlan plan = planned(config, figures);
  EXPECT_EQ(plan.disk.chosen_by, "checkpoint.lose_at_most");
  for (const ReachPlan& each : plan.reaches) EXPECT_LE(*each.most_lost_seconds, 60.0) << each.reach.name;
  EXPECT_FALSE(plan.beyond_promise_seconds().has_value());
  EXPECT_TRUE(reliability_json(plan, {})["lose_at_most_kept"].get<bool>());
  figures.save->durable_seconds = 50.0;
  const ReliabilityPlan slow = planned(config, figures);
  EXPECT_DOUBLE_EQ(slow.disk.interval_seconds, 50.0) << "no other save begins before";
  EXPECT_DOUBLE_EQ(*slow.reaches[2].most_lost_seconds, 102.0) << "50 s, 50 s until it counts, and a step";
  EXPECT_NE(slow.disk.chosen_by.find("the disk takes no more"), std::string::npos) << slow.disk.chosen_by;
  EXPECT_DOUBLE_EQ(slow.beyond_promise_seconds().value_or(0.0), 102.0);
  EXPECT_NE(reliability_text(slow, {}).find("lose_at_most = 60 s cannot be kept: up to 102 s"),
            std::string::npos)
      << reliability_text(slow, {});
  EXPECT_FALSE(reliability_json(slow, {})["lose_at_most_kept"].get<bool>());
}

// 4 ranks for 1,024 hours have told what 64 ranks tell in 64.
TEST(Reliability, CountsTheHistoryByDevices) {
  RunFigures figures{.directory = "runs/a",
                     .ranks = 4,
                     .history = {.failures = 0, .device_seconds = 4 * 1024 * hour_seconds}};
  const ReliabilityPlan plan = planned(cluster_config(), figures);
  // The prior of a usual run is twice as long, less the quarter of an hour of one in trouble, and has the weight of a
  // quarter of a failure.
  EXPECT_NEAR(plan.mtbf_seconds / hour_seconds, (64.0 + 0.25 * (2 * 50'677.0 / 64.0 - 0.25)) / 0.25, 0.1);
  EXPECT_NE(plan.ranks_note.find("were those of 4 ranks"), std::string::npos) << plan.ranks_note;
  figures.ranks = 0;
  const ReliabilityPlan unknown = planned(cluster_config(), figures);
  EXPECT_DOUBLE_EQ(unknown.mtbf_seconds, plan.mtbf_seconds) << "its failures count all the same";
  EXPECT_NE(unknown.ranks_note.find("does not say how many ranks"), std::string::npos) << unknown.ranks_note;
  EXPECT_TRUE(planned(cluster_config()).ranks_note.empty()) << "there is no run";
}

// 64 ranks on hosts of 24 are three hosts, of which two are not enough.
TEST(Reliability, CountsHostsThatAreNotFull) {
  Config config = cluster_config();
  config.hazard.mtbf_hours = 5000.0;
  PlannedMachine machine = machine_of(config, 64);
  machine.ranks_per_host = 24;
  const Result<LayoutPlan> layout = plan_layout(posix_env(), config, 64, machine);
  ASSERT_TRUE(layout.ok());
  const ReliabilityPlan plan =
      plan_reliability(*layout, machine, {}, {.replacement_seconds = 30 * day_seconds});
  EXPECT_EQ(plan.hosts, 3);
  EXPECT_EQ(plan.pool.needed, 3);
  EXPECT_DOUBLE_EQ(plan.pool.unit_mtbf_seconds, 3.0 * plan.mtbf_seconds);
  EXPECT_EQ(plan.spares_95 % 24, 0);
  const std::string hosts = fmt::format("{} hosts ({} ranks) are", plan.spares_95 / 24, plan.spares_95);
  EXPECT_NE(reliability_text(plan, {}).find(hosts), std::string::npos) << reliability_text(plan, {});
  const ReliabilityPlan hopeless =
      plan_reliability(*layout, machine, {}, {.replacement_seconds = 1e6 * hour_seconds});
  EXPECT_NE(reliability_text(hopeless, {}).find("3 hosts (72 ranks) are too few for 99 %"), std::string::npos)
      << reliability_text(hopeless, {});
}

TEST(Reliability, WithoutAnySavesEndsAsThatIsPriced) {
  Config config = cluster_config();
  config.checkpoint.every_steps = config.checkpoint.ram_every_steps = 0;
  const double whole = planned(config).training_seconds;
  config.checkpoint.mtbf_ms = std::llround(whole * 1000.0 / 3.0);
  const ReliabilityPlan plan = planned(config);
  const double mtbf = plan.mtbf_seconds;
  EXPECT_NEAR(plan.time.training + plan.time.lost, mtbf * std::expm1(whole / mtbf), 1e-3 * whole);
  EXPECT_GT(plan.time.ettr(), 0.0) << "it ends";
}

TEST(Reliability, ShowsMoneyWhereThereIsAPrice) {
  const ReliabilityPlan plan = planned(cluster_config());
  const CostConfig cost{.per_rank_hour = 3.0, .currency = "EUR "};
  const Json json = reliability_json(plan, cost);
  EXPECT_NEAR(json["cost_total"].get<double>(), plan.time.elapsed() / hour_seconds * 64 * 3.0, 1e-6);
  EXPECT_NE(reliability_text(plan, cost).find("EUR "), std::string::npos);
  EXPECT_TRUE(reliability_json(plan, {})["cost_total"].is_null());
  EXPECT_EQ(reliability_text(plan, {}).find("$"), std::string::npos) << "no price, no money";
  for (const char* key : {"failures_per_day", "p_no_failure", "ettr", "spares_95", "spares_99"})
    EXPECT_TRUE(json[key].is_number()) << key;
}

// Figures of a run with other ranks say nothing of its saves; its failures count.
TEST(Reliability, ReadsTheRunDirectory) {
  const TemporaryDirectory folder;
  Env& env = posix_env();
  const RunPaths paths{folder.path()};
  EXPECT_TRUE(read_run_figures(env, folder.path() + "/none", 2, 0).directory.empty());
  ASSERT_TRUE(
      env.replace_text(paths.history(),
                       R"({"failures":3,"rank_us":14400000000,"ranks":2,"since_us":1000000,"state":"ended"})")
          .ok());
  std::string log =
      R"({"time_us":1000000,"event":"start","run":"a","parameters":1,"ranks":2,"steps":10,"generation":0})"
      "\n"
      R"({"time_us":1000000,"event":"interval","step":5,"tier":"disk","every_steps":7,"cost_ms":20.0,"step_ms":8.0,"durable_ms":40.0,"mtbf_ms":1000.0})"
      "\n"
      R"({"time_us":2000000,"event":"recovery","reason":"loss","level":1,"ranks_before":2,"ranks_after":2,"lost_steps":1,"duration_ms":500.0})"
      "\n";
  for (int step = 1; step <= 5; ++step) {
    log += fmt::format(
        R"({{"time_us":2000000,"event":"step","step":{},"loss":1.0,"grad_norm":1.0,"learning_rate":0.1,"tokens":8,"step_duration_ms":{}.0,"tokens_per_sec":1.0,"data_digest":"0"}})"
        "\n",
        step, step == 5 ? 900 : 8);
  }
  ASSERT_TRUE(env.replace_text(paths.events(), log).ok());
  const RunFigures same = read_run_figures(env, folder.path(), 2, 0),
                   other = read_run_figures(env, folder.path(), 4, 0);
  EXPECT_EQ(same.history.failures, 3);
  EXPECT_DOUBLE_EQ(same.history.device_seconds, 14'400.0);
  ASSERT_TRUE(same.step_seconds.has_value());
  EXPECT_DOUBLE_EQ(*same.step_seconds, 0.008);
  ASSERT_TRUE(same.save.has_value());
  EXPECT_DOUBLE_EQ(same.save->cost_seconds, 0.02);
  EXPECT_DOUBLE_EQ(same.recovery_seconds.value_or(0.0), 0.5);
  EXPECT_EQ(other.history.failures, 3);
  EXPECT_FALSE(other.step_seconds.has_value());
  EXPECT_FALSE(other.save.has_value());
}

std::string start_line(int ranks) {
  return fmt::format(
      R"({{"time_us":1000000,"event":"start","run":"a","parameters":1,"ranks":{},"steps":10,"generation":0}})"
      "\n",
      ranks);
}
std::string step_line(int step) {
  return fmt::format(
      R"({{"time_us":2000000,"event":"step","step":{},"loss":1.0,"grad_norm":1.0,"learning_rate":0.1,"tokens":8,"step_duration_ms":8.0,"tokens_per_sec":1.0,"data_digest":"0"}})"
      "\n",
      step);
}
std::string interval_line(std::string_view cost) {
  return fmt::format(
      R"({{"time_us":1000000,"event":"interval","step":5,"tier":"disk","every_steps":7,"cost_ms":{},"step_ms":8.0,"durable_ms":40.0,"mtbf_ms":1000.0}})"
      "\n",
      cost);
}
std::string recovery_line(int seats_before, int seats_after, std::string_view duration) {
  return fmt::format(
      R"({{"time_us":2000000,"event":"recovery","reason":"loss","level":1,"ranks_before":{},"ranks_after":{},"seats_before":{},"seats_after":{},"spares":0,"lost_steps":1,"duration_ms":{}}})"
      "\n",
      seats_before, seats_after, seats_before, seats_after, duration);
}

RunFigures figures_of(const std::string& log, int ranks, int spares = 0) {
  const TemporaryDirectory folder;
  Env& env = posix_env();
  const RunPaths paths{folder.path()};
  EXPECT_TRUE(
      env.replace_text(paths.history(),
                       R"({"failures":1,"rank_us":14400000000,"ranks":2,"since_us":1000000,"state":"ended"})")
          .ok());
  EXPECT_TRUE(env.replace_text(paths.events(), log).ok());
  return read_run_figures(env, folder.path(), ranks, spares);
}
std::string steps_of_log(int count) {
  std::string lines;
  for (int step = 1; step <= count; ++step) lines += step_line(step);
  return lines;
}

// A start counts the ranks that wait, a plan does not.
TEST(RunFigures, AreOfTheRanksThatTrain) {
  const std::string log = start_line(3) + interval_line("20.0") + steps_of_log(5);
  EXPECT_TRUE(figures_of(log, 2, /*spares=*/1).step_seconds.has_value());
  EXPECT_TRUE(figures_of(log, 2, /*spares=*/1).save.has_value());
  EXPECT_FALSE(figures_of(log, 3, /*spares=*/1).step_seconds.has_value());
}

TEST(RunFigures, OfOtherRanksBeforeARecoveryDoNotCount) {
  const std::string before = start_line(4) + interval_line("20.0") + steps_of_log(5);
  const RunFigures fewer = figures_of(before + recovery_line(4, 3, "500.0") + steps_of_log(5), 3);
  EXPECT_EQ(fewer.ranks, 3);
  EXPECT_TRUE(fewer.step_seconds.has_value());
  EXPECT_FALSE(fewer.save.has_value()) << "it was of four ranks";
  EXPECT_FALSE(figures_of(before + recovery_line(4, 3, "500.0"), 4).step_seconds.has_value());
  EXPECT_TRUE(figures_of(before + recovery_line(4, 4, "500.0"), 4).save.has_value()) << "as many as before";
}

TEST(RunFigures, AreNumbers) {
  const std::string log = start_line(4) + interval_line("20.0") + interval_line("null") +
                          recovery_line(4, 4, "null") + recovery_line(4, 4, "500.0");
  const RunFigures figures = figures_of(log, 4);
  ASSERT_TRUE(figures.save.has_value());
  EXPECT_DOUBLE_EQ(figures.save->cost_seconds, 0.02);
  EXPECT_DOUBLE_EQ(figures.recovery_seconds.value_or(0.0), 0.5);
}

// The end of the log, which is read whole, has no start of a long run.
TEST(RunFigures, AreOfAStartFarBack) {
  const int many = static_cast<int>(3 * FailureTally::tail_bytes / step_line(10'000).size());
  const std::string steps = steps_of_log(many);
  const std::string log = start_line(8) + start_line(4) + steps + interval_line("20.0");
  EXPECT_EQ(figures_of(log, 4).ranks, 4);
  EXPECT_TRUE(figures_of(log, 4).step_seconds.has_value());
  EXPECT_TRUE(figures_of(log, 4).save.has_value());
  EXPECT_FALSE(figures_of(log, 8).save.has_value());
  const RunFigures unknown = figures_of(steps + interval_line("20.0"), 4);
  EXPECT_EQ(unknown.ranks, 0);
  EXPECT_FALSE(unknown.save.has_value()) << "of nobody knows how many ranks";
}

}  // namespace
}  // namespace holdfast::test
