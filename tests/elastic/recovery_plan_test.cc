// Tests what a run does next after a death: who goes on, from which state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/elastic/recovery_plan.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

// Returns the inventories of ranks on these hosts that have joined and made steps.
std::vector<RecoveryInventory> joined_on(const std::vector<std::string>& hosts) {
  std::vector<RecoveryInventory> inventories;
  for (const std::string& host : hosts) {
    inventories.push_back({.host = host,
                           .launched_ranks = 4,
                           .joined = true,
                           .log_opened = true,
                           .step = 12,
                           .lost_some = true});
  }
  return inventories;
}

TEST(PlanRecovery, AStepIsBegunAgainThreeTimesAndNotAFourth) {
  const std::vector<RecoveryInventory> known = {
      {.host = "a", .joined = true, .log_opened = true, .step = 12, .noticed = "rank 1 is late"}};
  std::vector<RecoveryInventory> inventories = known;
  for (int time = 1; time <= 3; ++time) {
    const RecoveryPlan plan = plan_recovery(inventories, {});
    EXPECT_EQ(plan.action, RecoveryAction::use_assignment);
    EXPECT_EQ(plan.known.redone, time);
    inventories.front().redone = plan.known.redone;
    inventories.front().redone_step = plan.known.redone_step;
  }
  const RecoveryPlan fourth = plan_recovery(inventories, {});
  ASSERT_EQ(fourth.action, RecoveryAction::end);
  EXPECT_EQ(fourth.error->code, ExitCode::communication);
  EXPECT_THAT(fourth.error->message, HasSubstr("step 13 was begun again 3 times with nobody lost"));
  EXPECT_THAT(fourth.error->message, HasSubstr("rank 1 is late"));
}

TEST(PlanRecovery, AnotherStepOrALostRankIsAnotherMatter) {
  std::vector<RecoveryInventory> inventories = {
      {.joined = true, .log_opened = true, .step = 12, .lost_some = true, .redone_step = 12, .redone = 3}};
  RecoveryPlan plan = plan_recovery(inventories, {});
  EXPECT_EQ(plan.action, RecoveryAction::use_assignment);
  EXPECT_EQ(plan.known.redone, 3) << "a death is no retry";
  inventories.front().lost_some = false;
  inventories.front().step = 13;
  plan = plan_recovery(inventories, {});
  EXPECT_EQ(plan.action, RecoveryAction::use_assignment);
  EXPECT_EQ(plan.known.redone, 1);
}

TEST(PlanRecovery, NcclIsGivenUpAfterThreeFaultsOfItSoonAfterOneAnother) {
  struct Fault {
    std::uint64_t step = 0;
    bool used_nccl = true, lost_some = false;
  };
  const auto given_up = [](const std::vector<Fault>& faults) {
    RecoveryInventory known;
    for (const Fault& fault : faults) {
      RecoveryInventory mine = known;
      mine.step = fault.step;
      mine.lost_some = fault.lost_some;
      mine.used_nccl = fault.used_nccl;
      mine.joined = true;
      mine.log_opened = true;
      const RecoveryInventory newcomer = {.joined = true};
      known = plan_recovery(std::vector{newcomer, mine}, {}).known;
    }
    return gives_up_nccl(known);
  };
  EXPECT_FALSE(given_up({{5}, {6}}));
  EXPECT_TRUE(given_up({{5}, {6}, {90}}));
  EXPECT_FALSE(given_up({{5}, {6}, {107}})) << "long after the one before";
  EXPECT_FALSE(given_up({{5}, {6, false}, {7}})) << "one of them went through host memory";
  EXPECT_FALSE(given_up({{5}, {6, true, true}, {7}})) << "one of them cost a rank";
}

TEST(PlanRecovery, AllKnowTheKernelsThatHaveFailed) {
  const auto fault = [](const char* op) {
    return KernelFault{.kernel = {.op = op, .implementation = "mine", .digest = "01", .library = "mine.so"},
                       .how = KernelEnd::crash};
  };
  std::vector<RecoveryInventory> inventories = joined_on({"a", "a", "b"});
  inventories[0].kernel_faults = {fault("rotary")};
  inventories[2].kernel_fault = fault("add");
  inventories[2].kernel_faults = {fault("add"), fault("rotary")};
  const RecoveryInventory all = merge_inventories(inventories);
  EXPECT_EQ(all.kernel_fault, fault("add"));
  EXPECT_EQ(all.kernel_faults, (KernelFaults{fault("rotary"), fault("add")}));
}

TEST(PlanRecovery, WithoutALogInWhichItBeganTheRunStartsAgain) {
  std::vector<RecoveryInventory> inventories = joined_on({"a", "a"});
  inventories[1].log_opened = false;
  EXPECT_EQ(plan_recovery(inventories, {}).action, RecoveryAction::start_again);
  inventories[1].log_opened.reset();  // a spare does not know
  EXPECT_EQ(plan_recovery(inventories, {}).action, RecoveryAction::use_assignment);
  inventories[0] = inventories[1] = {};
  EXPECT_EQ(plan_recovery(inventories, {}).action, RecoveryAction::start_again) << "nobody has joined";
}

TEST(PlanRecovery, ARankThatHasNotJoinedIsAdmittedFirst) {
  std::vector<RecoveryInventory> inventories = joined_on({"a", "a"});
  inventories.push_back({.host = "a"});
  const RecoveryPlan plan = plan_recovery(inventories, {.data_max = 3});
  EXPECT_EQ(plan.action, RecoveryAction::admit_joiners);
  EXPECT_FALSE(plan.assignment.has_value());
}

struct AssignmentRow {
  std::vector<std::string> hosts;
  AssignmentRequest request;
  RecoveryAction action;
  int copies;
  std::size_t spares;
};

TEST(PlanRecovery, WhoIsLeftGetsAsManyWholeCopiesAsThereIsRoomFor) {
  const std::vector<AssignmentRow> rows = {
      {{"a", "a", "a"}, {.data_max = 4}, RecoveryAction::use_assignment, 3, 0},
      {{"a", "a", "a"}, {.data_max = 2}, RecoveryAction::use_assignment, 2, 1},
      {{"a", "a", "a"}, {.data_max = 2, .pipeline = 2}, RecoveryAction::use_assignment, 1, 1},
      {{"a", "b", "b"}, {.data_max = 2, .tensor = 2}, RecoveryAction::use_assignment, 1, 1},
      {{"a", "b"}, {.data_max = 1, .tensor = 2}, RecoveryAction::ends_start, 0, 0},
      {{"a"}, {.data_max = 4, .data_min = 2}, RecoveryAction::ends_start, 0, 0},
  };
  for (const AssignmentRow& row : rows) {
    SCOPED_TRACE(&row - rows.data());
    const RecoveryPlan plan = plan_recovery(joined_on(row.hosts), row.request);
    ASSERT_EQ(plan.action, row.action);
    if (plan.action == RecoveryAction::ends_start) {
      EXPECT_EQ(plan.error->code, ExitCode::communication);
      continue;
    }
    EXPECT_EQ(plan.assignment->shape.data, row.copies);
    EXPECT_EQ(plan.assignment->spares.size(), row.spares);
  }
}

TEST(PlanRecovery, WithoutRecoveryInPlaceALostRankEndsTheStartAndNothingElseDoes) {
  const RecoveryLimits limits{.without_lost_ranks = false};
  std::vector<RecoveryInventory> inventories = joined_on({"a", "a", "a"});
  const RecoveryPlan plan = plan_recovery(inventories, {.data_max = 4}, limits);
  ASSERT_EQ(plan.action, RecoveryAction::ends_start);
  EXPECT_EQ(plan.error->code, ExitCode::communication);
  EXPECT_THAT(plan.error->message, HasSubstr("elastic.in_place = false"));
  for (RecoveryInventory& one : inventories) one.lost_some = false;
  EXPECT_EQ(plan_recovery(inventories, {.data_max = 3}, limits).action, RecoveryAction::use_assignment)
      << "a step that is made again";
}

SnapshotIdentity part_of(std::uint64_t step, std::uint32_t rank) {
  return {.run = {}, .host = {}, .writer = 7, .generation = 0, .step = step, .rank = rank, .ranks = 2};
}

TEST(PlanSnapshot, IsTheNewestWholeOneThatCounts) {
  const std::vector<std::vector<SnapshotIdentity>> snapshots = {
      {part_of(8, 0), part_of(9, 0), part_of(10, 0)}, {part_of(8, 1), part_of(9, 1)}};
  const auto step_with = [&](const StartPoint& start, std::uint64_t steps) {
    return plan_snapshot(snapshots, start, steps).value_or(SnapshotStep{}).step;
  };
  EXPECT_EQ(step_with({}, 100), 9U) << "a part of step 10 is missing";
  EXPECT_EQ(step_with({.step = 8}, 100), 9U);
  EXPECT_EQ(step_with({.step = 9}, 100), 0U) << "the disk is as far";
  EXPECT_EQ(step_with({.passed_over = {{.writer = 7, .step = 9}}}, 100), 8U);
  EXPECT_EQ(step_with({}, 9), 8U) << "a run that is over is on the disk";
  Lineage lineage;
  lineage.generations.push_back({.number = 1, .parent = {.generation = 0, .step = 8}});
  EXPECT_EQ(step_with({.lineage = lineage}, 100), 8U) << "of a future that is discarded";
}

TEST(SourceOfState, IsRamBeforeDisk) {
  EXPECT_EQ(source_of({}), StateSource::start);
  EXPECT_EQ(source_of({.checkpoint = "c"}), StateSource::disk);
  EXPECT_EQ(source_of({.unusable = "no checkpoint is whole"}), StateSource::nothing);
  EXPECT_EQ(source_of({.snapshot = SnapshotStep{}, .unusable = "no checkpoint is whole"}), StateSource::ram);
}

TEST(CheckKeptState, AnOlderStateThanLostHostsMayHaveIsForANewStart) {
  const std::vector<std::string> lost = {"b", "c"};
  const StartPoint nothing, checkpoint = {.step = 100};
  const StartPoint snapshot = {.snapshot = SnapshotStep{.step = 162}};
  const RecoveryInventory known = merge_inventories(
      std::vector<RecoveryInventory>{{.kept_step = 162}, {.kept_step = 0}, {.kept_step = 160}});
  EXPECT_EQ(known.kept_step, 162U);
  for (const StartPoint& older : {nothing, checkpoint}) {
    const Result<void> checked = check_kept_state(known, older, lost);
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ExitCode::communication);
    EXPECT_THAT(checked.error().message, HasSubstr("that of step 162 may still be in the memory of b, c"));
    EXPECT_TRUE(check_kept_state(known, older, {}).ok()) << "what is not here is nowhere";
  }
  EXPECT_TRUE(check_kept_state(known, snapshot, lost).ok());
  EXPECT_TRUE(check_kept_state({}, nothing, lost).ok()) << "nothing was ever kept";
}

}  // namespace
}  // namespace holdfast::test
