// HardwareChecks holds what a rank finds wrong numbers of its hardware with.
#pragma once

#include <memory>
#include <utility>

#include "runtime/train/lane_digests.h"
#include "runtime/train/parameter_digests.h"
#include "runtime/train/product_test.h"
#include "runtime/train/step_checks.h"

namespace holdfast::inline train {

struct HardwareChecks {
  LaneDigests lanes;                     // two ranks compute the same lane
  ParameterDigests parameters;           // all ranks hold the same parameters
  ProductTest products = {};             // a product has the result that is known
  std::unique_ptr<StepChecks> ops = {};  // all results of a step in doubt; null until they are wanted

  // Returns `ops`. Its memory is allocated by the first call that finds some; null: there is none.
  StepChecks* ops_on(Device& device) {
    if (ops == nullptr) {
      if (Result<std::unique_ptr<StepChecks>> made = StepChecks::make(device); made.ok())
        ops = std::move(made).value();
    }
    return ops.get();
  }
};

}  // namespace holdfast::inline train
