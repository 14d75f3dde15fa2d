// Removes what killed starts of a run have left on this host: `holdfast clean`, and the end of a drill.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/kept_rollback.h"
#include "checkpoint/ram_tier.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

struct CleanedRun {
  SharedSnapshots snapshots = {};
  // A roll-back that a verdict had decided and no start could record: it is recorded now, as it would be forgotten with the snapshots.
  std::optional<DecidedRollback> recorded = {};
  std::string copy_of = {};  // directory that this one is a copy of, which keeps its snapshots; empty: none
};

// Removes the snapshots of the run in shared memory, boards that no process has open, and saves that were not finished. Errors:
// ExitCode::config where it is no run directory; communication while the run goes on.
Result<CleanedRun> clean_run(Env& env, const std::string& directory);

}  // namespace holdfast::cli
