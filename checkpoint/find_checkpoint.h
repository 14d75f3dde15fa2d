// Finds the checkpoint that a run resumes from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::checkpoint {

// Verifies a checkpoint that is opened and not verified. An error means that this one is damaged.
using CheckpointUse = std::function<Result<void>(Checkpoint&)>;

struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::vector<std::string> skipped;  // one sentence for each damaged checkpoint that is newer
};

// Finds the newest checkpoint that verifies completely. `path` is a run directory or one checkpoint
// directory. Damaged ones are named and skipped. std::nullopt when there is none at all; an error
// (ExitCode::checkpoint) when there are some but none is whole or when `path` is a checkpoint directory that
// is damaged. A run that rolled back to before its first checkpoint has none.
Result<std::optional<FoundCheckpoint>> find_checkpoint(Env& env, const std::string& path);
// The same for a caller that reads the whole checkpoint anyway: `use` gets one that is opened and not
// verified, and must verify what it has not read before it uses what it has.
Result<std::optional<FoundCheckpoint>> find_checkpoint(Env& env, const std::string& path,
                                                       const CheckpointUse& use);

}  // namespace holdfast::checkpoint
