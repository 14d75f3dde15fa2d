#include "runtime/cli/clean_run.h"

#include <memory>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/run/claim.h"
#include "runtime/run/run_directory.h"
#include "watchdog/board.h"

namespace holdfast::cli {
namespace {

// Records what a verdict has decided and no start could record: with the snapshots it would be forgotten.
Result<std::optional<DecidedRollback>> record_decided(Env& env, const std::string& directory,
                                                      const Digest& run, const ClaimCheck& claim) {
  std::vector<DecidedRollback> decided;
  for (const KeptRollback& kept : kept_rollbacks(env, run)) decided.push_back(kept.decided);
  return record_unrecorded(env, directory, decided, claim);
}

}  // namespace

Result<CleanedRun> clean_run(Env& env, const std::string& directory) {
  const RunPaths paths{directory};
  HF_TRY(const FileStatus status, env.status(paths.run_id()));
  if (!status.exists) {
    return fail(
        ExitCode::config,
        "{} is no run directory: it holds no run_id. Give the run.directory of a run that has started",
        directory);
  }
  HF_TRY(const std::unique_ptr<Claim> claim, claim_run_directory(env, paths));
  HF_TRY(const RunIdentity identity, identify_run(env, paths));
  CleanedRun cleaned{.copy_of = identity.copy_of};
  if (!identity.id.empty()) {
    HF_TRY(cleaned.recorded, record_decided(env, directory, digest_of(identity.id), claim->fence()));
    HF_TRY(cleaned.snapshots, remove_snapshots(env, digest_of(identity.id)));
  }
  remove_dead_boards(env);
  FaultPoints none;
  CheckpointStore store(env, none, directory);
  store.fence({.epoch = claim->epoch(), .check = claim->fence()});
  HF_TRY_VOID(store.remove_leftovers());
  return cleaned;
}

}  // namespace holdfast::cli
