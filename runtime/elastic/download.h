// Downloads a checkpoint. A start that finds neither a checkpoint on the disk nor a snapshot in RAM lets
// checkpoint.download_command fetch the newest checkpoint from elsewhere. The command fills an empty
// directory that nothing mistakes for a checkpoint (checkpoint/incoming.h). The result is compared with the
// run as a resume does, verified to the last byte, and then made visible; a command that is killed meanwhile
// leaves nothing that counts. Where run.directory is local to each host, it comes whole to the host of rank 0, also in
// the place of a part of it, and the hosts then go on from what they have together: each copies what it needs
// (part_exchange.h). A run that a verdict takes back, and that has no state here to go back to, lets it fetch
// an older one: HOLDFAST_BEFORE_STEP says which.
#pragma once

#include <cstdint>

#include "runtime/config/config.h"
#include "runtime/data/loader.h"
#include "runtime/elastic/source.h"

namespace holdfast::elastic {

// Returns whether a start from `start` looks for a checkpoint elsewhere. A run that went back to its start does not:
// nothing that it may go on from was ever published.
bool wants_download(const Config& config, const StartPoint& start);

// Collective. Rank 0, which holds the lock of the run directory, runs the command on a thread of its own; all
// ranks vote until it has ended, so that no rank seems to hang, and a death is noticed. Returns the start
// point that follows: `start` itself if there is nothing elsewhere. The claim is checked on rank 0 before the checkpoint
// becomes visible, because the command may have taken hours.
//
// Errors: communication if the command fails or takes too long, because another start may succeed; checkpoint
// if the result is damaged or of another run, or if run.resume = "must" finds nothing.
Result<StartPoint> join_download(SourceFinder& source, const DataSet& data, const StartPoint& start);

// Collective. Brings a checkpoint of a step before `before_step` into run.directory in the same way, beside training,
// and returns whether there is one now. What fails is said, and is no error: the caller goes on without it. Errors: those
// of the communicator.
Result<bool> join_earlier_download(const SourceFinder& source, const DataSet& data,
                                   std::uint64_t before_step);

}  // namespace holdfast::elastic
