// The check of a step's numbers: a step whose numbers are suspicious (verdict.h) is computed again, and what its attempts
// have in common says what follows (verdict_policy.h). Bits that differ are attributed to a rank. Numbers that attempts
// have alike come from data or numerics, and it is said where they arise:
//   - the microbatch with the worst loss;
//   - of numbers that are not finite the first op with such a result, of all ranks. The attempts after the first one
//     look at the results of all ops, so no further attempt is made for it;
//   - of a spike the tensor whose gradient has the largest share of the squared norm. Results of ops say little here:
//     what is large for one op is usual for another one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/integrity/check_record.h"
#include "runtime/integrity/op_checks.h"

namespace holdfast::integrity {

// MicrobatchLoss is the loss of one microbatch: the sum over its targets, as the device made it.
struct MicrobatchLoss {
  int lane = -1, microbatch = -1;
  bool is_finite = true;
  double loss = 0.0;  // of a finite one

  static void visit_fields(auto& self, auto&& visit) {
    visit("lane", self.lane);
    visit("microbatch", self.microbatch);
    visit("is_finite", self.is_finite);
    visit("loss", self.loss);
  }
};

// ComputedNumbers is what one rank knows about a suspicious step.
struct ComputedNumbers {
  // True where its bits are not the same in all attempts: those of its microbatches' losses, and of its sums of
  // gradients, which the gradients of many ranks go into.
  bool losses_differ = false, gradients_differ = false;
  bool restored_parameters = false;          // Attempt::restored_parameters, of any attempt
  std::optional<MicrobatchLoss> worst = {};  // of its microbatches; only where there is the head
  // First op of the last attempt that was not finite; none also where its ops were not looked at, or there was no memory for it.
  std::optional<CheckedOp> first_nonfinite = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("losses_differ", self.losses_differ);
    visit("gradients_differ", self.gradients_differ);
    visit("restored_parameters", self.restored_parameters);
    visit("worst", self.worst);
    visit("first_nonfinite", self.first_nonfinite);
  }
};
using NumbersRecords = CheckRecords<ComputedNumbers>;

// NumbersSuspect says which rank gave attempts other bits, if it was one alone.
struct NumbersSuspect {
  int differing_ranks = 0;
  bool by_parameters = false;    // some rank computed with other parameters than their owners'
  std::optional<int> rank = {};  // of the communicator
};

// Attributes differing bits to the rank that computed with other parameters than the owners', else to the one whose
// losses differ. Of a copy of the model on several ranks only the last stage has losses, and any of them may have
// computed what made them differ. Pure.
NumbersSuspect attribute(const NumbersRecords& records, bool copies_have_one_rank);

// Checks the numbers of an attempt, and makes the step again while they are suspicious. All ranks call it together, before
// the update. Errors: those of StepAccess::attempt_again().
Result<CheckedStep> check_numbers(const StepAccess& step, const Attempt& first);

}  // namespace holdfast::integrity
