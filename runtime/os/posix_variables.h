// Sets variables of this process's own environment, for a library that can be configured in no other way and
// reads them when it starts. Threads: call it before other threads read the environment, and before that
// library starts.
#pragma once

#include <string>

namespace holdfast::os {

// Sets the variable unless it is set already: the value of the process's starter takes precedence.
void set_variable_if_unset(const std::string& name, const std::string& value);

}  // namespace holdfast::os
