// Variables of this process's own environment, for a library that is told in no other way and looks when it
// starts. Threads: call it before other threads read the environment, and before that library starts.
#pragma once

#include <string>

namespace holdfast::inline os {

// One that is set already stays: whoever started the process knows better.
void set_variable_if_unset(const std::string& name, const std::string& value);

}  // namespace holdfast::inline os
