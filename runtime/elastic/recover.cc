#include "runtime/elastic/recover.h"

#include <fmt/core.h>

#include "checkpoint/candidates.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/joint_search.h"
#include "runtime/elastic/part_start.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_identity.h"

namespace holdfast::elastic {
namespace {

// Returns the checkpoint that is newest by the manifests alone.
Result<StartPoint> newest_by_manifest(Env& env, const std::string& run_directory) {
  StartPoint start;
  HF_TRY(start.lineage, read_lineage(env, run_directory));
  const Result<std::vector<CheckpointCandidate>> candidates = list_candidates(env, run_directory);
  if (!candidates.ok()) return start;
  for (const CheckpointCandidate& candidate : *candidates) {
    if (!candidate.manifest.ok() || candidate.discarded) continue;
    start.generation = candidate.manifest->generation;
    start.step = candidate.step;
    break;
  }
  return start;
}

// Returns the config with which a recovery chooses: a run that was started afresh goes on from what it has
// saved since.
Config as_resumed(const Config& config) {
  Config resumed = config;
  if (resumed.run.resume == "never") resumed.run.resume = "auto";
  return resumed;
}

}  // namespace

Result<StartPoint> join_recovery_point(const TrainInputs& world, const Waiter& waiter, const Config& config,
                                       const std::string& shm_run_id,
                                       const std::optional<StorageDomains>& domains,
                                       const ClaimCheck& check) {
  Result<StartPoint> newest = StartPoint{};
  if (world.communicator.rank() == 0) {
    const StorageWait storage(world.watch, "the checkpoints");
    newest = newest_by_manifest(world.env, config.run.directory);
  }
  if (newest.ok() && world.communicator.rank() == 0) {
    // A snapshot of the same step is as good as the checkpoint, and at hand.
    newest->step -= newest->step > 0 ? 1 : 0;
    newest->shm_run_id = shm_run_id;
    const Result<RunIdentity> known = identify_run(world.env, {config.run.directory});
    if (shm_run_id.empty() && known.ok()) newest->shm_run_id = known->id;
    newest->writer = world.env.random_u64();
  }
  HF_TRY(StartPoint start, share_start(world, while_one_reads(waiter), newest));
  renew_limits(world.watch);
  HF_TRY_VOID(join_snapshot(world, waiter, as_resumed(config), start));
  if (start.snapshot.has_value()) return start;
  return join_checkpoint_of_run(world, waiter, config, start, domains, check);
}

// Looks for a snapshot again: if the newest checkpoint is damaged, a snapshot between it and the newest whole
// one is newer than the state that is left on the disk.
Result<StartPoint> join_checkpoint_of_run(const TrainInputs& inputs, const Waiter& waiter,
                                          const Config& config, const StartPoint& asked,
                                          const std::optional<StorageDomains>& domains,
                                          const ClaimCheck& check) {
  const std::string& shm_run_id = asked.shm_run_id;
  HF_TRY(const OwnStates own, domains.has_value()
                                  ? join_parts(inputs, waiter, config.run.directory, *domains, check)
                                  : join_search(inputs, waiter, config.run.directory));
  Result<StartPoint> chosen = StartPoint{};
  if (inputs.communicator.rank() == 0) {
    const StorageWait storage(inputs.watch, "the checkpoint");
    chosen = choose_start(inputs.env, as_resumed(config), own, /*in_place=*/true,
                          [&](std::uint64_t bytes) { storage.progress(bytes); });
    // The disk of a host without ranks may have what is missing: another start asks it, and the place elsewhere.
    if (!chosen.ok() && domains.has_value() && !own.newest.ok())
      chosen = with_code(ExitCode::communication, chosen.error());
    if (chosen.ok()) {
      StartPoint start = *chosen;
      if (!shm_run_id.empty()) start.shm_run_id = shm_run_id;
      start.writer = inputs.env.random_u64();
      start.passed_over = asked.passed_over;
      chosen = start;
    }
  }
  HF_TRY(StartPoint start, share_start(inputs, while_one_reads(waiter), chosen));
  renew_limits(inputs.watch);
  HF_TRY_VOID(join_snapshot(inputs, waiter, as_resumed(config), start));
  return start;
}

}  // namespace holdfast::elastic
