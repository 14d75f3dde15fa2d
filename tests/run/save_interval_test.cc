// How often saves are due: the cadence of runs whose steps and saves take what a table says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "runtime/save/save_cadence.h"

namespace holdfast::test {
namespace {

CheckpointConfig config_of(std::int64_t every_steps, std::int64_t ram_every_steps,
                           std::int64_t mtbf_seconds = 0) {
  CheckpointConfig config;
  config.every_steps = every_steps;
  config.ram_every_steps = ram_every_steps;
  config.mtbf_ms = mtbf_seconds * 1000;
  return config;
}
RatePrior prior_of(const CheckpointConfig& config) {
  return cautious(run_prior({.run_mtbf_seconds = static_cast<double>(config.mtbf_ms) / 1e3}, "cpu", 4));
}
constexpr std::int64_t automatic = CheckpointConfig::interval_auto;

// A run in virtual time.
struct SimulatedRun {
  CheckpointConfig config;
  double step_seconds = 1.0;
  double snapshot_seconds = 0.0;  // a snapshot makes the step after it longer by so much
  double save_seconds = 0.0;      // a save all of the steps beside it together
  std::int64_t save_steps = 3;    // that it takes to the disk
  FailureHistory history = {};

  struct Outcome {
    std::vector<std::uint64_t> snapshots, saves;
    std::vector<IntervalChoice> choices;
  };
  Outcome run(std::uint64_t steps) const {
    SaveCadence cadence(config, /*now_ns=*/0);
    cadence.begin_epoch({.history = history, .prior = prior_of(config)});
    std::int64_t now_ns = 0;
    Outcome outcome;
    bool copying = false;
    std::int64_t saving = 0;  // steps that are left of it
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const SaveDue due = cadence.due(step, now_ns);
      double duration = step <= 2 ? 10 * step_seconds : step_seconds;
      if (step % 7 == 0) duration *= 1.5;  // something else runs on the machine
      if (copying) duration += snapshot_seconds;
      if (saving > 0) duration += save_seconds / static_cast<double>(save_steps);
      now_ns += to_ns(duration);
      const bool was_saving = saving > 0;
      if (was_saving && --saving == 0) {
        SaveReport report;
        report.duration_ns = to_ns(static_cast<double>(save_steps) * step_seconds);
        cadence.ended(report, now_ns);
      }
      cadence.stepped(
          {.duration_ns = to_ns(duration), .beside_snapshot = copying, .beside_save = was_saving});
      copying = false;
      while (const std::optional<IntervalChoice> choice = cadence.take_choice())
        outcome.choices.push_back(*choice);
      if (!due.to_disk && !due.to_ram) continue;
      EXPECT_FALSE(due.to_disk && saving > 0) << "step " << step << " would wait for the disk";
      (due.to_disk ? outcome.saves : outcome.snapshots).push_back(step);
      copying = true;
      if (due.to_disk) saving = save_steps;
      cadence.began({.step = step, .to_disk = due.to_disk, .now_ns = now_ns});
    }
    return outcome;
  }
  static std::int64_t to_ns(double seconds) { return std::llround(seconds * 1e9); }
};

TEST(SaveCadence, FixedIntervalsAreKept) {
  const auto outcome = SimulatedRun{.config = config_of(10, 4)}.run(25);
  EXPECT_EQ(outcome.saves, (std::vector<std::uint64_t>{10, 20}));
  EXPECT_EQ(outcome.snapshots, (std::vector<std::uint64_t>{4, 8, 12, 16, 24}));
  EXPECT_TRUE(outcome.choices.empty());
  EXPECT_TRUE(SimulatedRun{.config = config_of(0, 0)}.run(25).saves.empty());
}

TEST(SaveCadence, OnlyGivenStepsAreSavedToDiskWhileAGrowthWaits) {
  CheckpointConfig by_clock = config_of(0, 1), milestones = config_of(automatic, 1);
  by_clock.every_ms = 1;
  milestones.keep_every_steps = 100;
  SaveCadence fixed(config_of(10, 1), 0), clock(by_clock, 0), kept(milestones, 0);
  const std::int64_t later_ns = 1'000'000'000;
  EXPECT_TRUE(fixed.due(10, 0, /*growth_waits=*/true).to_disk);
  EXPECT_TRUE(clock.due(11, later_ns).to_disk);
  EXPECT_FALSE(clock.due(11, later_ns, /*growth_waits=*/true).to_disk);
  EXPECT_TRUE(clock.due(11, later_ns, /*growth_waits=*/true).to_ram);
  EXPECT_TRUE(kept.due(100, 0, /*growth_waits=*/true).to_disk);
  EXPECT_FALSE(kept.due(101, 0, /*growth_waits=*/true).to_disk);
}

// A process that dies before an interval is chosen would have nothing but what it began with, and a run whose
// processes all die that early would never get further.
TEST(SaveCadence, WhatTheFirstStepMadeIsSavedAtOnce) {
  const auto with_memory = SimulatedRun{.config = config_of(automatic, automatic)}.run(4);
  EXPECT_EQ(with_memory.snapshots, (std::vector<std::uint64_t>{1}));
  EXPECT_TRUE(with_memory.saves.empty()) << "the cheaper of the two is enough";
  const auto without = SimulatedRun{.config = config_of(automatic, 0)}.run(4);
  EXPECT_EQ(without.saves, (std::vector<std::uint64_t>{1}));
}

TEST(SaveCadence, TheClockMakesSavesDueAsStepsDo) {
  CheckpointConfig config = config_of(0, 0);
  config.every_ms = 25'000;
  // Two steps of ten seconds, then steps of one, each seventh of one and a half.
  const auto by_clock = SimulatedRun{.config = config}.run(80);
  EXPECT_EQ(by_clock.saves, (std::vector<std::uint64_t>{8, 33, 57}));
  config.every_steps = 30;
  EXPECT_EQ(SimulatedRun{.config = config}.run(80).saves, (std::vector<std::uint64_t>{8, 30, 55, 60}));
}

TEST(SaveCadence, NoClockMakesARunWaitForTheDisk) {
  CheckpointConfig config = config_of(0, 0);
  config.every_ms = 1000;
  const auto outcome = SimulatedRun{.config = config, .save_steps = 10}.run(45);
  EXPECT_EQ(outcome.saves, (std::vector<std::uint64_t>{2, 13, 24, 35}));
}

// Checkpoints that are to be kept for good are made.
TEST(SaveCadence, StepsThatAreKeptForGoodAreSaved) {
  CheckpointConfig config = config_of(automatic, automatic);
  config.keep_every_steps = 500;
  const auto outcome =
      SimulatedRun{.config = config, .snapshot_seconds = 0.05, .save_seconds = 1.0}.run(1600);
  for (const std::uint64_t step : {500U, 1000U, 1500U})
    EXPECT_NE(std::ranges::find(outcome.saves, step), outcome.saves.end()) << step;
}

TEST(SaveCadence, SnapshotsTakeAHalfPercentOfTheTime) {
  for (const double cost : {0.02, 0.1, 0.5}) {
    const auto outcome = SimulatedRun{.config = config_of(0, automatic), .snapshot_seconds = cost}.run(3000);
    EXPECT_TRUE(outcome.saves.empty());
    const double share = static_cast<double>(outcome.snapshots.size()) * cost / 3000.0;
    EXPECT_LE(share, 0.0055) << cost;
    EXPECT_GE(share, 0.004) << cost << ": more often would do no harm";
    ASSERT_FALSE(outcome.choices.empty());
    EXPECT_FALSE(outcome.choices[0].to_disk);
  }
}

TEST(SaveCadence, SavesComeAsOftenAsFailuresMakeThemWorth) {
  struct Case {
    std::int64_t mtbf_seconds;
    double save_seconds;
    std::int64_t save_steps;
    double expected_steps;
  };
  const std::vector<Case> cases = {
      {86400, 1.0, 3, 415.0},
      {3600, 0.5, 3, 59.5},
      {60, 0.5, 20, 20.0},  // more often the disk does not take them
  };
  for (const Case& one : cases) {
    const auto outcome = SimulatedRun{.config = config_of(automatic, automatic, one.mtbf_seconds),
                                      .snapshot_seconds = 0.05,
                                      .save_seconds = one.save_seconds,
                                      .save_steps = one.save_steps}
                             .run(4000);
    const double between = 4000.0 / static_cast<double>(outcome.saves.size());
    EXPECT_NEAR(between / one.expected_steps, 1.0, 0.2) << one.mtbf_seconds;
    ASSERT_GE(outcome.choices.size(), 2u);
    EXPECT_FALSE(outcome.choices[0].to_disk) << "a snapshot is tried first";
    EXPECT_TRUE(outcome.choices[1].to_disk);
    EXPECT_TRUE(outcome.choices[1].prior.is_fixed);
    EXPECT_LT(outcome.saves[0], 20u) << "the first save measures";
  }
}

TEST(SaveCadence, TheHistoryCountsWhereNothingIsStated) {
  const CheckpointConfig config = config_of(automatic, 0);
  const auto calm = SimulatedRun{.config = config, .save_seconds = 1.0}.run(3000);
  const auto stormy =
      SimulatedRun{
          .config = config, .save_seconds = 1.0, .history = {.failures = 50, .running_seconds = 36'000.0}}
          .run(3000);
  EXPECT_GT(stormy.saves.size(), 5 * calm.saves.size());
  ASSERT_FALSE(stormy.choices.empty());
  EXPECT_FALSE(stormy.choices[0].prior.is_fixed);
  EXPECT_NEAR(stormy.choices[0].mtbf_seconds, 724.0, 30.0);
  EXPECT_EQ(stormy.choices[0].failures, 50);
  EXPECT_EQ(calm.choices[0].failures, 0);
}

TEST(IntervalChoice, SaysWhereItsTimeBetweenFailuresIsFrom) {
  IntervalChoice choice{.to_disk = true,
                        .every_steps = 131,
                        .times = {.step_seconds = 2.54, .cost_seconds = 0.61},
                        .mtbf_seconds = 86'404.0};
  const std::string begin = "checkpoints every 131 steps: one costs 0.61 s, a step takes 2.54 s, ";
  EXPECT_EQ(describe(choice), begin + "a failure is expected every 1d (assumed: the run has had none)");
  choice.prior.is_stated = true;
  EXPECT_EQ(describe(choice),
            begin + "a failure is expected every 1d (hazard.mtbf_hours; the run has had none)");
  choice.failures = 1;
  EXPECT_EQ(describe(choice), begin + "a failure is expected every 1d4s (from the run's history)");
  choice.prior.is_fixed = true;
  EXPECT_EQ(describe(choice), begin + "a failure is expected every 1d4s (checkpoint.mtbf)");
  choice.unlimited_steps = 415;
  choice.lose_at_most_ms = 300'000;
  EXPECT_EQ(describe(choice), begin +
                                  "a failure is expected every 1d4s (checkpoint.mtbf); "
                                  "checkpoint.lose_at_most = 5m asks for more than every 415");
}

// What may be lost counts the interval, the step under way, and the time until a save counts.
TEST(SaveCadence, NoMoreIsLostThanTheConfigAllows) {
  CheckpointConfig config = config_of(automatic, automatic);
  config.lose_at_most_ms = 60'000;
  const auto outcome =
      SimulatedRun{.config = config, .snapshot_seconds = 0.9, .save_seconds = 2.0, .save_steps = 5}.run(2000);
  ASSERT_EQ(outcome.choices.size(), 2u);
  EXPECT_EQ(outcome.choices[0].every_steps, 59) << "and a step";
  EXPECT_EQ(outcome.choices[0].unlimited_steps, 180);
  EXPECT_EQ(outcome.choices[1].every_steps, 54) << "a step, and five until it is durable";
  EXPECT_GT(outcome.choices[1].unlimited_steps, 54);
  EXPECT_EQ(outcome.choices[1].lose_at_most_ms, 60'000);
  EXPECT_DOUBLE_EQ(outcome.choices[1].most_lost_seconds, 0.0) << "it is kept";
  for (std::size_t i = 2; i < outcome.saves.size(); ++i)
    EXPECT_LE(outcome.saves[i] - outcome.saves[i - 1], 54u) << outcome.saves[i];
}

// A save takes 50 steps, so that no interval keeps what was asked for. It is said once, with what is lost.
TEST(SaveCadence, WhatTheDiskCannotKeepIsSaid) {
  CheckpointConfig config = config_of(automatic, 0);
  config.lose_at_most_ms = 60'000;
  SaveCadence cadence(config, 0);
  cadence.begin_epoch({.prior = prior_of(config)});
  std::vector<IntervalChoice> choices;
  std::vector<FailureCost> costs;
  std::int64_t saving = 0, now_ns = 0;
  for (std::uint64_t step = 1; step <= 400; ++step) {
    const SaveDue due = cadence.due(step, now_ns += SimulatedRun::to_ns(1.0));
    const bool was_saving = saving > 0;
    if (was_saving && --saving == 0) {
      SaveReport report;
      report.duration_ns = SimulatedRun::to_ns(50.0);
      cadence.ended(report, now_ns);
    }
    cadence.stepped({.duration_ns = SimulatedRun::to_ns(1.0), .beside_save = was_saving});
    while (const std::optional<IntervalChoice> choice = cadence.take_choice()) choices.push_back(*choice);
    while (const std::optional<FailureCost> cost = cadence.take_failure_cost()) costs.push_back(*cost);
    if (!due.to_disk) continue;
    saving = 50;
    cadence.began({.step = step, .to_disk = true, .now_ns = now_ns});
  }
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].every_steps, 50);
  EXPECT_DOUBLE_EQ(choices[0].most_lost_seconds, 101.0);
  EXPECT_NE(
      describe(choices[0])
          .find("checkpoint.lose_at_most = 1m cannot be kept: a save counts after 50 s, so up to 101 s"),
      std::string::npos)
      << describe(choices[0]);
  ASSERT_FALSE(costs.empty());
  EXPECT_DOUBLE_EQ(*costs.back().job_seconds, 101.0);
}

// What a process measures of its steps and snapshots, one epoch after another.
class MeasuredEpochs {
 public:
  explicit MeasuredEpochs(const CheckpointConfig& config) : cadence_(config, 0) {}

  struct Steps {
    std::int64_t count = 0;
    double seconds = 1.0;
    double copy_seconds = 0.0;    // that a copy takes of the processors
    double longer_seconds = 0.0;  // that the step beside a snapshot takes
    bool leaves_out = false;      // a snapshot that is due is not begun
  };
  void epoch(const SaveCadence::MembershipEpoch& epoch, const std::vector<Steps>& parts) {
    cadence_.begin_epoch(epoch);
    bool copying = false;
    for (const Steps& part : parts) {
      for (std::int64_t i = 0; i < part.count; ++i) {
        const SaveDue due = cadence_.due(++step_, now_ns_);
        const auto duration_ns = SimulatedRun::to_ns(part.seconds + (copying ? part.longer_seconds : 0.0));
        now_ns_ += duration_ns;
        if (copying) cadence_.copied(SimulatedRun::to_ns(part.copy_seconds));
        cadence_.stepped({.duration_ns = duration_ns, .beside_snapshot = copying});
        copying = due.to_ram && !part.leaves_out;
        if (copying) {
          cadence_.began({.step = step_, .now_ns = now_ns_});
          snapshots.push_back(step_);
        }
        while (const std::optional<IntervalChoice> choice = cadence_.take_choice())
          choices.push_back(*choice);
        while (const std::optional<FailureCost> cost = cadence_.take_failure_cost()) costs.push_back(*cost);
      }
    }
  }

  std::vector<IntervalChoice> choices;
  std::vector<FailureCost> costs;
  std::vector<std::uint64_t> snapshots;

 private:
  SaveCadence cadence_;
  std::uint64_t step_ = 0;
  std::int64_t now_ns_ = 0;
};

// No step is without a snapshot beside it then, and the run chooses how often to save to disk all the same.
TEST(SaveCadence, SnapshotsOfEveryStepLeaveTheDiskItsInterval) {
  const auto outcome =
      SimulatedRun{.config = config_of(automatic, 1, 3600), .snapshot_seconds = 0.1, .save_seconds = 0.5}.run(
          1000);
  ASSERT_FALSE(outcome.saves.empty());
  EXPECT_LT(outcome.saves[0], 20u) << "the first save measures";
  ASSERT_FALSE(outcome.choices.empty());
  EXPECT_TRUE(outcome.choices[0].to_disk);
  EXPECT_NEAR(1000.0 / static_cast<double>(outcome.saves.size()), 60.0, 20.0);

  MeasuredEpochs run(config_of(100, 1));
  run.epoch({}, {{.count = 20, .copy_seconds = 0.05, .longer_seconds = 0.5}});
  ASSERT_EQ(run.costs.size(), 1u);
  EXPECT_DOUBLE_EQ(*run.costs[0].process_seconds, 3.0) << "a step of 1.5 s, and the copy";
  EXPECT_DOUBLE_EQ(*run.costs[0].job_seconds, 151.5);
}

// The steps behind a recovery touch their memory for the first time. They made the usual step look slow, and
// the one beside a snapshot fast: a snapshot of 50 ms then cost 0.165 ms, and was made after every step.
TEST(SaveCadence, SlowStepsBehindARecoveryDoNotMakeASnapshotCheap) {
  const MeasuredEpochs::Steps slow{.count = 4, .seconds = 5.0, .copy_seconds = 0.05, .longer_seconds = 0.05},
      usual{.count = 30, .seconds = 1.0, .copy_seconds = 0.05, .longer_seconds = 0.05};
  MeasuredEpochs run(config_of(0, automatic));
  run.epoch({}, {slow, usual});
  ASSERT_FALSE(run.choices.empty());
  for (const IntervalChoice& choice : run.choices) {
    EXPECT_GE(choice.times.cost_seconds, 0.049);
    EXPECT_GT(choice.every_steps, 1);
  }
}

TEST(SaveCadence, MeasurementsStayFromEpochToEpoch) {
  const MeasuredEpochs::Steps usual{
      .count = 40, .seconds = 1.0, .copy_seconds = 0.05, .longer_seconds = 0.05};
  MeasuredEpochs run(config_of(0, automatic));
  run.epoch({}, {usual});
  ASSERT_EQ(run.choices.size(), 1u);
  EXPECT_EQ(run.choices[0].every_steps, 10);
  const std::size_t before = run.snapshots.size();
  // The first steps are slow, and a snapshot is protected as at the start; no other is made to measure.
  run.epoch({}, {{.count = 3, .seconds = 6.0, .copy_seconds = 0.2, .longer_seconds = 3.0}, usual});
  EXPECT_EQ(run.choices.size(), 1u) << "nothing is new";
  ASSERT_GE(run.snapshots.size(), before + 2);
  EXPECT_EQ(run.snapshots[before], 41u);
  EXPECT_EQ(run.snapshots[before + 1], 51u);
}

// Half of the ranks do twice the work and save twice the bytes.
TEST(SaveCadence, MeasurementsGoWithTheWorkOfARank) {
  const MeasuredEpochs::Steps usual{
      .count = 40, .seconds = 1.0, .copy_seconds = 0.05, .longer_seconds = 0.05};
  MeasuredEpochs run(config_of(0, automatic));
  run.epoch({.work = 2.0, .snapshot_bytes = 1e9}, {usual});
  run.epoch({.work = 4.0, .snapshot_bytes = 3e9}, {{.count = 1, .seconds = 2.0}});
  ASSERT_EQ(run.costs.size(), 2u);
  EXPECT_DOUBLE_EQ(*run.costs[0].process_seconds, 11.0) << "ten steps of a second, and the copy";
  EXPECT_DOUBLE_EQ(*run.costs[1].process_seconds, 32.0) << "fifteen of two";
}

// What was told is the most that a failure costs, so a figure that grew is told sooner than one that fell.
TEST(SaveCadence, WhatAFailureCostsIsToldAgainWhenItGrew) {
  const MeasuredEpochs::Steps usual{.count = 20};
  MeasuredEpochs run(config_of(0, 10));
  run.epoch({.work = 10.0}, {usual});
  ASSERT_EQ(run.costs.size(), 1u);
  EXPECT_DOUBLE_EQ(*run.costs[0].process_seconds, 11.0);
  const auto reported_after = [&](double work) {
    run.epoch({.work = work}, {{.count = 1}});
    return run.costs.size();
  };
  EXPECT_EQ(reported_after(10.5), 1u) << "half a second more";
  EXPECT_EQ(reported_after(13.0), 2u);
  EXPECT_DOUBLE_EQ(*run.costs[1].process_seconds, 14.3);
  EXPECT_EQ(reported_after(8.0), 2u) << "less, and not by half";
  EXPECT_EQ(reported_after(6.0), 3u);
}

TEST(SaveCadence, SnapshotsThatAreLeftOutCostNothing) {
  const MeasuredEpochs::Steps usual{
      .count = 12, .seconds = 1.0, .copy_seconds = 0.05, .longer_seconds = 0.05};
  MeasuredEpochs run(config_of(0, automatic));
  run.epoch({}, {usual, {.count = 20, .leaves_out = true}, usual});
  for (const IntervalChoice& choice : run.choices) EXPECT_NEAR(choice.times.cost_seconds, 0.05, 1e-9);
}

TEST(SaveCadence, WhatAFailureCostsFollowsFromTheIntervals) {
  struct Case {
    const char* what;
    CheckpointConfig config;
    SaveCadence::MembershipEpoch epoch;
    std::optional<double> process, host, job;
  };
  CheckpointConfig by_clock = config_of(100, 10);
  by_clock.every_ms = 30'000;
  const std::optional<double> all;
  const std::vector<Case> cases = {
      {"one host", config_of(100, 10), {}, 11.0, 101.0, 101.0},
      {"replicas on another host", config_of(100, 10), {.survives_host = true}, 11.0, 11.0, 101.0},
      {"no room for a RAM tier", config_of(100, 10), {.has_ram_tier = false}, 101.0, 101.0, 101.0},
      {"no checkpoints", config_of(0, 10), {}, 11.0, all, all},
      {"nothing at all", config_of(0, 0), {}, all, all, all},
      {"the disk more often than memory", config_of(5, 10), {}, 6.0, 6.0, 6.0},
      {"by the clock, too", by_clock, {}, 11.0, 31.0, 31.0},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    MeasuredEpochs run(each.config);
    run.epoch(each.epoch, {{.count = 8}});
    ASSERT_EQ(run.costs.size(), 1u);
    EXPECT_EQ(run.costs[0].process_seconds, each.process);
    EXPECT_EQ(run.costs[0].host_seconds, each.host);
    EXPECT_EQ(run.costs[0].job_seconds, each.job);
  }
}

// With a snapshot after each step the loss is two steps, and three where one is left out at times.
TEST(SaveCadence, SaysWhatIsPromisedAndCannotBeKept) {
  for (const auto& [may_lose_ms, is_kept] : {std::pair(1'000, false), {2'000, true}, {0, true}}) {
    CheckpointConfig config = config_of(1, 1);
    config.lose_at_most_ms = may_lose_ms;
    MeasuredEpochs run(config);
    run.epoch({}, {{.count = 8}});
    ASSERT_EQ(run.costs.size(), 1u);
    EXPECT_EQ(run.costs[0].process_seconds, 2.0);
    EXPECT_EQ(run.costs[0].exceeds_promise(), !is_kept) << may_lose_ms;
    EXPECT_EQ(run.costs[0].lose_at_most_ms, may_lose_ms);
  }
  FailureCost without_disk;
  without_disk.process_seconds = 1.0;
  without_disk.lose_at_most_ms = 1'000;
  EXPECT_TRUE(without_disk.exceeds_promise()) << "a job costs all";
}

TEST(SaveCadence, WhatAFailureCostsIsToldAgainWhenItChangesByMuch) {
  MeasuredEpochs run(config_of(100, 10));
  run.epoch({}, {{.count = 30}, {.count = 30, .seconds = 1.5}, {.count = 30, .seconds = 3.0}});
  ASSERT_EQ(run.costs.size(), 3u);
  EXPECT_DOUBLE_EQ(*run.costs[1].job_seconds, 151.5);
  EXPECT_DOUBLE_EQ(*run.costs[2].job_seconds, 303.0);
}

// Steps of four ranks on two processors: a thread that waits for one makes a step or a copy longer by chance, beside a snapshot
// as often as without. Returns how often snapshots are made in the end.
struct NoisyRun {
  double copy_seconds = 0.0, longer_seconds = 0.0;
  struct Outcome {
    double newest = 0.0;  // interval
    std::size_t news = 0;
  };
  Outcome run(std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::exponential_distribution<double> wait(1.0);
    SaveCadence cadence(config_of(0, automatic), 0);
    cadence.begin_epoch({});
    std::int64_t now_ns = 0;
    bool copying = false;
    Outcome outcome;
    for (std::uint64_t step = 1; step <= 4000; ++step) {
      const SaveDue due = cadence.due(step, now_ns);
      const std::int64_t duration_ns =
          SimulatedRun::to_ns(0.006 + 0.003 * wait(random) + (copying ? longer_seconds : 0.0));
      now_ns += duration_ns;
      if (copying) cadence.copied(SimulatedRun::to_ns(copy_seconds));
      cadence.stepped({.duration_ns = duration_ns, .beside_snapshot = copying});
      copying = due.to_ram;
      if (copying) {
        const double stall = 1e-6 + (wait(random) > 2.0 ? 0.004 : 0.0);
        cadence.began({.step = step, .stall_ns = SimulatedRun::to_ns(stall), .now_ns = now_ns});
      }
      while (const std::optional<IntervalChoice> choice = cadence.take_choice()) {
        outcome.newest = static_cast<double>(choice->every_steps);
        ++outcome.news;
      }
    }
    return outcome;
  }
};

// A copy of 0.1 ms in steps of 8 ms is worth making every third step or so. Wall time made it every 56th.
TEST(SaveCadence, AThreadThatDoesNotRunIsNotThePriceOfASnapshot) {
  constexpr std::uint64_t runs = 50;
  std::size_t news = 0, rare = 0;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    const auto outcome = NoisyRun{.copy_seconds = 0.0001}.run(seed);
    EXPECT_LE(outcome.newest, 30.0) << seed;
    rare += outcome.newest > 6.0 ? 1 : 0;
    news += outcome.news;
  }
  EXPECT_LE(rare, 2u);
  EXPECT_LE(news, 3 * runs) << "of " << runs << " runs of 4000 steps";
}

// And what a snapshot really costs is seen through the same noise.
TEST(SaveCadence, ThePriceOfASnapshotIsSeenThroughNoise) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const auto outcome = NoisyRun{.copy_seconds = 0.0001, .longer_seconds = 0.02}.run(seed);
    EXPECT_GE(outcome.newest, 100.0) << seed << ": 444 without noise";
  }
}

// A price of half of what steps vary is not free, though no few steps tell it from chance.
TEST(SaveCadence, APriceBelowWhatStepsVaryIsFoundInTheEnd) {
  constexpr std::uint64_t steps = 40'000;
  for (const double spread : {0.05, 0.1}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const double price = spread / 2.0;
      std::mt19937_64 random(seed);
      std::normal_distribution<double> varied(1.0, spread);
      SaveCadence cadence(config_of(0, automatic), 0);
      cadence.begin_epoch({});
      std::int64_t now_ns = 0, snapshots = 0, snapshots_late = 0;
      bool copying = false;
      for (std::uint64_t step = 1; step <= steps; ++step) {
        const SaveDue due = cadence.due(step, now_ns);
        const std::int64_t duration_ns = SimulatedRun::to_ns(varied(random) + (copying ? price : 0.0));
        now_ns += duration_ns;
        cadence.stepped({.duration_ns = duration_ns, .beside_snapshot = copying});
        copying = due.to_ram;
        if (!copying) continue;
        cadence.began({.step = step, .now_ns = now_ns});
        ++snapshots;
        snapshots_late += step > steps / 2 ? 1 : 0;
      }
      EXPECT_LE(static_cast<double>(snapshots) * price / steps, 0.01) << spread << ", seed " << seed;
      EXPECT_LE(static_cast<double>(snapshots_late) * price / (steps / 2), 0.0075)
          << spread << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace holdfast::test
