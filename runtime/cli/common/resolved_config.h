// Resolved config: the config of a run as its first start resolves it, for commands that look ahead.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

// Calls resolve_config(); the data is opened only where the vocabulary follows from it.
Result<void> resolve_with_data(Env& env, Config& config);

}  // namespace holdfast::cli
