// Checks a step between its vote and its update: the numbers of the step, and the hardware that gave them. Where a check
// fails the step is made again while it helps, and what follows is decided by the policy (verdict_policy.h). All ranks
// call it together and come to the same result, because it depends on agreed numbers and gathered records alone.
//
// A new check of hardware is a unit like those included here: what a rank brings to the vote (CheckVotes), what it tells
// the others where the vote fails (CheckRecord), whose fault that is (attribute(), pure), and a line in check_step().
#pragma once

#include <memory>

#include "runtime/core/result.h"
#include "runtime/integrity/lane_check.h"
#include "runtime/integrity/op_checks.h"
#include "runtime/integrity/parameter_check.h"
#include "runtime/integrity/product_check.h"

namespace holdfast::integrity {

// HardwareChecks holds what a rank finds wrong numbers of its hardware with.
struct HardwareChecks {
  LaneDigests lanes;                     // two ranks compute the same lane
  ParameterDigests parameters;           // all ranks hold the same parameters
  ProductTest products = {};             // a product has the result that is known
  std::unique_ptr<StepChecks> ops = {};  // all results of a suspicious step; null until they are wanted

  // Returns `ops`. Its memory is allocated by the first call that finds some; null: there is none.
  StepChecks* ops_on(Device& device) {
    if (ops == nullptr) {
      if (Result<std::unique_ptr<StepChecks>> made = StepChecks::make(device); made.ok())
        ops = std::move(made).value();
    }
    return ops.get();
  }
};

// Checks the first attempt. Errors: those of StepAccess::attempt_again().
Result<CheckedStep> check_step(const StepAccess& step, const Attempt& first);

}  // namespace holdfast::integrity
