// Finds what a start goes on from where run.directory is local to each host: each host brings the inventory
// of its directory (checkpoint/part_inventory.h), all see the same, verify what they have of the newest
// checkpoint together, and remove the parts of what was never whole.
#pragma once

#include <string>

#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/save/run_places.h"

namespace holdfast::inline elastic {

// All ranks together; equal on all. The lineage that they agree on is in every host's directory when it
// returns, unless OwnStates::newest is an error: then no directory has learned or lost anything. `check`: of
// this rank's claim; asked before a directory is changed. Errors: those of merge_lineages();
// ExitCode::checkpoint where there are, or were, checkpoints, and none can be put together from the hosts
// that are there; communication where another has the run.
Result<OwnStates> join_parts(const TrainInputs& inputs, const Waiter& waiter,
                             const std::string& run_directory, const RunPlaces& places,
                             const ClaimCheck& check);

}  // namespace holdfast::inline elastic
