#include "runtime/os/paths.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "runtime/os/errno_reason.h"

namespace holdfast::os {

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

std::string working_directory() {
  char path[PATH_MAX] = "";
  return ::getcwd(path, sizeof(path)) == nullptr ? "" : path;
}

Result<void> enter_directory(const std::string& path) {
  if (::chdir(path.c_str()) == 0) return {};
  return with_reach(Reach::host,
                    fail(ExitCode::config,
                         "the working directory {} cannot be entered on this host: {}; make or mount it "
                         "here, as on the other hosts",
                         path, reason_text(errno)));
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  return resolved == nullptr ? "" : resolved.get();
}

bool is_stream_path(std::string_view path) {
  return path.starts_with("/dev/") || path.starts_with("/proc/");
}

namespace {

std::string parent_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

Result<void> make_durable_directories(Env& env, const std::string& path) {
  std::vector<std::string> changed;  // directories that get a new name, the innermost first
  for (std::string one = path; one != "." && one != "/"; one = parent_directory(one)) {
    HF_TRY(const FileStatus status, env.status(one));
    if (status.exists) break;
    changed.push_back(parent_directory(one));
  }
  HF_TRY_VOID(env.make_directories(path));
  for (auto each = changed.rbegin(); each != changed.rend(); ++each) HF_TRY_VOID(env.sync_directory(*each));
  if (changed.empty()) static_cast<void>(env.sync_directory(parent_directory(path)).ok());
  return {};
}

}  // namespace holdfast::os
