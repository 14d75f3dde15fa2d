// make_durable_directories: directories whose own names outlive a power cut.
//
// Threads: any. Errors: those of Env::make_directories and Env::sync_directory.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::os {

// Makes `path` and its missing parents, and syncs every directory that has got a new name. A path that exists
// already may have been made by a process that died before its sync, or by `mkdir`: its parent is synced as
// well. It is no error when this process may not open that parent.
Result<void> make_durable_directories(Env& env, const std::string& path);

}  // namespace holdfast::os
