// Paths that the system knows: the running program, whose libraries are beside it, the home of its user, the working
// directory, and a path without links.
#pragma once

#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::os {

std::string program_path();       // absolute
std::string program_directory();  // without a slash at the end

// Returns the home directory that the user database names for this user, where programs look for settings;
// empty where there is none, or where it belongs to somebody else. Nobody else may be able to put a file
// there: settings of Open MPI name libraries to load.
std::string home_of_user();

// Returns the directory that paths of this process are relative to; empty when it has been removed.
std::string working_directory();
// Makes another directory the working directory. ExitCode::config with Reach::host when it cannot be entered.
Result<void> enter_directory(const std::string& path);

// Returns the absolute path, without symbolic links, . and .., which does not depend on the current
// directory; empty when there is no such file or directory.
std::string real_path(const std::string& path);

// Returns whether a path is below /dev or /proc, where the names are those of streams and devices, which are
// read as they are. Only who started the program may name one: opening a device can have effects. Pure.
bool is_stream_path(std::string_view path);

// make_durable_directories: directories whose own names outlive a power cut.
//
// Threads: any. Errors: those of Env::make_directories and Env::sync_directory.

// Makes `path` and its missing parents, and syncs every directory that has got a new name. A path that exists
// already may have been made by a process that died before its sync, or by `mkdir`: its parent is synced as
// well. It is no error when this process may not open that parent.
Result<void> make_durable_directories(Env& env, const std::string& path);

}  // namespace holdfast::os
