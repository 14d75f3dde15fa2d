// The checkpoint or checkpoints that a command works on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/candidates.h"
#include "checkpoint/store.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline cli {

// `path`: a run directory (its newest whole checkpoint) or one checkpoint. Damaged ones that were skipped
// are named on stderr. ExitCode::checkpoint when there is none.
Result<Checkpoint> open_newest_checkpoint(Env& env, const std::string& path);
// The same for who reads it anyhow, so that its bytes are read once: `use` works on one whose bytes nobody
// has verified yet, and calls verify() before it makes anything of what it has read. Where that or a read
// finds damage, what `use` said counts for nothing, and it is called with the next older one.
Result<void> use_newest_checkpoint(Env& env, const std::string& path,
                                   const std::function<Result<void>(Checkpoint&)>& use);

// All checkpoints that `path` means, the newest first; at least one.
struct CheckpointPaths {
  std::vector<std::string> directories;
  std::vector<CheckpointCandidate> of_run;  // the same, of a run directory; empty when `path` is a checkpoint
};
Result<CheckpointPaths> checkpoints_at(Env& env, std::string path);

}  // namespace holdfast::inline cli
