#include "runtime/core/home_directory.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace holdfast {
namespace {

// A link counts for what it is itself.
bool is_own_directory(const std::string& path, mode_t forbidden) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & forbidden) == 0;
}

}  // namespace

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

Result<void> make_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return fail(ExitCode::config, "cannot create the directory {}: {}", path, std::strerror(errno));
  if (is_own_directory(path, S_IRWXG | S_IRWXO)) return {};
  return fail(
      ExitCode::config,
      "{} must be a directory of this user that nobody else may look into (mode 0700); remove what is "
      "there, or set HOME",
      path);
}

}  // namespace holdfast
