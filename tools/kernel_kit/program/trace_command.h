// `holdfast kernel trace`: calls of a run's steps, with what their arrays held, in a folder.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

Result<int> run_kernel_trace(Env& env, const std::vector<std::string>& words);

}  // namespace holdfast::cli
