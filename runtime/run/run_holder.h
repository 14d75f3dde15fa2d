// Tells who has a run, on any host that shares its directory.
#pragma once

#include <optional>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

// ExitCode::config with a sentence where nothing of a run is in the directory.
Result<void> expect_run_directory(Env& env, const RunPaths& paths);

// The host and process, as they wrote it, that write the run, or else the launcher that will start one. None:
// nobody. Error: config, where this user may not look; only who may write a run may open its locks.
Result<std::optional<std::string>> run_holder(Env& env, const RunPaths& paths);
// Returns whether a `holdfast launch` has the run. Error: as above.
Result<bool> has_launcher(Env& env, const RunPaths& paths);

}  // namespace holdfast::run
