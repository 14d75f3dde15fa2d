#include "runtime/os/posix_variables.h"

#include <stdlib.h>

namespace holdfast::os {

void set_variable_if_unset(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace holdfast::os
