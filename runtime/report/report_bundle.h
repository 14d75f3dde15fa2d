// Post-mortem bundle: a directory with what a run recorded about itself, to send to somebody who has no access to it.
// It has no weights, no data, no commands of the config (users put tokens into them) and no secret of the run.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::report {

// Writes the bundle of a run into a directory, which must not be there yet. `program`: what this program was built
// from. Returns a sentence on what is in it. ExitCode::config where there is no run, or the directory is there or cannot be
// made.
Result<std::string> write_bundle(Env& env, const RunPaths& paths, const std::string& directory,
                                 const std::string& program);

}  // namespace holdfast::report
