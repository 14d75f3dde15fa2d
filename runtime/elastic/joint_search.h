// Finds the state that a start or a recovery goes on from if all ranks share run.directory: rank 0 looks, and all ranks
// verify together.
#pragma once

#include <string>

#include "runtime/elastic/resume.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::elastic {

// Returns a waiter for what waits for a rank that may read the disk: it ends by the guard where it hangs there.
inline Waiter while_one_reads(const Waiter& waiter) {
  return waiter.with_timeout(waiter.timeout_ms() + verify_timeout_ms);
}

// Returns the states of run.directory on rank 0, and nothing on the others. All ranks call it together. Errors: of
// reading the directory; Reach::host on a rank that alone cannot read, and Reach::peers on the others.
Result<OwnStates> join_search(const TrainInputs& inputs, const Waiter& waiter,
                              const std::string& run_directory);

}  // namespace holdfast::elastic
