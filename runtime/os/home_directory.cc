#include "runtime/os/home_directory.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

namespace holdfast::inline os {

std::string home_of_user() {
  constexpr std::size_t entry_bytes = 1 << 16;
  std::vector<char> buffer(entry_bytes);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return "";
  std::string home = found->pw_dir;
  struct stat info {};
  const bool is_own = home.starts_with('/') && stat(home.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
                      info.st_uid == geteuid();
  return is_own ? home : std::string();
}

}  // namespace holdfast::inline os
