// Reads the config that is stored with a checkpoint.
#pragma once

#include "checkpoint/store.h"
#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline interop {

// Returns the config of the run that wrote the checkpoint, or of the model that was imported; fails with ExitCode::checkpoint where it cannot be
// used.
Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint);

}  // namespace holdfast::inline interop
