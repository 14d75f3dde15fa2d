// Removes the run directory of a start that was refused, so that it leaves nothing.
#pragma once

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

// Returns whether another start of the same command would be refused, too.
bool is_refusal(ExitCode code);

// Removes the directory, which the caller has made and has the claim of, if it holds nothing but what a start
// makes before its first step; returns whether it did.
bool remove_unused_directory(Env& env, const RunPaths& paths);

}  // namespace holdfast::run
