// bench step: where the time of a training step goes, op by op, each compared with its own limit.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/json.h"
#include "runtime/os/env.h"

namespace holdfast::inline bench {

struct StepCaseOptions {
  std::string config_path = {};  // as of load_bench_run
  std::vector<Override> overrides = {};
  std::int64_t warmup_steps = 3;
  std::int64_t steps = 10;
  std::int64_t limit_ms = 60;  // of each measurement of a limit
};

// Prints the budget on stdout and returns it.
Result<Json> run_step_case(Env& env, const StepCaseOptions& options);

}  // namespace holdfast::inline bench
