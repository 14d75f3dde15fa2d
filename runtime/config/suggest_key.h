// Suggests the key that a user probably meant by an unknown one.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::config {

// Returns the key with the nearest name in its section, else our key for the name that another program uses,
// else one of the same name in another section, else the nearest of all. Empty when nothing is near.
std::string suggest_key(std::string_view key);

}  // namespace holdfast::config
