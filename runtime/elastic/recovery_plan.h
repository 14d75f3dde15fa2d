// The plan of a recovery: what the ranks that are left do next, decided from what each of them knows. Pure:
// equal data gives equal plans, so all ranks decide alike without a word more, and a simulator runs the same
// decisions. Two steps, because the state is looked for under the lock of the run directory, which the rank
// assignment gives to a rank:
//
//   plan_recovery(inventories of all ranks)    end, start again, admit joiners, or go on with an assignment
//   plan_snapshot(snapshots of all ranks)      the newest step that is whole in RAM, or none
//
// The executors are TrainRun::recover() and admit() (train_run_recovery.cc, train_run_growth.cc) and
// join_snapshot() (join.h): they gather, call the plan, and act.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/core/result.h"
#include "runtime/elastic/inventory.h"
#include "runtime/elastic/resume.h"

namespace holdfast::inline elastic {

enum class RecoveryAction {
  end,             // the step failed too often; nobody was lost, so the writer of the run records it
  too_few_ranks,   // the end, too; the writer may be among the lost, so another one takes over first
  start_again,     // the start was not in the event log yet
  admit_joiners,   // some rank has agreed on nothing yet
  use_assignment,  // goes on
};

struct RecoveryPlan {
  RecoveryAction action = RecoveryAction::end;
  RecoveryInventory known = {};                   // holds for all, with retries counted
  std::optional<RankAssignment> assignment = {};  // of use_assignment
  std::optional<Error> error = {};                // of the actions that end the run
};

// How often a step is begun again in place though nobody was lost. What comes again and again does not go
// away by beginning the step again.
struct RetryLimit {
  int retries_max = 3;
};

// `inventories`: by rank. `request`: counts once all have joined.
RecoveryPlan plan_recovery(std::span<const RecoveryInventory> inventories, const AssignmentRequest& request,
                           const RetryLimit& limit = {});

// Merges what the ranks know, one inventory of each, into what holds for all.
RecoveryInventory merge_inventories(std::span<const RecoveryInventory> inventories);

// Returns the newest snapshot that is whole, newer than the checkpoint of `start`, of a future that counts,
// and not one that was skipped. `snapshots`: by rank, those that are sealed on its host; the live state is
// sealed as one (live_state.h), and replicas count as what they are copies of. A run of `steps` steps that
// would be over is saved on the disk; one that was shortened goes on from there, too.
std::optional<SnapshotStep> plan_snapshot(std::span<const std::vector<SnapshotIdentity>> snapshots,
                                          const StartPoint& start, std::uint64_t steps);

enum class StateSource {
  ram,      // a snapshot or replica
  disk,     // a checkpoint
  start,    // nothing yet: the state is made afresh
  nothing,  // there are checkpoints, and none can be used
};
StateSource source_of(const StartPoint& start);

}  // namespace holdfast::inline elastic
