// home_of_user: the directory where programs look for settings of the user. Nobody else may be able to put a
// file there: settings of Open MPI name libraries to load.
#pragma once

#include <string>

namespace holdfast::inline os {

// Returns the home directory that the user database names for this user; empty where there is none, or where
// it belongs to somebody else.
std::string home_of_user();

}  // namespace holdfast::inline os
