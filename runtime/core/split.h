// Splits the lists in options, environment variables and files that others write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace holdfast::core {

// Returns the parts of a list that are not empty, in its order.
std::vector<std::string> split_list(std::string_view list, char separator = ',');

}  // namespace holdfast::core
