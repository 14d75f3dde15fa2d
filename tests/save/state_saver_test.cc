// Checkpoints that are made while training goes on: what they hold, what slow and failing disks do to them
// and to the run.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "runtime/core/json.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class StateSaverTest : public TrainingTest {
 protected:
  static constexpr int steps = 20;

  // The digest of the run that nobody disturbs, stopped after `step`; 0: at its end.
  std::string reference(int step = 0) {
    const std::string run = fmt::format("reference-{}", step);
    EXPECT_EQ(train({.run = run, .stop_after_steps = step}).code,
              step == 0 ? ExitCode::done : ExitCode::saved);
    return digest(run);
  }
  std::string checkpoint(const std::string& run, int step) const {
    return fmt::format("{}/checkpoints/step-{:08}", run, step);
  }
  bool is_there(const std::string& run, int step) const {
    return posix_env().status(run_directory(checkpoint(run, step)))->exists;
  }
  std::vector<Json> events(const std::string& run, const std::string& name) const {
    std::vector<Json> found;
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      if (Json event = Json::parse(line); event["event"] == name) found.push_back(std::move(event));
    }
    return found;
  }
  static std::string sleep_at_hits(const std::string& point, int hits, int milliseconds) {
    std::string text;
    for (int hit = 1; hit <= hits; ++hit)
      text += fmt::format("{}{}@{}=sleep:{}", hit == 1 ? "" : ",", point, hit, milliseconds);
    return text;
  }
};

TEST_F(StateSaverTest, EveryStepIsSavedWithTheBitsOfThatStep) {
  const std::vector<std::pair<int, std::vector<std::string>>> layouts = {
      {1, {}}, {2, {}}, {3, {}}, {4, {"parallel.pipeline=2"}}};
  const std::string end = reference(), middle = reference(7);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto& [ranks, layout] = layouts[i];
    Launch launch{.run = fmt::format("saving-{}", i), .ranks = ranks, .overrides = layout};
    launch.overrides.insert(launch.overrides.end(), {"checkpoint.every_steps=1", "checkpoint.keep=100"});
    const RunEnd run_end = train(launch);
    ASSERT_EQ(run_end.code, ExitCode::done) << run_end.message;
    for (int step = 1; step <= steps; ++step) EXPECT_TRUE(is_there(launch.run, step)) << step;
    EXPECT_EQ(digest(checkpoint(launch.run, 7)), middle);
    EXPECT_EQ(digest(launch.run), end);
    EXPECT_EQ(std::ssize(events(launch.run, "checkpoint")), steps);
  }
}

// Also of tensors that all ranks of a tensor group have, which one of them saves.
TEST_F(StateSaverTest, SlicesAreSavedOnce) {
  const std::vector<std::string> slices = {"parallel.tensor_lanes=2"};
  ASSERT_EQ(train({.run = "stopped", .stop_after_steps = 5, .overrides = slices}).code, ExitCode::saved);
  Launch launch{.run = "saving", .ranks = 2, .overrides = slices};
  launch.overrides.insert(launch.overrides.end(), {"parallel.tensor=2", "checkpoint.every_steps=5"});
  launch.stop_after_steps = 8;
  ASSERT_EQ(train(launch).code, ExitCode::saved);
  EXPECT_EQ(digest(checkpoint("saving", 5)), digest("stopped"));
}

TEST_F(StateSaverTest, TrainingGoesOnBesideASlowDisk) {
  const std::string end = reference();
  const Launch launch{.run = "slow",
                      .ranks = 2,
                      .overrides = {"checkpoint.every_steps=10"},
                      .faults = "save.before_shard:1=sleep:1500"};
  ASSERT_EQ(train(launch).code, ExitCode::done);
  EXPECT_EQ(digest("slow"), end);
  const std::vector<Json> saved = events("slow", "checkpoint");
  ASSERT_EQ(saved.size(), 2u);
  EXPECT_EQ(saved[0]["step"].get<int>(), 10);
  EXPECT_GT(saved[0]["duration_ms"].get<double>(), 1500.0);
  EXPECT_LT(saved[0]["stall_ms"].get<double>(), 1500.0) << "training waited for the disk";
  EXPECT_GT(saved[0]["bytes"].get<int>(), 10'000);
}

// The next save is due before the one before is on the disk.
TEST_F(StateSaverTest, NoSaveIsLeftOutBecauseTheDiskIsSlow) {
  const std::string end = reference();
  const Launch launch{.run = "slower",
                      .ranks = 2,
                      .overrides = {"checkpoint.every_steps=2", "checkpoint.keep=100"},
                      .faults = sleep_at_hits("save.before_shard", steps / 2, 20)};
  ASSERT_EQ(train(launch).code, ExitCode::done);
  EXPECT_EQ(digest("slower"), end);
  for (int step = 2; step <= steps; step += 2) EXPECT_TRUE(is_there("slower", step)) << step;
}

// When saves are made follows from clocks, and differs from run to run; what the run learns does not. Rank
// 0's clock counts for all.
TEST_F(StateSaverTest, IntervalsThatFollowFromMeasurementsChangeNoBit) {
  const std::string end = reference();
  const std::vector<std::string> faults = {"", "save.before_shard:1=sleep:20",
                                           "snapshot.mid_copy@2:0=sleep:30"};
  for (std::size_t i = 0; i < faults.size(); ++i) {
    SCOPED_TRACE(faults[i]);
    Launch launch{.run = fmt::format("auto-{}", i), .ranks = 3, .faults = faults[i]};
    launch.overrides = {"checkpoint.every_steps=auto", "checkpoint.ram_every_steps=auto",
                        "checkpoint.mtbf=0.01", "checkpoint.keep=100"};
    const RunEnd run_end = train(launch);
    ASSERT_EQ(run_end.code, ExitCode::done) << run_end.message;
    EXPECT_EQ(digest(launch.run), end);
    const std::vector<Json> saved = events(launch.run, "checkpoint");
    ASSERT_GE(saved.size(), 2u) << "one on trial, one at the end";
    // Two steps of a process are slow and two are measured; then the updates of steps 5, 7 and 9 write snapshots, and step
    // 10 is one without.
    EXPECT_EQ(saved[0]["step"].get<int>(), 11);
    const std::vector<Json> intervals = events(launch.run, "interval");
    ASSERT_GE(intervals.size(), 1u);
    EXPECT_EQ(intervals[0]["tier"].get<std::string>(), "ram");
    EXPECT_EQ(intervals[0]["step"].get<int>(), 10);
    EXPECT_GE(intervals[0]["every_steps"].get<int>(), 1);
  }
}

TEST_F(StateSaverTest, ASlowCopyHoldsTheUpdateUp) {
  const std::string end = reference(), middle = reference(10);
  const Launch launch{.run = "slow-copy",
                      .ranks = 2,
                      .overrides = {"checkpoint.every_steps=10"},
                      .faults = "snapshot.mid_copy:1=sleep:100"};
  ASSERT_EQ(train(launch).code, ExitCode::done);
  EXPECT_EQ(digest(checkpoint("slow-copy", 10)), middle);
  EXPECT_EQ(digest("slow-copy"), end);
}

TEST_F(StateSaverTest, AFailedSaveIsToldAndTrainingGoesOn) {
  struct Case {
    Operation operation;
    std::string path;
    int reason;
    bool is_repeated = false;
  };
  const std::vector<Case> cases = {
      {Operation::make_directories, ".pending/step-00000010", EDQUOT},
      {Operation::open, ".pending/step-00000010", EIO, true},
      {Operation::allocate, ".pending/step-00000010", ENOSPC},
      {Operation::write, "shard-00001.hfs", EIO, true},
      {Operation::sync, "shard-00000.hfs", EIO, true},
      {Operation::sync_directory, ".pending/step-00000010", EIO, true},
      {Operation::write, "manifest.json", ENOSPC},
      {Operation::sync, "manifest.json", EIO},
      {Operation::rename, "checkpoints/step-00000010", EIO},
  };
  const std::string end = reference();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].path);
    FaultyEnv machine(posix_env());
    machine.inject(
        {.operation = cases[i].operation, .path_contains = cases[i].path, .reason = cases[i].reason});
    const std::string run = fmt::format("failing-{}", i);
    testing::internal::CaptureStderr();
    const RunEnd run_end = train(
        {.run = run, .ranks = 2, .overrides = {"checkpoint.every_steps=5", "checkpoint.keep=100"}}, machine);
    const std::string reported = testing::internal::GetCapturedStderr();
    ASSERT_EQ(run_end.code, ExitCode::done) << run_end.message;
    ASSERT_EQ(machine.failure_count(), 1u);
    EXPECT_EQ(digest(run), end);
    const std::vector<Json> faults = events(run, "fault");
    ASSERT_EQ(faults.size(), cases[i].is_repeated ? 0u : 1u) << reported;
    if (cases[i].is_repeated) {
      for (const int step : {5, 10, 15, 20}) EXPECT_TRUE(is_there(run, step)) << step;
      continue;
    }
    EXPECT_EQ(faults[0]["what"].get<std::string>(), "save");
    EXPECT_THAT(reported, testing::HasSubstr("could not be saved: "));
    EXPECT_THAT(reported, testing::HasSubstr("Training goes on"));
    const int failed = faults[0]["step"].get<int>();
    EXPECT_FALSE(is_there(run, failed));
    for (const int step : {5, 10, 15, 20}) EXPECT_EQ(is_there(run, step), step != failed) << step;
    EXPECT_TRUE(posix_env().list(run_directory(run) + "/.pending")->empty());
  }
}

// It makes its checkpoints visible without asking anybody: long before the step ends in which it does.
TEST_F(StateSaverTest, OneRankAlonePublishesWhatItHasDrained) {
  const std::string end = reference();
  ASSERT_EQ(train({.run = "alone",
                   .overrides = {"checkpoint.every_steps=5", "verdict.preset=watch"},
                   .faults = "step.before_vote@6=sleep:2500"})
                .code,
            ExitCode::done);
  EXPECT_EQ(digest("alone"), end);
  const std::vector<Json> saved = events("alone", "checkpoint");
  ASSERT_EQ(saved.size(), 4u);
  EXPECT_GT(saved[0]["duration_ms"].get<double>(), 2500.0);
  EXPECT_LT(saved[0]["durable_ms"].get<double>(), 2500.0);

  FaultyEnv machine(posix_env());
  machine.inject(
      {.operation = Operation::rename, .path_contains = "checkpoints/step-00000010", .reason = EIO});
  testing::internal::CaptureStderr();
  ASSERT_EQ(train({.run = "failing", .overrides = {"checkpoint.every_steps=5"}}, machine).code,
            ExitCode::done);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("step 10 could not be saved: "));
  EXPECT_EQ(digest("failing"), end);
  for (const int step : {5, 10, 15, 20}) EXPECT_EQ(is_there("failing", step), step != 10) << step;
}

TEST_F(StateSaverTest, ADiskThatStaysFullEndsTheRunAtItsEnd) {
  FaultyEnv machine(posix_env());
  machine.inject(
      {.operation = Operation::allocate, .path_contains = "shard-00001", .for_ever = true, .reason = ENOSPC});
  testing::internal::CaptureStderr();
  const RunEnd run_end = train(
      {.run = "full",
       .ranks = 2,
       .overrides = {"checkpoint.every_steps=5", "elastic.input_timeout=0"},
       .faults = "step.begin@7=sleep:500,step.begin@12=sleep:500"},  // each save ends before the next one
      machine);
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(run_end.code, ExitCode::communication);
  EXPECT_THAT(run_end.message, testing::HasSubstr("the disk is full"));
  EXPECT_EQ(events("full", "fault").size(), 2u) << "then a save is left out for a while";
  EXPECT_EQ(events("full", "step").size(), static_cast<std::size_t>(steps));
}

// Full from line to line, half of it in the middle of a save.
TEST_F(StateSaverTest, AFullDiskCostsNoEventAndNoLineOfTheLedger) {
  const std::string end = reference();
  FaultyEnv machine(posix_env());
  constexpr std::uint64_t first = 5, last = 14;  // tries
  for (std::uint64_t at = first; at <= last; ++at) {
    for (const char* file : {"events.jsonl", "ledger-00000", "ledger-00001"}) {
      machine.inject(
          {.operation = Operation::append_line, .path_contains = file, .at = at, .reason = ENOSPC});
    }
  }
  machine.inject({.operation = Operation::allocate, .path_contains = "step-00000005", .reason = ENOSPC});
  testing::internal::CaptureStderr();
  const RunEnd run_end = train(
      {.run = "full", .ranks = 2, .overrides = {"checkpoint.every_steps=5", "data.ledger=true"}}, machine);
  const std::string reported = testing::internal::GetCapturedStderr();
  ASSERT_EQ(run_end.code, ExitCode::done) << run_end.message;
  EXPECT_EQ(machine.failure_count(), 3 * (last - first + 1) + 1);
  EXPECT_EQ(digest("full"), end);
  const std::vector<Json> made = events("full", "step");
  ASSERT_EQ(made.size(), static_cast<std::size_t>(steps));
  for (int step = 1; step <= steps; ++step) EXPECT_EQ(made[static_cast<std::size_t>(step) - 1]["step"], step);
  EXPECT_EQ(events("full", "fault").size(), 1u);
  EXPECT_EQ(events("full", "finish").size(), 1u);
  for (int rank : {0, 1}) {
    std::istringstream lines(posix_env().read_text(RunPaths{run_directory("full")}.ledger(rank)).value());
    int step = 0;
    for (std::string line; std::getline(lines, line);)
      EXPECT_EQ(Json::parse(line)["step"].get<int>(), ++step);
    EXPECT_EQ(step, steps);
  }
  for (const char* file : {"events.jsonl", "ledger-00000.jsonl", "ledger-00001.jsonl"}) {
    EXPECT_THAT(reported,
                testing::ContainsRegex(fmt::format("cannot append to .*/{}: the disk is full", file)));
    EXPECT_THAT(reported, testing::ContainsRegex(fmt::format("/{} is written again, with 10 lines", file)));
  }
}

// Nothing comes behind the end, so it wants all lines; a start wants to know that there will be some.
TEST_F(StateSaverTest, ALogThatCannotBeWrittenEndsARunAtItsEndAndAtItsStart) {
  const std::string end = reference();
  for (const char* file : {"events.jsonl", "ledger-00001"}) {
    SCOPED_TRACE(file);
    FaultyEnv machine(posix_env());
    machine.inject({.operation = Operation::append_line,
                    .path_contains = file,
                    .at = 10,
                    .for_ever = true,
                    .reason = EIO});
    const std::string run = fmt::format("silent-{}", file);
    const Launch launch{.run = run, .ranks = 2, .overrides = {"data.ledger=true"}};
    testing::internal::CaptureStderr();
    const RunEnd run_end = train(launch, machine);
    static_cast<void>(testing::internal::GetCapturedStderr());
    EXPECT_EQ(run_end.code, ExitCode::communication);
    EXPECT_THAT(run_end.message, testing::ContainsRegex("cannot append to .*: Input/output error; "
                                                        "[0-9]+ lines are not in it"));
    EXPECT_THAT(run_end.message, testing::HasSubstr(file));
    EXPECT_EQ(digest(run), end) << "the last step was saved before";
    EXPECT_EQ(train(launch).code, ExitCode::done);
  }
  FaultyEnv machine(posix_env());
  machine.inject(
      {.operation = Operation::append_line, .path_contains = "events", .for_ever = true, .reason = EACCES});
  testing::internal::CaptureStderr();
  const RunEnd refused = train({.run = "refused", .ranks = 2}, machine);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(testing::HasSubstr("goes on")));
  EXPECT_EQ(refused.code, ExitCode::checkpoint);
  EXPECT_THAT(refused.message,
              testing::ContainsRegex("cannot append to .*/events.jsonl: Permission denied$"));
  EXPECT_FALSE(posix_env().status(run_directory("refused/checkpoints"))->exists) << "no step was made";
}

// The save was begun before the trouble, and is of an earlier step.
TEST_F(StateSaverTest, ARunThatEndsWithAnErrorFinishesItsSaves) {
  const std::string middle = reference(5);
  const RunEnd run_end = train({.run = "troubled",
                                .ranks = 2,
                                .overrides = {"checkpoint.every_steps=5"},
                                .faults = "save.before_shard:1=sleep:200",
                                .data_ends_in_step = 7});
  EXPECT_EQ(run_end.code, ExitCode::communication);
  EXPECT_EQ(events("troubled", "step").size(), 6u);
  EXPECT_EQ(digest("troubled"), middle);
}

}  // namespace
}  // namespace holdfast::test
