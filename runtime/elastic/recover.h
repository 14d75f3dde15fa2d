// Recovery: what the ranks that are left of a run do between a death and the next step, in place: their
// processes go on. TrainRun (train_run.cc) goes through it in this order:
//
//   Membership::recover    the ranks that are left, in a communicator of their own
//   parallel/group/membership.h join_standing          what each of them knows of the run plan_seating who
//   computes what now                                       parallel/group/seating.h join_recovery_point the
//   newest step that exists whole, in RAM or on disk Worker::create, restore_snapshot or restore_checkpoint,
//   Trainer: as at a start
//
// What does not change with the ranks is kept: config, data, device, the rate of a large matrix product. A
// fault on the way begins it again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "parallel/group/membership.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/save/run_places.h"

namespace holdfast {

// How far a rank had come; merged: what holds for all.
struct Standing {
  int launched_ranks = 0;               // at the start; the most that anyone says
  bool joined = false;                  // the config is agreed on, the data is open, the device is made
  std::optional<bool> log_opened = {};  // and the start is in the event log; a spare does not know
  std::uint64_t step = 0;               // the furthest
  double gemm_peak = 0.0;               // of a rank with a seat, as measured at the start
  std::string memory_id = {};           // empty: not yet known to anybody
  std::string verdict = {};             // of the watchdog on any host, a line
  bool lost_some = false;               // of those that trained in the epoch before this one
  bool lost_starter = false;            // a rank, while it started new ones: no more are started
  std::uint64_t redone_step = 0;        // behind which the ranks lost each other last though nobody was lost,
  int redone = 0;                       // and how often in succession
  std::int64_t noticed_us = 0;          // when the fault was noticed first, by the wall clocks, and how; of
  bool told = false;                    // those that noticed more than that another rank gave up, if any did
  std::string noticed = {};
};
Result<Standing> join_standing(const TrainInputs& world, const Waiter& waiter, const Standing& mine);

// Counts in `standing`, a merged one, that its step is redone, unless a rank was lost. What comes again and
// again though nobody is lost does not go away by redoing the step: ExitCode::communication after the third
// time. Pure; all ranks count alike.
Result<void> count_redo(Standing& standing);

// A snapshot that is not older than the newest checkpoint; else what a start would find on the disk, with
// every byte verified. `places`: where run.directory is local to each host; `check`: of this rank's claim.
// `world`: all ranks that are left, because any host may hold parts of a snapshot.
Result<StartPoint> join_recovery_point(const TrainInputs& world, const Waiter& waiter, const Config& config,
                                       const std::string& memory_id,
                                       const std::optional<RunPlaces>& places = {},
                                       const ClaimCheck& check = {});
// What is left where no snapshot newer than the newest manifest turned out to be sound: the newest checkpoint
// that verifies, or a snapshot newer than that. `asked`: its memory_id, and the snapshots that it passed
// over.
Result<StartPoint> join_checkpoint_of_run(const TrainInputs& inputs, const Waiter& waiter,
                                          const Config& config, const StartPoint& asked,
                                          const std::optional<RunPlaces>& places, const ClaimCheck& check);

}  // namespace holdfast
