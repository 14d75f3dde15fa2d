// Records the roll-back that a verdict has decided on, and that no rank could record before it ended
// (checkpoint/kept_rollback.h): at a start, and in a recovery, whose ranks may all be spares that were not asked.
#pragma once

#include "parallel/comm/collectives.h"
#include "runtime/config/config.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/claim.h"

namespace holdfast::elastic {

// Gathers what the hosts have kept, and has it in the lineage of each run directory before any state is chosen.
// Collective. `claim`: of the run directory, or of that of this host, on the rank that has it. Where the disk
// does not take the record this start fails as on any storage, and what was kept stays.
Result<void> record_kept_rollbacks(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                   const ClaimCheck& claim);

}  // namespace holdfast::elastic
