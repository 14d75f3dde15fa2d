// This header has what the programs of Holdfast share: what main() has to do, facts of the build, and a config that is resolved.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

// Runs `run` with the words of the command line and returns its exit code. Closed standard streams are
// replaced, so that no file that the process opens takes their place. Output that fmt::print cannot write is
// reported, as ExitCode::config.
int run_program(int argc, char** argv, int (*run)(const std::vector<std::string>& words));

// Returns the exit code of a command whose result is what it printed: an error when some of that is lost.
int with_output(int code);

// Build facts: the version, build type and compiler of this program.
std::string build_version();   // "0.1.0"
std::string build_type();      // "Release"
std::string build_compiler();  // "gcc 12.2.0"
// Returns which source the program was built from, as the file beside it says that the build and a package write: the commit,
// with "-dirty" where files differed from it, and the first digits of a digest of what was built; empty: there is no such file.
std::string build_source(Env& env);  // "88511e2af746, e3383fe1bf3708cb"
// Returns the digest of the running program's own file: equal on all ranks of a run, unless they run
// different binaries.
std::string program_digest(Env& env);

// Resolves the config of a run as its first start does, for commands that look ahead. The data is opened only where the vocabulary follows from it.
Result<void> resolve_with_data(Env& env, Config& config);

}  // namespace holdfast::cli
