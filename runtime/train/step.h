// Makes one training step as a transaction: forward and backward of this rank's lanes, lane reduction, one
// vote of all ranks (step_attempt.h), the checks of its numbers (runtime/integrity/step_check.h), then the update. A step that
// is not voted for changes nothing. When it returns, updated
// parameters may still be on their way to and from other ranks (Worker::parameter_gather).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/integrity/step_access.h"
#include "runtime/run/event.h"
#include "runtime/run/requests.h"
#include "runtime/save/save_records.h"
#include "runtime/train/step_attempt.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// StepOutcome is the result of a step, equal on all ranks except for `gathers`.
struct StepOutcome {
  std::uint64_t step = 0;  // the step just made, counted from 1
  double loss = 0.0;       // mean over the tokens of the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  bool stop = false;            // some rank asked for it
  bool grow = false;            // rank 0 asked for it
  bool starts_ranks = false;    // rank 0 said so
  RestartRequest restart = {};  // as the leader's request says; at most two leaving hosts are counted
  SaveDue due = {};             // saves that are due after this step
  bool keeps_state = false;     // the update has written the RAM snapshot that is due
  bool gathers_times = false;   // rank 0 wants the times of all ranks
  std::int64_t again_ns = 0;    // time that this rank took for an audit, and to compute the step again
  SaveVotes saves = {};         // sums over all ranks
  // Outcome of starting the all-gather of the updated parameters. On an error a peer is gone and this rank
  // must leave; the step is made all the same.
  Result<void> gathers = {};
  VerdictAction action = VerdictAction::none;  // CheckedStep::action, report, leaving_ranks and rollback
  std::optional<VerdictEvent> verdict = {};
  bool ends_steps = false;  // by that verdict; nothing was changed
  std::vector<int> leaving_ranks = {};
  std::optional<Rollback> rollback = {};
};

// Makes the next step. Errors: trouble or a loader error of some rank (agreed: all ranks return it, the
// update was not made), communication (a peer is gone: this rank must leave).
Result<StepOutcome> run_step(Worker& worker, const StepRequest& request);

}  // namespace holdfast::train
