#include "runtime/os/durable_directory.h"

#include <filesystem>
#include <vector>

namespace holdfast::os {
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
