// Device option: reads --device of a command that computes with a trained model.
#pragma once

#include <string>

#include "runtime/cli/common/arguments.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

// Returns "cpu" or "cuda", and prints on stderr what auto was resolved to where there may be a GPU.
// ExitCode::config for any other word.
Result<std::string> device_option(const Arguments& arguments, Env& env);

}  // namespace holdfast::cli
