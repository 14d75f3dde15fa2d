// What a path is called without links, and wherever it is looked up from.
#pragma once

#include <string>

namespace holdfast::inline os {

// Absolute, without symbolic links, . and ..; empty when there is no such file or directory.
std::string real_path(const std::string& path);

}  // namespace holdfast::inline os
