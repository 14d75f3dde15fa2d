#include "runtime/cli/open_checkpoint.h"

#include <cstdio>

namespace holdfast {

Result<Checkpoint> open_newest_checkpoint(Env& env, const std::string& path) {
  HF_TRY(std::optional<FoundCheckpoint> found, find_checkpoint(env, path));
  if (!found.has_value()) {
    return fail(
        ExitCode::checkpoint,
        "{} holds no checkpoint. Give the run.directory of a run that has saved, or one checkpoint in its "
        "checkpoints/",
        path);
  }
  for (const std::string& sentence : found->skipped)
    fmt::print(stderr, "holdfast: checkpoint passed over: {}\n", sentence);
  return std::move(found->checkpoint);
}

}  // namespace holdfast
