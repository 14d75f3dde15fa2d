// The prices of this machine's CPU: a few layers of the model with its embedding and head run a microbatch of
// the run, on as many threads as a rank has, beside as many ranks as this machine computes for at once.
#pragma once

#include <memory>

#include "runtime/config/config.h"
#include "runtime/os/env.h"
#include "runtime/plan/op_prices.h"

namespace holdfast::inline plan {

// `config` is resolved and computes on the CPU; its data is not looked at. Takes a second or two. A model of
// which two layers are too large for that, or for the memory, gets the peaks of this machine instead
// (PeakPrices); the description says which it was.
Result<std::unique_ptr<OpPrices>> price_ops_here(Env& env, const Config& config, int ranks);

}  // namespace holdfast::inline plan
