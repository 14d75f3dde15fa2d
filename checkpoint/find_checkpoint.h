// Finds the checkpoint that a run goes on from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline checkpoint {

struct FoundCheckpoint {
  Checkpoint checkpoint;
  std::vector<std::string> skipped;  // one sentence for each newer one that is damaged
};

// `path` is a run directory or one checkpoint directory. The newest one that verifies completely; damaged
// ones are named and skipped. std::nullopt when there is none at all; an error (ExitCode::checkpoint) when
// there are some but none is whole or when `path` is a checkpoint directory that is damaged.
Result<std::optional<FoundCheckpoint>> find_checkpoint(Env& env, const std::string& path);
// The same for who reads all of it anyhow: `use` gets one that is opened and not verified, and verifies what
// it has not read before anything comes of what it has. Its error is that this one is damaged.
Result<std::optional<FoundCheckpoint>> find_checkpoint(Env& env, const std::string& path,
                                                       const std::function<Result<void>(Checkpoint&)>& use);

}  // namespace holdfast::inline checkpoint
