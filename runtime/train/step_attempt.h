// Attempts at a step: forward and backward of this rank's lanes, their reduction, and the vote of all ranks.
// An attempt changes nothing that the step begins from, so it can be made again from live state. Then the same
// bits say that data and numerics gave these numbers, and other bits that some hardware did.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/integrity/audit_plan.h"
#include "runtime/train/ballot.h"
#include "runtime/train/step_request.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// AttemptBits are digests of what this rank computed in an attempt: the losses of its microbatches, and the
// sums of squares of the gradients that it owns, which are summed over all lanes.
struct AttemptBits {
  Digest losses = {};
  Digest gradients = {};
  bool operator==(const AttemptBits&) const = default;
};

// AuditDigests are digests of the audited lane's gradients; none where this rank did not compute that lane in
// this role.
struct AuditDigests {
  std::optional<Digest> as_owner = {}, as_auditor = {};
};

// Attempt is the outcome of an attempt, equal on all ranks except for `losses`, `digests` and
// `restored_parameters`.
struct Attempt {
  Ballot sums = {};        // over all ranks
  double loss = 0.0;       // mean over the targets that count
  double grad_norm = 0.0;  // of the mean, before clipping
  // Turns gradients of sum / tokens_per_step into those of the mean over the targets that count.
  double gradient_factor = 0.0;
  std::size_t losses = 0;  // number of entries of StageModel::loss_sums() that this rank has written
  std::optional<LaneAudit> audit = {};  // of this attempt
  AuditDigests digests = {};
  // The parameters in this rank's memory were not those of their owners before this attempt; they are now.
  bool restored_parameters = false;

  bool audit_failed() const { return sums.audit != Digest{}; }
  bool links_failed() const { return sums.links != Digest{}; }
  bool parameters_differ() const { return sums.parameters != Digest{}; }
  bool run_states_differ() const { return sums.run_state != Digest{}; }
};

// Makes the first attempt at the next step. Errors: trouble or a loader error of some rank (agreed: all ranks
// return it), communication (a peer is gone: this rank must leave).
Result<Attempt> attempt_step(Worker& worker, const StepRequest& request);

// Makes the step's lanes again from the same samples, with parameters that are gathered from their owners once
// more. `earlier`: this rank's bits of the attempts before, the oldest first; Ballot::differs_from_last and
// differs_from_first of the result compare with them. `audit_retry`: of audit_at(). Errors: as above.
Result<Attempt> attempt_again(Worker& worker, std::span<const AttemptBits> earlier, int audit_retry);

// Returns the bits of the attempt that was made last.
AttemptBits attempt_bits(Worker& worker, const Attempt& attempt);

}  // namespace holdfast::train
