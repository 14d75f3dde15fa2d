// real_path: a path without links that does not depend on the current directory.
#pragma once

#include <string>

namespace holdfast::inline os {

// Returns the absolute path, without symbolic links, . and ..; empty when there is no such file or directory.
std::string real_path(const std::string& path);

}  // namespace holdfast::inline os
