// The checkpoint or checkpoints that a command works on.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/candidates.h"
#include "checkpoint/store.h"
#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

// `path`: a run directory (its newest whole checkpoint) or one checkpoint. Damaged ones that were passed over
// are named on stderr. ExitCode::checkpoint when there is none.
Result<Checkpoint> open_newest_checkpoint(Env& env, const std::string& path);

// All checkpoints that `path` means, the newest first; at least one.
struct CheckpointPaths {
  std::vector<std::string> directories;
  std::vector<CheckpointCandidate> of_run;  // the same, of a run directory; empty when `path` is a checkpoint
};
Result<CheckpointPaths> checkpoints_at(Env& env, std::string path);

}  // namespace holdfast
