// Recovery: what the ranks that are left of a run do between a death and the next step, in place: their
// processes go on. TrainRun (train_run.cc) goes through it in this order:
//
//   Membership::recover    the ranks that are left, in a communicator of their own
//   gather                 what each of them knows of the run (inventory.h)
//   plan_recovery          where they go on with it, and who computes what now (recovery_plan.h)
//   join_recovery_point    the newest step that exists whole, in RAM or on disk
//   Worker::create, restore_snapshot or restore_checkpoint, Trainer: as at a start
//
// The ranks keep what does not change with their number: config, data, device, the rate of a large matrix
// product. A fault on the way begins it again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "parallel/group/membership.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/save/run_places.h"

namespace holdfast::inline elastic {

// A snapshot that is not older than the newest checkpoint; else what a start would find on the disk, with
// every byte verified. `places`: where run.directory is local to each host; `check`: of this rank's claim.
// `world`: all ranks that are left, because any host may hold parts of a snapshot.
Result<StartPoint> join_recovery_point(const TrainInputs& world, const Waiter& waiter, const Config& config,
                                       const std::string& shm_run_id,
                                       const std::optional<RunPlaces>& places = {},
                                       const ClaimCheck& check = {});
// What is left where no snapshot newer than the newest manifest turned out to be sound: the newest checkpoint
// that verifies, or a snapshot newer than that. `asked`: its shm_run_id, and the snapshots that it passed
// over.
Result<StartPoint> join_checkpoint_of_run(const TrainInputs& inputs, const Waiter& waiter,
                                          const Config& config, const StartPoint& asked,
                                          const std::optional<RunPlaces>& places, const ClaimCheck& check);

}  // namespace holdfast::inline elastic
