#include "runtime/core/program_directory.h"

#include <unistd.h>

#include <climits>

namespace holdfast {

std::string program_directory() {
  char path[PATH_MAX] = "";
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::size_t slash = program.rfind('/');
  return slash == std::string::npos ? "." : program.substr(0, slash);
}

}  // namespace holdfast
