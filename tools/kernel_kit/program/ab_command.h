// `holdfast kernel ab`: a run with other kernels beside the same run without them, in a process of their own.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

Result<int> run_kernel_ab(Env& env, const std::vector<std::string>& words);
// The child: makes the steps in this process, which a kernel may end.
Result<int> run_kernel_ab_here(Env& env, const std::vector<std::string>& words);

}  // namespace holdfast::cli
