// bench op: every implementation of one op on the shapes that models call it with, each compared with the
// limits of the machine.
#pragma once

#include <optional>
#include <string>

#include "runtime/bench/op_samples.h"
#include "runtime/core/json.h"
#include "runtime/core/tensor.h"
#include "runtime/measure/measured_device.h"
#include "runtime/os/env.h"

namespace holdfast::inline bench {

struct OpCaseOptions {
  std::string name;                 // of the op, or "all"
  std::string implementation = {};  // empty = all that this processor runs
  DType dtype = DType::fp32;
  MeasuredDeviceOptions device = {};
  std::optional<SampleSizes> sizes = {};  // empty = those of the device
  std::string shape = {};                 // only samples whose shape or use contains it
  std::int64_t milliseconds = 40;         // for one implementation on one shape
};

// Prints a table for each op on stdout and returns the figures.
Result<Json> run_op_case(Env& env, const OpCaseOptions& options);

}  // namespace holdfast::inline bench
