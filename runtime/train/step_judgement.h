// Judges the numbers of a step between its vote and its update: makes the step again while there is doubt,
// and says what follows and what is to blame. The policy is runtime/integrity; this is its executor. All ranks
// call it together and come to the same result, because the policy sees agreed numbers alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/integrity/verdict_policy.h"
#include "runtime/run/event.h"
#include "runtime/train/step_attempt.h"

namespace holdfast::train {

// Rollback says how far the run goes back.
struct Rollback {
  std::uint64_t trusted_step = 0;  // newest step whose state counts
  // Position in the data from which the step after it reads, where batches are left out; none: the same data are
  // read again.
  std::optional<std::uint64_t> data_cursor = {};
};

struct JudgedStep {
  Attempt attempt = {};  // the one that counts; its gradients are those in memory
  VerdictAction action = VerdictAction::commit;
  // Largest gradient norm of the update, where the verdict asks for a smaller one than the config; 0: none.
  double norm_limit = 0.0;
  std::optional<VerdictEvent> report = {};  // absent where the first attempt was fine; without time_us
  // Ranks of the communicator, ascending, that compute wrong numbers, or whose memory does not keep them, and have
  // to leave: the others make the step without them. Where it is one of a copy of the model, and it is not known
  // which, all of that copy. Only with VerdictAction::stop.
  std::vector<int> leaving_ranks = {};
  // Set where no state since some step counts. Only with VerdictAction::stop and VerdictAction::rollback.
  std::optional<Rollback> rollback = {};
};

// Judges the first attempt. Errors: those of attempt_again().
Result<JudgedStep> judge_step(Worker& worker, const Attempt& first);

}  // namespace holdfast::train
