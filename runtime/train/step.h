// Makes one training step as a transaction: forward and backward of this rank's lanes, lane reduction, one
// vote of all ranks (step_attempt.h), a verdict on its numbers (step_judgement.h), then the update. A step that
// is not voted for changes nothing. When it returns, updated
// parameters may still be on their way to and from other ranks (Worker::parameter_gather).
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/core/result.h"
#include "runtime/run/event.h"
#include "runtime/run/save_requests.h"
#include "runtime/save/save_records.h"
#include "runtime/train/worker.h"

namespace holdfast::inline save {
class StateSaver;
class Uploads;
}  // namespace holdfast::inline save

namespace holdfast::inline train {

struct StepRequest {
  bool stop = false;  // this rank was asked to save and stop; the vote carries it to all
  bool grow = false;  // rank 0 only: the run pauses for a resize after this step, to take in new ranks
  bool starts_ranks = false;    // rank 0 only: it starts new ranks between this step and the next
  RestartRequest restart = {};  // leader only: the run ends after this step, for another start
  Result<void> trouble;         // an error on this rank since the last step; the vote carries it to all
  StateSaver* saver = nullptr;  // its copy is complete before the update; the vote carries its votes
  Uploads* uploads = nullptr;   // the vote carries its votes as well
  // Saves that are due by this rank's count. The vote carries the count of rank 0, so that clocks that differ
  // never make ranks decide differently, and whether a save was requested on any rank.
  SaveDue due = {};
};

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
  SaveVotes saves = {};         // sums over all ranks
  // Outcome of starting the all-gather of the updated parameters. On an error a peer is gone and this rank
  // must leave; the step is made all the same.
  Result<void> gathers = {};
  // What was found where the numbers were in doubt; absent where they were not.
  std::optional<VerdictEvent> verdict = {};
  bool ends_run = false;                           // by that verdict; nothing was changed
  std::optional<int> leaving_rank = {};            // JudgedStep::leaving_rank
  std::optional<std::uint64_t> trusted_step = {};  // JudgedStep::trusted_step
};

// Makes the next step. Errors: trouble or a loader error of some rank (agreed: all ranks return it, the
// update was not made), communication (a peer is gone: this rank must leave).
Result<StepOutcome> run_step(Worker& worker, const StepRequest& request);

}  // namespace holdfast::inline train
