// Plans a recovery: decides what the ranks that are left do next, from what each of them knows. Pure: equal
// data gives equal plans, so all ranks decide alike without another message, and a simulator runs the same
// decisions. There are two steps, because the state is looked for under the lock of the run directory, and
// the rank assignment decides which rank takes that:
//
//   plan_recovery(inventories of all ranks)    end, start again, admit joiners, or go on with an assignment
//   plan_snapshot(snapshots of all ranks)      the newest step that is whole in RAM, or none
//   check_kept_state(what was found)           whether a new start may find a newer one
//
// The executors are Session::recover() and admit() (session.cc) and
// SourceFinder (source.h): they gather, call the plan, and act.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/core/result.h"
#include "runtime/elastic/inventory.h"
#include "runtime/elastic/resume.h"

namespace holdfast::elastic {

enum class RecoveryAction {
  end,  // the step failed too often; no rank was lost, so the writer records it
  ends_start,  // too few are left, or another start goes on; the writer may be lost, so another rank takes over first
  start_again,     // the start was not in the event log yet
  admit_joiners,   // some rank has not joined yet
  use_assignment,  // the run goes on with it
};

struct RecoveryPlan {
  RecoveryAction action = RecoveryAction::end;
  RecoveryInventory known = {};                   // merged knowledge of all ranks, with retries counted
  std::optional<RankAssignment> assignment = {};  // for use_assignment
  std::optional<Error> error = {};                // for the actions that end the run
};

// RecoveryLimits say what is not done in place.
struct RecoveryLimits {
  // How often a step is begun again although no rank was lost. A fault that keeps recurring does not go away by another try.
  int retries_max = 3;
  bool without_lost_ranks = true;  // elastic.in_place; false: the loss of a rank ends the start
};

// Plans what the ranks do next. `inventories`: by rank. `request`: only used once all ranks have joined.
RecoveryPlan plan_recovery(std::span<const RecoveryInventory> inventories, const AssignmentRequest& request,
                           const RecoveryLimits& limits = {});

// Returns whether the ranks do without NCCL from here on: it connected them and failed again, so often that the run
// would do little but recover. It is tried again by the next start.
inline constexpr int nccl_faults_max = 3;
bool gives_up_nccl(const RecoveryInventory& known);

// Merges the inventories of all ranks into one that holds for all.
RecoveryInventory merge_inventories(std::span<const RecoveryInventory> inventories);

// Returns the newest snapshot that is whole, newer than the checkpoint of `start`, of a future that counts,
// and not skipped. `snapshots`: by rank, those that are sealed on its host; the live state is sealed as a
// snapshot (epoch_memory.h), and replicas count as the snapshots that they are copies of. Snapshots at step
// `steps` or later do not count, because a run that is over is saved on the disk; a run whose `steps` was
// lowered goes on from the disk, too.
std::optional<SnapshotStep> plan_snapshot(std::span<const std::vector<SnapshotIdentity>> snapshots,
                                          const StartPoint& start, std::uint64_t steps);

// Returns an error with ExitCode::communication where the ranks that are left would go on from an older state than was
// whole in RAM before, and `lost_hosts`, of which no rank is left, may still have their parts of it: what is in shared
// memory outlives the processes, and a new start on all hosts that answer finds it.
Result<void> check_kept_state(const RecoveryInventory& known, const StartPoint& start,
                              std::span<const std::string> lost_hosts);

enum class StateSource {
  ram,      // a snapshot or replica
  disk,     // a checkpoint
  start,    // nothing yet: the state is made afresh
  nothing,  // there are checkpoints, and none can be used
};
StateSource source_of(const StartPoint& start);
const char* name_of(StateSource source);  // as events have it

}  // namespace holdfast::elastic
