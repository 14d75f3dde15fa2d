// Whether checkpoints get to the disk in the fast way here, found out before the first step.
#pragma once

#include <string>

#include "runtime/config/config.h"
#include "runtime/os/env.h"

namespace holdfast::inline save {

// Tries checkpoint.io on this host: ExitCode::config where a backend was demanded that the kernel forbids,
// else what is lost if "auto" was not given io_uring, or empty.
Result<std::string> check_checkpoint_io(Env& env, const CheckpointConfig& config);

// Tries a file in `directory`, which must be there and writable, and removes it: what is lost if its file
// system does no direct I/O, or empty.
Result<std::string> check_direct_io(Env& env, const std::string& directory);

}  // namespace holdfast::inline save
