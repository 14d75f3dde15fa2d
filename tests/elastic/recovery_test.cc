// Whole runs some of whose ranks die.
#include "runtime/core/json.h"
#include "tests/elastic/recovery_fixture.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

namespace holdfast::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;

struct Disturbed {
  const char* what;
  int ranks;
  int deaths;
  std::vector<std::string> overrides;
  const char* faults;
};

TEST_F(RecoveryTest, TheBitsAreThoseOfTheUndisturbedRun) {
  const std::string end = reference();
  const std::string ram = "checkpoint.ram_every_steps=1", seldom = "checkpoint.ram_every_steps=3";
  const Disturbed cases[] = {
      {"one of two, nothing saved", 2, 1, {}, "step.before_vote@4:1=kill"},
      {"one of two, from the disk", 2, 1, {"checkpoint.every_steps=3"}, "step.after_vote@8:1=kill"},
      {"one of two, from RAM", 2, 1, {ram}, "step.before_vote@8:1=kill"},
      {"the leader", 3, 1, {ram}, "step.before_gather@8:0=kill"},
      {"one after another",
       4,
       3,
       {ram},
       "step.begin@5:3=kill,step.end@9:0=kill,step.before_reduce@14:2=kill"},
      {"two at once", 4, 2, {seldom}, "step.begin@8:1=kill,step.begin@8:2=kill"},
      {"a rank of a pipeline", 4, 1, {ram, "parallel.pipeline=2"}, "step.before_backward@7:2=kill"},
      {"a rank of each copy",
       4,
       2,
       {seldom, "parallel.pipeline=2"},
       "step.before_vote@7:0=kill,step.before_vote@7:3=kill"},
      {"with a spare", 3, 1, {ram, "elastic.spares=1"}, "step.before_vote@7:1=kill"},
      {"the spare and more",
       4,
       2,
       {ram, "elastic.spares=1"},
       "step.before_vote@7:2=kill,recover.before_load:3=kill"},
      {"while they come together", 4, 2, {ram}, "step.begin@6:3=kill,recover.begin:1=kill"},
      {"right after it", 4, 2, {ram}, "step.begin@6:3=kill,recover.after_shrink:0=kill"},
      {"before it goes on", 3, 2, {seldom}, "step.begin@6:1=kill,recover.before_resume:0=kill"},
      {"in the last step", 2, 1, {ram}, "step.end@20:1=kill"},
      {"in the first step", 2, 1, {ram}, "step.begin@1:1=kill"},
      {"at the start", 3, 1, {ram}, "start.after_join:0=kill"},
      {"in an evaluation", 2, 1, {ram}, "evaluation.begin@1:0=kill"},
  };
  int number = 0;
  for (const Disturbed& each : cases) {
    SCOPED_TRACE(each.what);
    const std::string run = fmt::format("disturbed-{}", ++number);
    EXPECT_EQ(survive({.run = run, .ranks = each.ranks, .overrides = each.overrides, .faults = each.faults}),
              each.deaths);
    EXPECT_EQ(digest(run), end);
    EXPECT_EQ(events(run, "start").size(), 1U) << "nobody was started again";
    std::set<int> steps;
    for (const Json& event : events(run, "step")) steps.insert(event["step"].get<int>());
    EXPECT_EQ(steps.size(), 20U);
  }
}

// Ranks that are lost and come back move the waves against the blocks.
TEST_F(RecoveryTest, BlocksOfLanesStayThoseOfTheRun) {
  const std::string block = "parallel.lane_block=2";
  ASSERT_EQ(train({.run = "reference", .overrides = {block}}).code, ExitCode::done);
  const std::vector<std::string> ram = {block, "checkpoint.ram_every_steps=1"};
  FaultyEnv other_host(posix_env());
  other_host.move_to_host("other");
  EXPECT_EQ(survive({.run = "shrinking",
                     .ranks = 4,
                     .overrides = ram,
                     .faults = "step.before_reduce@14:2=kill,step.begin@9:0=kill,step.before_vote@5:3=kill"},
                    {.host_of = {{2, &other_host}, {3, &other_host}}}),
            3);
  EXPECT_EQ(digest("shrinking"), digest("reference"));
  EXPECT_EQ(survive({.run = "growing",
                     .ranks = 4,
                     .overrides = {block, "checkpoint.ram_every_steps=1", "elastic.grow_after=0s",
                                   "elastic.memory_timeout=0s"},
                     .faults = "step.before_reduce@9:2=kill"},
                    {.newcomers = 1}),
            1);
  EXPECT_EQ(digest("growing"), digest("reference"));
}

TEST_F(RecoveryTest, TellsWhatHappened) {
  ASSERT_EQ(survive({.run = "told",
                     .ranks = 4,
                     .overrides = {"checkpoint.ram_every_steps=1", "elastic.spares=1"},
                     .faults = "step.before_vote@8:1=kill,step.before_vote@5:2=kill"}),
            2);
  const std::vector<Json> faults = events("told", "fault"), healed = events("told", "recovery");
  ASSERT_EQ(faults.size(), 2U);
  ASSERT_EQ(healed.size(), 2U);
  EXPECT_THAT(faults[0]["lost"], HasSubstr("rank 2 (host "));
  EXPECT_EQ(faults[0]["step"], 4);
  EXPECT_EQ(healed[0]["level"], 1);
  EXPECT_EQ(healed[0]["ranks_before"], 4);
  EXPECT_EQ(healed[0]["ranks_after"], 3);
  EXPECT_EQ(healed[0]["seats_before"], 3);
  EXPECT_EQ(healed[0]["seats_after"], 3);
  EXPECT_EQ(healed[0]["spares"], 0);
  EXPECT_EQ(healed[0]["lost_steps"], 0);
  EXPECT_EQ(healed[0]["resumed_from"], "ram");
  EXPECT_EQ(healed[1]["seats_after"], 2);
  EXPECT_EQ(healed[1]["ranks_before"], 3);
  for (const Json& each : healed) {
    double parts_ms = 0;
    for (const char* part : {"shrink_ms", "plan_ms", "load_ms", "replay_ms"}) {
      EXPECT_GT(each[part], 0) << part;
      parts_ms += each[part].get<double>();
    }
    constexpr double rounding_ms = 0.01;
    EXPECT_LE(parts_ms, each["duration_ms"].get<double>() + rounding_ms) << "one after the other";
  }
}

// The live state of rank 0 has another bit than its last update left, or that update read such a bit or had another
// rate, so the last snapshot counts.
TEST_F(RecoveryTest, AStepIsNotRedoneFromStateThatHasChangedInMemory) {
  const std::string end = reference();
  const char* const before_update = "step.begin@13:1=sleep:2000";
  const char* const after_update = "step.before_gather@13:1=sleep:2000";
  const struct {
    const char* corruption;
    const char* late;
  } cases[] = {{"step.begin@13:0=flip:weights:2:40", before_update},
               {"step.begin@13:0=flip:moment2:2:40", before_update},
               {"step.begin@13:0=flip:moment1:2:40", after_update},
               {"step.before_update@13:0=scale_rate:1.5", after_update}};
  int number = 0;
  for (const auto& each : cases) {
    SCOPED_TRACE(each.corruption);
    const std::string run = fmt::format("changed-{}", ++number);
    EXPECT_EQ(survive({.run = run,
                       .ranks = 2,
                       .overrides = {"checkpoint.ram_every_steps=7", "parallel.timeout=1s"},
                       .faults = fmt::format("{},{}", each.corruption, each.late)}),
              0);
    EXPECT_EQ(digest(run), end);
    std::vector<int> from_steps;
    for (const Json& one : events(run, "recovery")) from_steps.push_back(one["resumed_from_step"].get<int>());
    ASSERT_FALSE(from_steps.empty());
    EXPECT_EQ(from_steps.front(), 7);
  }
}

// A rank that is late for longer than the others wait takes nothing with it, whatever it was about to do: the
// step is redone, although the last snapshot is old.
TEST_F(RecoveryTest, WhereNobodyIsLostTheStepIsRedone) {
  const std::string end = reference();
  const std::vector<std::string> seldom = {"checkpoint.ram_every_steps=7", "parallel.timeout=1s"};
  const struct {
    const char* what;
    int ranks;
    std::vector<std::string> layout;
    const char* faults;
    int from_step;
  } cases[] = {
      {"before the step", 2, {}, "step.begin@13:1=sleep:2000", 12},
      {"before the vote", 2, {}, "step.before_vote@13:1=sleep:2000", 12},
      {"the leader", 3, {}, "step.before_reduce@26:0=sleep:2000", 12},
      {"before the update", 2, {}, "step.after_vote@13:1=sleep:2000", 13},
      {"before the parameters go", 3, {}, "step.before_gather@13:1=sleep:2000", 13},
      {"behind a snapshot", 2, {}, "step.begin@15:1=sleep:2000", 14},
      {"in a pipeline", 4, {"parallel.pipeline=2"}, "step.before_backward@26:2=sleep:2000", 12},
      {"with a spare", 3, {"elastic.spares=1"}, "step.before_vote@13:1=sleep:2000", 12},
  };
  int number = 0;
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    const std::string run = fmt::format("late-{}", ++number);
    std::vector<std::string> overrides = seldom;
    overrides.insert(overrides.end(), each.layout.begin(), each.layout.end());
    EXPECT_EQ(survive({.run = run, .ranks = each.ranks, .overrides = overrides, .faults = each.faults}), 0);
    EXPECT_EQ(digest(run), end);
    const std::vector<Json> healed = events(run, "recovery");
    // On a busy machine another rank may be late, too; that costs as little.
    EXPECT_THAT(healed.size(), AllOf(Ge(1U), Le(2U)));
    std::set<int> from_steps;
    for (const Json& one : healed) {
      EXPECT_EQ(one["level"], 1);
      EXPECT_EQ(one["ranks_after"], one["ranks_before"]);
      EXPECT_EQ(one["seats_after"], one["seats_before"]);
      EXPECT_EQ(one["lost_steps"], 0) << one;
      EXPECT_EQ(one["resumed_from"], "ram");
      from_steps.insert(one["resumed_from_step"].get<int>());
    }
    EXPECT_THAT(from_steps, Contains(each.from_step));
    std::set<int> steps;
    for (const Json& event : events(run, "step")) steps.insert(event["step"].get<int>());
    EXPECT_EQ(steps.size(), 20U);
  }
}

TEST_F(RecoveryTest, ADamagedSnapshotIsPassedOver) {
  const std::string end = reference();
  EXPECT_EQ(train({.run = "damaged", .ranks = 2, .stop_after_steps = 5}).code, ExitCode::saved);
  EXPECT_EQ(survive({.run = "damaged",
                     .ranks = 2,
                     .overrides = {"checkpoint.ram_every_steps=1"},
                     .faults = "step.before_vote@4:1=kill"},
                    {.damages_snapshots = true}),
            1);
  const std::vector<Json> healed = events("damaged", "recovery");
  ASSERT_EQ(healed.size(), 1U);
  EXPECT_EQ(healed[0]["resumed_from"], "disk");
  EXPECT_EQ(healed[0]["resumed_from_step"], 5);
  EXPECT_EQ(healed[0]["lost_steps"], 3);
  EXPECT_EQ(digest("damaged"), end);
}

// The newest checkpoint, of step 10, is damaged, so the run goes on from step 5; what is in RAM after that is
// older than the damaged one, and counts.
TEST_F(RecoveryTest, ASnapshotCountsThatIsOlderThanADamagedCheckpoint) {
  const std::string end = reference();
  const std::string run = "beneath";
  EXPECT_EQ(
      train({.run = run, .ranks = 2, .stop_after_steps = 10, .overrides = {"checkpoint.every_steps=5"}}).code,
      ExitCode::saved);
  const std::string shard = run_directory(run) + "/checkpoints/step-00000010/shard-00000.hfs";
  std::string bytes = posix_env().read_text(shard).value();
  bytes[5000] ^= 4;
  ASSERT_TRUE(posix_env().replace_text(shard, bytes).ok());
  EXPECT_EQ(survive({.run = run,
                     .ranks = 2,
                     .overrides = {"checkpoint.ram_every_steps=1"},
                     .faults = "step.before_vote@4:1=kill"}),
            1);
  const std::vector<Json> healed = events(run, "recovery");
  ASSERT_EQ(healed.size(), 1U);
  EXPECT_EQ(healed[0]["resumed_from"], "ram");
  EXPECT_GE(healed[0]["resumed_from_step"], 6);
  EXPECT_EQ(digest(run), end);
}

// The one checkpoint of a run is damaged; what the ranks had in RAM when they died is whole.
TEST_F(RecoveryTest, SnapshotsCountWhereNoCheckpointIsWhole) {
  const std::string end = reference(), run = "alone";
  EXPECT_EQ(train({.run = run, .ranks = 2, .stop_after_steps = 5}).code, ExitCode::saved);
  const std::vector<std::string> saves = {"checkpoint.ram_every_steps=1", "parallel.pipeline=2"};
  const std::vector<std::optional<RunEnd>> died =
      train_all({.run = run, .ranks = 2, .overrides = saves, .faults = "step.begin@9:1=kill"});
  EXPECT_TRUE(died[0].has_value() && died[0]->code == ExitCode::communication);
  const std::string shard = run_directory(run) + "/checkpoints/step-00000005/shard-00000.hfs";
  std::string bytes = posix_env().read_text(shard).value();
  bytes[5000] ^= 4;
  ASSERT_TRUE(posix_env().replace_text(shard, bytes).ok());
  EXPECT_EQ(survive({.run = run, .ranks = 2, .overrides = saves}), 0);
  const std::vector<Json> starts = events(run, "start");
  ASSERT_EQ(starts.size(), 3U);
  EXPECT_EQ(starts[2]["resumed_from"], "ram");
  EXPECT_GE(starts[2]["resumed_from_step"], 6);
  EXPECT_EQ(digest(run), end);
}

// A rank dies while the disk is full: what waits then is what waits for the next epoch, too.
TEST_F(RecoveryTest, WhatWaitsForRoomOnTheDiskOutlivesARecovery) {
  const std::string end = reference();
  FaultyEnv machine(posix_env());
  for (std::uint64_t at = 5; at <= 14; ++at) {  // from step 4 to step 10, with what is told of the death
    for (const char* file : {"events.jsonl", "ledger-00000"})
      machine.inject(
          {.operation = Operation::append_line, .path_contains = file, .at = at, .reason = ENOSPC});
  }
  testing::internal::CaptureStderr();
  EXPECT_EQ(survive({.run = "waiting",
                     .ranks = 2,
                     .overrides = {"checkpoint.ram_every_steps=1", "data.ledger=true"},
                     .faults = "step.before_vote@8:1=kill"},
                    {.machine = &machine}),
            1);
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(machine.failure_count(), 20U);
  EXPECT_EQ(digest("waiting"), end);
  std::vector<int> steps, in_ledger, expected;
  for (const Json& event : events("waiting", "step")) steps.push_back(event["step"].get<int>());
  std::istringstream lines(posix_env().read_text(RunPaths{run_directory("waiting")}.ledger(0)).value());
  for (std::string line; std::getline(lines, line);) in_ledger.push_back(Json::parse(line)["step"]);
  for (int step = 1; step <= 20; ++step) expected.push_back(step);
  EXPECT_EQ(steps, expected) << reported;
  EXPECT_EQ(in_ledger, expected) << reported;
  EXPECT_EQ(events("waiting", "fault").size(), 1U);
  EXPECT_EQ(events("waiting", "recovery").size(), 1U);
  EXPECT_THAT(reported, HasSubstr("events.jsonl is written again, with 10 lines that waited\n"));
}

// It dies as others are killed, so that the run goes on.
TEST_F(RecoveryTest, ARankWhoseSystemFailsItLeavesTheOthersInPeace) {
  const std::string end = reference();
  EXPECT_EQ(survive({.run = "refused", .ranks = 3, .overrides = {"checkpoint.ram_every_steps=1"}},
                    {.before_step =
                         [](int rank, int steps_begun) {
                           const auto refused = std::errc::resource_unavailable_try_again;
                           if (rank == 1 && steps_begun == 5)
                             throw std::system_error(std::make_error_code(refused));
                         }}),
            1);
  EXPECT_EQ(events("refused", "recovery").size(), 1U);
  EXPECT_EQ(digest("refused"), end);
}

// Ends together, says why, and is resumed by a start with enough ranks.
TEST_F(RecoveryTest, EndsWhereTooFewAreLeft) {
  const std::string end = reference();
  const Launch few{.run = "few",
                   .ranks = 3,
                   .overrides = {"checkpoint.ram_every_steps=1", "elastic.min_data_parallel=3"},
                   .faults = "step.before_vote@8:0=kill"};
  const std::vector<std::optional<RunEnd>> ends = train_all(few);
  EXPECT_FALSE(ends[0].has_value());
  for (std::size_t rank : {1U, 2U}) {
    ASSERT_TRUE(ends[rank].has_value());
    EXPECT_EQ(ends[rank]->code, ExitCode::communication);
    EXPECT_THAT(ends[rank]->message, HasSubstr("2 ranks are left, which are not enough for 3 copies"));
  }
  const RunStatus status = read_status(posix_env(), {run_directory("few")});
  EXPECT_EQ(status.state, "failed");
  EXPECT_THAT(status.reason, HasSubstr("elastic.min_data_parallel"));
  EXPECT_EQ(train({.run = "few", .ranks = 2, .overrides = {"checkpoint.ram_every_steps=1"}}).code,
            ExitCode::done);
  EXPECT_EQ(digest("few"), end);
}

// A spare computes nothing and ends as the run does.
TEST_F(RecoveryTest, ASpareWaitsForTheEnd) {
  const std::string end = reference();
  EXPECT_EQ(survive({.run = "spare", .ranks = 3, .overrides = {"elastic.spares=1"}}), 0);
  EXPECT_EQ(digest("spare"), end);
  const std::vector<std::optional<RunEnd>> failed =
      train_all({.run = "wild",
                 .ranks = 3,
                 .overrides = {"elastic.spares=1", "optimizer.learning_rate=100", "optimizer.gradient_clip=0",
                               "optimizer.schedule=constant"}});
  for (const std::optional<RunEnd>& each : failed) {
    ASSERT_TRUE(each.has_value());
    EXPECT_EQ(each->code, failed[0]->code);
    EXPECT_EQ(each->message, failed[0]->message);
  }
}

}  // namespace
}  // namespace holdfast::test
