// Finds the running program, whose libraries are beside it.
#pragma once

#include <string>

namespace holdfast::inline os {

std::string program_path();       // absolute
std::string program_directory();  // without a slash at the end

}  // namespace holdfast::inline os
