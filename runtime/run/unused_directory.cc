#include "runtime/run/unused_directory.h"

#include <algorithm>

namespace holdfast::run {

bool is_refusal(ExitCode code) {
  return code == ExitCode::config || code == ExitCode::does_not_fit || code == ExitCode::data ||
         code == ExitCode::checkpoint;
}

bool remove_unused_directory(Env& env, const RunPaths& paths) {
  const Result<std::vector<std::string>> names = env.list(paths.directory);
  const bool is_unused = names.ok() && std::ranges::all_of(*names, [](const std::string& name) {
                           return name == "lock" || name == "place_name" || name == "lineage.json" ||
                                  name.starts_with("ledger-") || name == "launch" || name == "status.json";
                         });
  return is_unused && env.remove_tree(paths.directory).ok();
}

}  // namespace holdfast::run
