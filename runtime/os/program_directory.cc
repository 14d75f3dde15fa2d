#include "runtime/os/program_directory.h"

#include <unistd.h>

#include <climits>

namespace holdfast::inline os {

std::string program_path() {
  char path[PATH_MAX] = "";
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  return std::string(path, length > 0 ? static_cast<std::size_t>(length) : 0);
}

std::string program_directory() {
  const std::string program = program_path();
  const std::size_t slash = program.rfind('/');
  return slash == std::string::npos ? "." : program.substr(0, slash);
}

}  // namespace holdfast::inline os
