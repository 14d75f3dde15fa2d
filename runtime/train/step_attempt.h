// Attempts at a step: forward and backward of this rank's lanes, their reduction, and the vote of all ranks.
// An attempt changes nothing that the step begins from, so it can be made again from live state. Then the same
// bits say that data and numerics gave these numbers, and other bits that some hardware did.
#pragma once

#include "runtime/core/result.h"
#include "runtime/integrity/step_access.h"
#include "runtime/run/requests.h"
#include "runtime/save/save_records.h"
#include "runtime/train/ballot.h"
#include "runtime/train/worker.h"

namespace holdfast::save {
class StateSaver;
class Uploads;
}  // namespace holdfast::save

namespace holdfast::train {

// StepRequest is what a rank brings to the vote of a step.
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
  bool gathers_times = false;  // rank 0 only: the times of all ranks are gathered after this step
};

// VotedStep is the outcome of the first attempt at a step.
struct VotedStep {
  Ballot sums = {};  // over all ranks
  Attempt attempt = {};
  std::int64_t audit_ns = 0;  // time that this rank took for the lane of another that it audits
};

// Makes the first attempt at the next step. Errors: trouble or a loader error of some rank (agreed: all ranks
// return it), communication (a peer is gone: this rank must leave).
Result<VotedStep> attempt_step(Worker& worker, const StepRequest& request);

// Makes the lanes of the step in hand again (StepAccess::attempt_again).
Result<Attempt> attempt_again(Worker& worker, std::span<const AttemptBits> earlier, int audit_retry);

}  // namespace holdfast::train
