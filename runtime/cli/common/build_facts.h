// Build facts: the version, build type and compiler of this program.
#pragma once

#include <string>

#include "runtime/os/env.h"

namespace holdfast::cli {

std::string build_version();   // "0.1.0"
std::string build_type();      // "Release"
std::string build_compiler();  // "gcc 12.2.0"
// Returns the digest of the running program's own file: equal on all ranks of a run, unless they run
// different binaries.
std::string program_digest(Env& env);

}  // namespace holdfast::cli
