// run_chaos() makes one run with the faults of a plan, in the way that users do: `holdfast launch`. The
// executor waits for the moments of the plan, injects the faults, and checks the results.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "tools/chaos/chaos_launch.h"
#include "tools/chaos/chaos_plan.h"
#include "tools/chaos/chaos_record.h"

namespace holdfast::chaos {

// Runs until the run or its time ends; no process of it is left then. With `keep`, or when it went wrong, its
// files are in the directory, also those of a small disk. Error: it could not be started, or a command of the
// user's for hosts failed.
Result<ChaosRun> run_chaos(Env& env, const ChaosSetup& setup, const ChaosPlan& plan,
                           const std::string& directory, bool keep);

// Returns what `holdfast digest` prints for the newest whole state.
Result<std::string> digest_of_run(Env& env, const std::string& directory);

}  // namespace holdfast::chaos
