// bench optimizer: the update of all parameters of a model as the trainer launches it, against the rate of
// memory.
#pragma once

#include <string>

#include "runtime/core/json.h"
#include "runtime/core/tensor.h"
#include "runtime/measure/measured_device.h"
#include "runtime/os/env.h"

namespace holdfast::inline bench {

struct OptimizerCaseOptions {
  std::string preset = "gpt2-124m";
  DType dtype = DType::fp32;  // bf16: the update also writes the working weights
  MeasuredDeviceOptions device = {};
  std::int64_t updates = 20;
  std::int64_t limit_ms = 400;
};

// Prints a table on stdout and returns its figures.
Result<Json> run_optimizer_case(Env& env, const OptimizerCaseOptions& options);

}  // namespace holdfast::inline bench
