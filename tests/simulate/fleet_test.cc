// Simulated fleets: against closed forms, on equal faults, and what a cluster file may say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/core/json.h"
#include "runtime/hazard/run_cost.h"
#include "tools/simulate/simulate_report.h"

namespace holdfast::test {
namespace {

using namespace launch::fleet;
using testing::HasSubstr;

constexpr std::int64_t day_us = 86'400'000'000;

// Four hosts of two ranks, four copies of two ranks, 1 s a step.
std::string fleet_text(const std::string& more = "") {
  return R"(
[fleet]
hosts = 6
ranks_per_host = 2
hosts_per_rack = 2
[parallel]
data = 4
tensor = 2
lanes = 12
[checkpoint]
ram_every_steps = 100
every_steps = 1000
[launch]
wait_for_hosts_seconds = 1e6
[times]
step_seconds = 1
snapshot_confirmed_seconds = 5
recover_seconds = 3
start_seconds = 10
restart_seconds = 10
)" + more;
}

std::string fault_text(const std::string& effect, double a_day, const std::string& more = "") {
  return fmt::format("[[fault]]\nname = \"{}\"\neffect = \"{}\"\nevents = {}\ndays = 1\n{}\n", effect, effect,
                     a_day, more);
}

Cluster cluster_of(const std::string& text, const std::vector<Override>& overrides = {}) {
  Result<Cluster> cluster = read_cluster(text, "fleet.toml", overrides);
  EXPECT_TRUE(cluster.ok()) << cluster.error().message;
  return std::move(cluster).value();
}

FleetOutcome run_of(const Cluster& cluster, std::uint64_t seed, double days) {
  RecoveryTable table(cluster);
  return FleetRun(cluster, table, seed, std::llround(days * day_us)).run();
}

MeanOutcome mean_over(const Cluster& cluster, std::uint64_t seeds, double days) {
  std::vector<FleetOutcome> outcomes;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) outcomes.push_back(run_of(cluster, seed, days));
  return mean_of(outcomes);
}

std::int64_t time_of(const FleetOutcome& outcome, SpanUse use) {
  return outcome.times_us[static_cast<std::size_t>(use)];
}

std::string refusal_of(const std::string& text, const std::vector<Override>& overrides = {}) {
  const Result<Cluster> cluster = read_cluster(text, "fleet.toml", overrides);
  if (cluster.ok()) return "none";
  EXPECT_EQ(cluster.error().code, ExitCode::config);
  return cluster.error().message;
}

TEST(FleetRun, WithoutFaultsTheOverheadOfSavesIsAllThatIsLost) {
  const Cluster cluster =
      cluster_of(fleet_text(), {{"times.snapshot_seconds", "0.5"}, {"checkpoint.every_steps", "0"}});
  // 10 s of start, then 100 steps and half a second again and again.
  const FleetOutcome outcome = run_of(cluster, 1, (10.0 + 50 * 100.5) / 86'400.0);
  EXPECT_EQ(time_of(outcome, SpanUse::start_up), 10'000'000);
  EXPECT_EQ(time_of(outcome, SpanUse::training), 5'000'000'000);
  EXPECT_EQ(time_of(outcome, SpanUse::saving), 25'000'000);
  EXPECT_EQ(outcome.steps, 5000);
  EXPECT_DOUBLE_EQ(outcome.ettr(), 5000.0 / 5035.0);
}

// Faults at a constant rate that end all ranks, with their state in RAM: hazard::expected_run is the oracle.
TEST(FleetRun, AConstantRateGivesWhatTheClosedFormSays) {
  // A checkpoint is no newer than the snapshot of its step.
  const Cluster cluster = cluster_of(fleet_text(fault_text("run", 24.0, "unit = \"run\"")),
                                     {{"times.save_durable_seconds", "5"}});
  constexpr double mtbf_s = 3600.0;
  // A state is 5 s old when it counts, and 105 s when the next one does.
  const FailureReach reach{.name = "run", .share = 1.0, .lost_seconds = 55.0, .recovery_seconds = 10.0};
  const double expected = expected_run(20.0 * 86'400.0, 0.0, mtbf_s, {&reach, 1}).ettr();
  const MeanOutcome mean = mean_over(cluster, 40, 20.0);
  EXPECT_GT(mean.ettr.error, 0.0);
  EXPECT_NEAR(mean.ettr.mean, expected, 4.0 * mean.ettr.error) << "expected " << expected;
  EXPECT_LT(mean.ettr.error, 2e-4);
  EXPECT_NEAR(mean.faults[0], 480.0, 20.0);
}

TEST(FleetRun, EveryMicrosecondIsInOneClass) {
  const std::string faults =
      fault_text("host", 1.0, "of = 6\naway_hours = 1") + fault_text("process", 1.0, "of = 6") +
      fault_text("run", 2.0, "unit = \"run\"") +
      fault_text("notice", 1.0, "of = 6\nwarning_seconds = 60\naway_hours = 1") +
      fault_text("slow", 1.0, "of = 6\nfactor = 1.7\nlasts_hours = 1\naway_hours = 2") +
      fault_text("corruption", 1.0, "of = 6\nfound_after_seconds = 400\naway_hours = 1") +
      fault_text("storage", 1.0, "unit = \"run\"\nlasts_hours = 1");
  for (const char* in_place : {"true", "false"}) {
    for (const char* preset : {"watch", "guard"}) {
      const Cluster cluster =
          cluster_of(fleet_text(faults), {{"elastic.in_place", in_place}, {"health.preset", preset}});
      for (std::uint64_t seed = 1; seed <= 30; ++seed) {
        const FleetOutcome outcome = run_of(cluster, seed, 3.0);
        ASSERT_EQ(outcome.spans_us(), 3 * day_us) << "seed " << seed;
        for (const std::int64_t time : outcome.times_us) ASSERT_GE(time, 0);
        ASSERT_GE(outcome.narrower_us, 0);
        ASSERT_GT(outcome.ettr(), 0.3);
      }
    }
  }
}

TEST(FleetRun, MoreSparesAreNeverWorse) {
  double before = 0.0;
  for (const char* spares : {"0", "2", "4"}) {
    const Cluster cluster = cluster_of(fleet_text(fault_text("host", 1.0, "of = 6\naway_hours = 100")),
                                       {{"elastic.spares", spares}, {"elastic.grow", "off"}});
    const double ettr = mean_over(cluster, 40, 3.0).ettr.mean;
    EXPECT_GT(ettr, before) << spares;
    before = ettr;
  }
}

// Two copies on two of six hosts: four losses in a row are made good before a start brings back all spares.
TEST(FleetRun, SparesComeBackTogether) {
  const std::string text = fleet_text(fault_text("host", 4.0, "of = 6\naway_hours = 1"));
  const std::vector<Override> spares = {
      {"parallel.data", "2"}, {"elastic.spares", "8"}, {"elastic.grow_after", "10m"}};
  const MeanOutcome mean = mean_over(cluster_of(text, spares), 10, 10.0);
  EXPECT_GT(mean.in_place, 20.0);
  EXPECT_LT(mean.growths, 0.4 * mean.in_place);
  EXPECT_GT(mean.spares_used, 0.95 * mean.in_place);
}

TEST(FleetRun, ALostRankCostsARestartOnlyWhereItIsNotMendedInPlace) {
  const std::string text = fleet_text(fault_text("process", 2.0, "of = 6"));
  const FleetOutcome in_place = run_of(cluster_of(text), 3, 3.0);
  EXPECT_GT(in_place.in_place, 5);
  EXPECT_EQ(in_place.restarts, 0);
  const FleetOutcome restarted = run_of(cluster_of(text, {{"elastic.in_place", "false"}}), 3, 3.0);
  EXPECT_EQ(restarted.in_place, 0);
  EXPECT_GT(restarted.restarts, 5);
  EXPECT_EQ(time_of(restarted, SpanUse::recovery), 0);
}

// A state in RAM whose replica is on another host outlives a host; both hosts of a rack may have had both.
TEST(FleetRun, ReplicasOutliveAHost) {
  const std::string text = fleet_text(fault_text("host", 1.0, "of = 6\naway_hours = 1"));
  EXPECT_EQ(run_of(cluster_of(text), 5, 5.0).from_disk, 0);
  const FleetOutcome without = run_of(cluster_of(text, {{"checkpoint.replicas", "off"}}), 5, 5.0);
  EXPECT_GT(without.from_disk, 2);
  EXPECT_GT(time_of(without, SpanUse::lost), 2 * time_of(run_of(cluster_of(text), 5, 5.0), SpanUse::lost));
  const std::string racks = fleet_text(fault_text("host", 1.0, "unit = \"rack\"\nof = 3\naway_hours = 1"));
  EXPECT_GT(run_of(cluster_of(racks, {{"fleet.hosts_per_rack", "3"}}), 5, 5.0).from_disk, 0);
}

// A run goes on from the newest state, wherever it is.
TEST(FleetRun, ACheckpointThatIsNewerThanTheStateInRamIsTaken) {
  const std::string text = fleet_text(fault_text("process", 4.0, "of = 6"));
  const std::vector<Override> rare = {{"checkpoint.ram_every_steps", "10000"}, {"times.load_seconds", "20"}};
  const MeanOutcome mean = mean_over(cluster_of(text, rare), 20, 3.0);
  const double lost_s = mean.seconds[static_cast<std::size_t>(SpanUse::lost)] / mean.in_place;
  EXPECT_NEAR(lost_s, 500.0, 60.0) << "half of the 1,000 s between two checkpoints";
  const double recovery_s = mean.seconds[static_cast<std::size_t>(SpanUse::recovery)] / mean.in_place;
  EXPECT_GT(recovery_s, 15.0) << "it is loaded";
  // Each tenth checkpoint is of the step of a snapshot.
  EXPECT_GT(mean.from_disk, 0.8 * mean.in_place);
  EXPECT_EQ(mean.restarts, 0.0);
}

TEST(FleetRun, WithoutStatesInRamItGoesOnInPlaceFromTheDisk) {
  const std::string text = fleet_text(fault_text("process", 4.0, "of = 6"));
  const FleetOutcome outcome = run_of(cluster_of(text, {{"checkpoint.ram_every_steps", "0"}}), 3, 3.0);
  EXPECT_GT(outcome.in_place, 5);
  EXPECT_EQ(outcome.restarts, 0);
  EXPECT_EQ(outcome.from_disk, outcome.in_place);
}

TEST(FleetRun, AFleetOfTwoSilentHalvesHasNoQuorum) {
  const std::string racks = fleet_text(fault_text("host", 1.0, "unit = \"rack\"\nof = 2\naway_hours = 1"));
  const MeanOutcome mean =
      mean_over(cluster_of(racks, {{"fleet.hosts", "4"}, {"fleet.hosts_per_rack", "3"}}), 10, 5.0);
  EXPECT_GT(mean.restarts, 1.0) << "three hosts of four are gone without a word";
  EXPECT_GT(mean.in_place, 1.0) << "one of four is";
}

TEST(FleetRun, ASlowHostIsLeftByTheGuardAlone) {
  const std::string text =
      fleet_text(fault_text("slow", 0.6, "of = 6\nfactor = 2\nlasts_hours = 20\naway_hours = 24"));
  const MeanOutcome kept = mean_over(cluster_of(text), 10, 5.0),
                    left = mean_over(cluster_of(text, {{"health.preset", "guard"}}), 10, 5.0);
  EXPECT_GT(left.left, 0.5);
  EXPECT_LT(kept.left, 0.5);
  EXPECT_GT(left.ettr.mean, kept.ettr.mean + 0.1);
}

TEST(FleetRun, AHostWithANoticeIsLeftWithoutLostWork) {
  const std::string text =
      fleet_text(fault_text("notice", 1.0, "of = 6\nwarning_seconds = 60\naway_hours = 2"));
  const FleetOutcome drained = run_of(cluster_of(text), 4, 15.0),
                     lost = run_of(cluster_of(text, {{"elastic.drain", "false"}}), 4, 15.0);
  EXPECT_EQ(time_of(drained, SpanUse::lost), 0);
  EXPECT_GT(drained.left, 2);
  EXPECT_EQ(drained.in_place, 0);
  EXPECT_GT(lost.in_place, 2);
  EXPECT_GT(time_of(lost, SpanUse::lost), 0);
}

TEST(FleetRun, WrongNumbersCostTheWorkSinceTheStateBeforeThem) {
  const std::string text =
      fleet_text(fault_text("corruption", 0.6, "of = 6\nfound_after_seconds = 5000\naway_hours = 2"));
  const MeanOutcome mean = mean_over(cluster_of(text), 20, 5.0);
  ASSERT_GT(mean.faults[0], 0.5);
  // 5,000 s until it is found, and half of the 1,000 s between two checkpoints.
  EXPECT_NEAR(mean.seconds[static_cast<std::size_t>(SpanUse::lost)] / mean.faults[0], 5500.0, 250.0);
}

TEST(FleetSchedule, MoreHostsChangeNoFaultOfTheOthers) {
  const std::string text = fleet_text(fault_text("host", 1.0, "of = 6\naway_hours = 1"));
  const auto of_first_hosts = [](const std::vector<FleetEvent>& events) {
    std::vector<std::pair<std::int64_t, std::int64_t>> times;
    for (const FleetEvent& event : events) {
      if (event.host < 6) times.push_back({event.at_us, event.lasts_us});
    }
    return times;
  };
  const auto few = of_first_hosts(draw_schedule(cluster_of(text), 7, 9 * day_us));
  EXPECT_GT(few.size(), 3u);
  EXPECT_EQ(few, of_first_hosts(draw_schedule(cluster_of(text, {{"fleet.hosts", "60"}}), 7, 9 * day_us)));
}

TEST(FleetSchedule, LemonsFailMoreOftenAndAllTogetherAsOftenAsBefore) {
  const std::string text = fleet_text(fault_text("host", 1.0, "of = 1"));
  const std::vector<Override> many = {{"fleet.hosts", "2000"}};
  std::vector<Override> with_lemons = many;
  with_lemons.insert(with_lemons.end(), {{"fleet.lemon_share", "0.1"}, {"fleet.lemon_factor", "20"}});
  const auto even = std::ssize(draw_schedule(cluster_of(text, many), 1, 5 * day_us));
  const std::vector<FleetEvent> events = draw_schedule(cluster_of(text, with_lemons), 1, 5 * day_us);
  EXPECT_NEAR(static_cast<double>(std::ssize(events)) / static_cast<double>(even), 1.0, 0.15);
  std::map<int, int> of_host;
  for (const FleetEvent& event : events) ++of_host[event.host];
  const auto most = std::ranges::max_element(of_host, {}, [](const auto& entry) { return entry.second; });
  EXPECT_GT(most->second, 20);
}

TEST(FleetStudy, TheSameSeedsGiveTheSameBytes) {
  const Cluster cluster = cluster_of(fleet_text(fault_text("host", 1.0, "of = 6\naway_hours = 1")));
  const StudyOptions options{
      .first_seed = 3, .last_seed = 8, .days = 1.0, .compares = true, .asks_numbers = true};
  const Result<Study> once = run_study(posix_env(), cluster, options),
                      again = run_study(posix_env(), cluster, options);
  ASSERT_TRUE(once.ok() && again.ok());
  EXPECT_EQ(study_json(*once), study_json(*again));
  EXPECT_EQ(study_html(*once), study_html(*again));
  EXPECT_EQ(study_text(*once), study_text(*again));
  const Json json = Json::parse_any(study_json(*once));
  ASSERT_EQ(json["seeds"].size(), 6u);
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_DOUBLE_EQ(json["seeds"][i]["ettr"].get<double>(), run_of(cluster, 3 + i, 1.0).ettr());
  EXPECT_GT(json["variants"].size(), 3u);
  EXPECT_EQ(json["sweeps"].size(), 4u);
  EXPECT_GT(json["sensitivity"].size(), 4u);
  EXPECT_THAT(study_text(*once), HasSubstr("assumed, without a source: "));
}

TEST(FleetStudy, TheLastSeedOfAllHasCurves) {
  const Cluster cluster = cluster_of(fleet_text(fault_text("host", 1.0, "of = 6\naway_hours = 1")));
  constexpr std::uint64_t last = ~std::uint64_t{0};
  const Result<Study> study =
      run_study(posix_env(), cluster, {.first_seed = last, .last_seed = last, .days = 0.1, .compares = true});
  ASSERT_TRUE(study.ok());
  EXPECT_EQ(study->sweeps.size(), 4u);
}

TEST(FleetClock, NothingGoesForwardToAStateThatWasLeft) {
  TrainingClock clock(cluster_of(fleet_text()));
  clock.train(2'500'000'000);
  const TrainingClock::Mark newer = clock.newest_on_disk();
  clock.go_back_to({});
  clock.train(2'600'000'000);
  clock.go_back_to(newer);
  EXPECT_EQ(clock.steps(), 0);
  EXPECT_EQ(clock.times_us()[static_cast<std::size_t>(SpanUse::lost)], 2'600'000'000);
  EXPECT_EQ(clock.times_us()[static_cast<std::size_t>(SpanUse::training)], 0);
}

TEST(FleetStudy, AnotherSeedHasOtherFaults) {
  const Cluster cluster = cluster_of(fleet_text(fault_text("host", 1.0, "of = 6\naway_hours = 1")));
  EXPECT_NE(run_of(cluster, 1, 2.0).times_us, run_of(cluster, 2, 2.0).times_us);
}

TEST(FleetCluster, ANumberHasItsSourceThatOfItsSectionOrIsAssumed) {
  const Cluster cluster = cluster_of(
      fleet_text(fault_text(
          "host", 1.0, "of = 6\naway_hours = { value = 2, source = \"a paper\" }\nsource = \"a table\"")),
      {{"times.load_seconds", "7"}});
  EXPECT_EQ(cluster.sources.at("fault.host.events"), "a table");
  EXPECT_EQ(cluster.sources.at("fault.host.away_hours"), "a paper");
  EXPECT_EQ(cluster.sources.at("times.load_seconds"), "command line");
  EXPECT_THAT(cluster.assumed, testing::Contains("times.step_seconds"));
  EXPECT_THAT(cluster.assumed, testing::Not(testing::Contains("fault.host.events")));
}

TEST(FleetCluster, WhatIsWrongIsSaidInASentence) {
  const std::string good = fleet_text(fault_text("host", 1.0, "of = 6"));
  EXPECT_EQ(refusal_of(good), "none");
  EXPECT_THAT(refusal_of(good, {{"fault.host.events", "0"}}),
              HasSubstr("the rates of all faults sum to nothing"));
  EXPECT_THAT(refusal_of(good, {{"parallel.data", "7"}}),
              HasSubstr("7 x 1 x 2 + 0 = 14 ranks, and fleet.hosts x ranks_per_host = 6 x 2 hosts hold 12"));
  EXPECT_THAT(refusal_of(good, {{"times.step_seconds", "-1"}}),
              HasSubstr("times.step_seconds must be a number from"));
  EXPECT_THAT(refusal_of(good, {{"times.stepseconds", "1"}}), HasSubstr("did you mean times.step_seconds?"));
  EXPECT_THAT(refusal_of(good, {{"fault.host.eventss", "1"}}), HasSubstr("did you mean fault.host.events?"));
  EXPECT_THAT(refusal_of(good, {{"elastic.min_data_parallel", "5"}}),
              HasSubstr("is above parallel.data = 4"));
  EXPECT_THAT(refusal_of(good, {{"parallel.lanes", "3"}}), HasSubstr("is below parallel.data = 4"));
  EXPECT_THAT(refusal_of(good, {{"health.preset", "all"}}), HasSubstr("must be one of off, watch, guard"));
  EXPECT_THAT(refusal_of(good, {{"fault.host.days", "0"}}), HasSubstr("must be a number from"));
  EXPECT_THAT(refusal_of(good + "[nothing]\nx = 1\n"), HasSubstr("there is no key nothing.x"));
  EXPECT_THAT(refusal_of("[fleet]\nhosts = 2\n"), HasSubstr("parallel.data is missing"));
  EXPECT_THAT(refusal_of("[fleet\n"), HasSubstr("fleet.toml:1:"));
  EXPECT_THAT(refusal_of(fleet_text("[[fault]]\nname = \"x\"\n")), HasSubstr("fault.x.events is missing"));
  EXPECT_THAT(refusal_of(fleet_text(fault_text("meteor", 1.0))),
              HasSubstr("must be one of process, host, run"));
  EXPECT_THAT(refusal_of(good + fault_text("host", 1.0)), HasSubstr("two faults of the name host"));
  EXPECT_THAT(refusal_of(fleet_text(fault_text("slow", 1.0))),
              HasSubstr("fault.slow.lasts_hours must be above 0"));
}

TEST(FleetCluster, EachShippedClusterIsRightAndSaysWhereItsNumbersComeFrom) {
  for (const char* name : {"llama3_16384", "one_failure_an_hour", "byterobust_9600", "spot_fleet",
                           "two_processors", "two_processors_kills", "two_processors_gpt2"}) {
    const Result<Cluster> cluster =
        load_cluster(posix_env(), fmt::format(HF_SOURCE_DIR "/configs/clusters/{}.toml", name), {});
    ASSERT_TRUE(cluster.ok()) << cluster.error().message;
    EXPECT_THAT(cluster->assumed, testing::IsEmpty()) << name;
  }
}

}  // namespace
}  // namespace holdfast::test
