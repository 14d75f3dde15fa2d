// Says where in the computation of a step suspicious numbers arise, once a second attempt with the same bits has
// said that they come from data or numerics:
//   - numbers that are not finite: at the first op with such a result, of all ranks. The attempts after the first
//     one look at the results of all ops, so no further attempt is made for it.
//   - a spike: in the tensor whose gradient has the largest share of the squared norm. Results of ops say little
//     here: what is large for one op is usual for another one, and only many microbatches of one rank would say
//     what is usual for an op.
#pragma once

#include <optional>
#include <span>

#include "runtime/core/result.h"
#include "runtime/run/event.h"
#include "runtime/train/step_attempt.h"

namespace holdfast::train {

// CheckedAttempt is an attempt of which the results of all ops were looked at.
struct CheckedAttempt {
  Attempt attempt = {};
  std::optional<CheckedOp> first_nonfinite = {};  // of this rank; none also where it has no memory for checks
};

// Makes the step's lanes again, as attempt_again() does, and looks at the result of every op of this rank, which
// changes no bit. It takes somewhat longer. Errors: those of attempt_again().
Result<CheckedAttempt> attempt_with_checks(Worker& worker, std::span<const AttemptBits> earlier,
                                           int audit_retry);

// Writes the first op of all ranks whose result is not finite into the report, with its lane, microbatch and
// samples. `found`: of this rank. All ranks call it together. Errors: communication.
Result<void> name_first_op(Worker& worker, const std::optional<CheckedOp>& found, VerdictEvent& report);

// Writes the tensor with the largest share of the squared gradient norm into the report; nothing if the norm is
// 0. The gradients in memory are those of `attempt`. All ranks call it together. Errors: communication.
Result<void> name_largest_tensor(Worker& worker, const Attempt& attempt, VerdictEvent& report);

}  // namespace holdfast::train
