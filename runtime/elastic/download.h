// A start that finds neither a checkpoint on the disk nor a snapshot in RAM lets checkpoint.download_command
// bring the newest checkpoint back from elsewhere. It fills an empty directory that nothing takes for a
// checkpoint (checkpoint/incoming.h). What it brings is compared with the run as a resume does, verified to
// the last byte, and then made visible; a command that is killed on the way leaves nothing that counts.
#pragma once

#include <functional>

#include "parallel/comm/collectives.h"
#include "runtime/config/config.h"
#include "runtime/data/loader.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::inline elastic {

// Returns whether a start that has found no more than this looks elsewhere.
bool wants_download(const Config& config, const StartPoint& start);

// Collective. Rank 0, which holds the run directory's lock, runs the command on a thread of its own; all
// ranks vote until it has ended, so that none takes another for one that hangs and a death is noticed.
// Returns the start point that follows: `start` itself where there is nothing elsewhere. `fence`: on rank 0
// whether the lock is still its own, before what came becomes visible; the command may have taken hours.
//
// Errors: communication where the command fails or takes too long, because another start may have more luck;
// checkpoint where what it brought is damaged or of another run, or where run.resume = "must" finds nothing.
Result<StartPoint> join_download(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                 const DataSet& data, const StartPoint& start,
                                 const std::function<Result<void>()>& fence);

}  // namespace holdfast::inline elastic
