// Checks before the first step whether checkpoints can be written to the disk in the fast way.
#pragma once

#include <string>

#include "runtime/config/config.h"
#include "runtime/os/env.h"

namespace holdfast::save {

// Tries checkpoint.io on this host. Fails with ExitCode::config where the config demands a backend that the
// kernel forbids. Returns what is lost if "auto" was not given io_uring, or an empty string.
Result<std::string> check_checkpoint_io(Env& env, const CheckpointConfig& config);

// Tries a file in `directory`, which must exist and be writable, and removes it. Returns what is lost if the
// file system does no direct I/O, or an empty string.
Result<std::string> check_direct_io(Env& env, const std::string& directory);

}  // namespace holdfast::save
