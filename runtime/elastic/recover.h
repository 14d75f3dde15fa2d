// Recovery in place: what the ranks that are left of a run do between a death and the next step, while their
// processes go on. TrainRun::recover() (train_run_recovery.cc) does it in this order; this file has the search for
// the state to go on from:
//
//   Membership::recover    the ranks that are left, in a communicator of their own
//   gather                 what each of them knows of the run (inventory.h)
//   plan_recovery          what they do next, and the new rank assignment (recovery_plan.h)
//   join_recovery_point    the newest step that exists whole, in RAM or on disk
//   Worker::create, restore_snapshot or restore_checkpoint, Trainer: as at a start
//
// The ranks keep what does not change with their number: config, data, device, the rate of a large matrix
// product. A fault meanwhile begins the recovery again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "parallel/group/membership.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::elastic {

// Returns a snapshot that is not older than the newest checkpoint; else the state that a start would find on
// the disk, with every byte verified. `domains`: if run.directory is local to each host; `check`: checks this
// rank's claim. `world`: all ranks that are left, because any host may hold parts of a snapshot.
Result<StartPoint> join_recovery_point(const TrainInputs& world, const Waiter& waiter, const Config& config,
                                       const std::string& shm_run_id,
                                       const std::optional<StorageDomains>& domains = {},
                                       const ClaimCheck& check = {});
// Returns the state that is left if no snapshot newer than the newest manifest is sound: the newest
// checkpoint that verifies, or a snapshot newer than that. `asked`: only its shm_run_id and its skipped
// snapshots are used.
Result<StartPoint> join_checkpoint_of_run(const TrainInputs& inputs, const Waiter& waiter,
                                          const Config& config, const StartPoint& asked,
                                          const std::optional<StorageDomains>& domains,
                                          const ClaimCheck& check);

}  // namespace holdfast::elastic
