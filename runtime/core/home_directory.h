// Where programs look for settings of the user. Nobody else may be able to put a file there: those of Open
// MPI name libraries to load.
#pragma once

#include <string>

#include "runtime/core/result.h"

namespace holdfast {

// The home directory that the user database names for this user; empty where there is none, or it belongs to
// somebody else.
std::string home_of_user();

// Makes the directory, whose parent is there, for this user alone. One that is there already has to be that:
// ExitCode::config otherwise.
Result<void> make_private_directory(const std::string& path);

}  // namespace holdfast
