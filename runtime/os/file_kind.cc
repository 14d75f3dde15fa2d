#include "runtime/os/file_kind.h"

#include <sys/stat.h>

namespace holdfast::os {

bool is_stream(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace holdfast::os
