// Shows a worker to the checks of hardware: the state that it holds, what its last update found in it, and whether that
// update was the one that its step has.
#pragma once

#include <cstdint>

#include "runtime/core/digest.h"
#include "runtime/integrity/step_access.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// Returns the learning rate of the update that makes step `step`, as the schedule and the roll-backs before it say.
double learning_rate_of(const Worker& worker, std::uint64_t step);

// Returns what the checks see of the step in hand, without StepAccess::attempt_again, which run_step() adds. It is valid
// until the next step begins.
StepAccess access_to_step(Worker& worker);

// Returns whether the last update of this rank found corruption of its state, or was itself not the one that its step
// has. The device has run what was launched.
bool finds_corruption(Worker& worker);

// Returns what this rank adds to CheckVotes::run_state.
Digest run_state_term(const Worker& worker);

}  // namespace holdfast::train
