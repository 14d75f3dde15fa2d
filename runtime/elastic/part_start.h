// Finds the state that a start goes on from if run.directory is local to each host: each host contributes the
// inventory of its directory (checkpoint/part_inventory.h), all get the same inventories, verify their parts
// of the newest checkpoint together, and remove the parts of checkpoints that were never whole.
#pragma once

#include <string>

#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::elastic {

// Returns the same states on all ranks, which call it together. The lineage that they agree on is in the
// directory of every host when it returns, unless OwnStates::newest is an error: then no directory was
// changed. `check`: checks this rank's claim; called before a directory is changed. Errors: those of
// merge_lineages(); ExitCode::checkpoint if there are, or were, checkpoints, and none can be put together
// from the hosts that take part; communication if another start has the run.
Result<OwnStates> join_parts(const TrainInputs& inputs, const Waiter& waiter,
                             const std::string& run_directory, const StorageDomains& domains,
                             const ClaimCheck& check);

}  // namespace holdfast::elastic
