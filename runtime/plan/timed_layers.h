// price_ops_here() times ops on this machine's CPU: a few layers of the model with its embedding and head run
// a microbatch of the run, on as many threads as a rank has, next to as many ranks as this machine runs at
// once.
#pragma once

#include <memory>

#include "runtime/config/config.h"
#include "runtime/os/env.h"
#include "runtime/plan/planned_machine.h"

namespace holdfast::plan {

// Times the ops of a config that is resolved and computes on the CPU; its data is not read. Takes a second or
// two. A model of which two layers are too large for that, or for the memory, gets the peaks of this machine
// instead (PeakPrices); the description says which it was.
Result<std::unique_ptr<OpPrices>> price_ops_here(Env& env, const Config& config, int ranks);

}  // namespace holdfast::plan
