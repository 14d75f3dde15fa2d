#include <cstdlib>

#include "runtime/core/check.h"
#include "runtime/core/processes.h"

namespace holdfast {

Processes& posix_processes() {
  HF_CHECK(false, "not there yet");
  std::abort();
}

}  // namespace holdfast
