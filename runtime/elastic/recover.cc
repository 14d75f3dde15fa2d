#include "runtime/elastic/recover.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/candidates.h"
#include "parallel/comm/agreement.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/part_start.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_identity.h"

namespace holdfast::inline elastic {
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

// Returns a waiter for what waits for a rank that may read the disk: it ends by the guard where it hangs there.
Waiter while_one_reads(const Waiter& waiter) {
  return waiter.with_timeout(waiter.timeout_ms() + verify_timeout_ms);
}

// Searches run.directory, which all ranks share, for the newest whole checkpoint. Rank 0 looks, and asks all ranks
// to verify a checkpoint together, each its own share of the shards: a rank of many would take as many times longer,
// and all others would wait.
class JointSearch {
 public:
  JointSearch(const TrainInputs& inputs, const Waiter& waiter)
      : inputs_(inputs), communicator_(inputs.communicator), waiter_(while_one_reads(waiter)) {}

  // On rank 0. The others learn at its end that there is nothing more to verify.
  Result<OwnStates> lead(const std::string& run_directory) {
    begin_reading();
    Result<OwnStates> states = states_of_directory(
        inputs_.env, run_directory, [this](Checkpoint& checkpoint) { return verify(checkpoint); });
    reading_.reset();
    if (lost_.has_value()) return *lost_;
    HF_TRY_VOID(outcome_of(ask("")));
    return states;
  }

  // On all other ranks.
  Result<void> follow() {
    while (true) {
      HF_TRY(const std::string directory, ask(""));
      if (directory.empty()) return {};
      const Result<void> agreed = verify_together(directory);
      if (communicator_.abandoned()) return agreed;
    }
  }

 private:
  void begin_reading() { reading_.emplace(inputs_.watch, "the checkpoints"); }

  // Returns the directory that rank 0 asks about; empty: none.
  Result<std::string> ask(const std::string& directory) {
    HF_TRY(std::vector<std::string> asked, all_gather_text(communicator_, waiter_, directory));
    renew_limits(inputs_.watch);
    return std::move(asked.front());
  }

  Result<void> verify(Checkpoint& checkpoint) {
    if (lost_.has_value()) return *lost_;
    reading_.reset();
    Result<void> agreed = outcome_of(ask(checkpoint.directory()));
    if (agreed.ok()) agreed = verify_together(checkpoint.directory());
    begin_reading();
    if (communicator_.abandoned()) lost_ = agreed.error();
    if (!agreed.ok()) return agreed;
    return checkpoint.check_complete();
  }

  Result<void> verify_together(const std::string& directory) {
    const Result<void> mine = verify_share(directory);
    const Result<void> agreed = agree_on_outcome(communicator_, waiter_, mine, inputs_.env.host_name());
    renew_limits(inputs_.watch);
    return agreed;
  }

  Result<void> verify_share(const std::string& directory) {
    const StorageWait storage(inputs_.watch, "the checkpoint");
    HF_TRY(const Manifest manifest, read_manifest(inputs_.env, directory));
    const int threads = std::max(1, inputs_.env.processor_count() / std::max(1, inputs_.ranks_on_host));
    const auto ranks = static_cast<std::size_t>(communicator_.size());
    for (auto i = static_cast<std::size_t>(communicator_.rank()); i < manifest.shards.size(); i += ranks) {
      HF_TRY_VOID(verify_shard(inputs_.env, directory, manifest.shards[i], state_of(manifest),
                               manifest.run_id, threads,
                               [&](std::uint64_t bytes) { storage.progress(bytes); }));
    }
    return {};
  }

  const TrainInputs& inputs_;
  Communicator& communicator_;
  Waiter waiter_;
  std::optional<StorageWait> reading_ = {};
  std::optional<Error> lost_ = {};  // of the communicator
};

// Returns the states of run.directory on rank 0, and nothing on the others.
Result<OwnStates> search_together(const TrainInputs& inputs, const Waiter& waiter,
                                  const std::string& run_directory) {
  JointSearch search(inputs, waiter);
  if (inputs.communicator.rank() == 0) return search.lead(run_directory);
  HF_TRY_VOID(search.follow());
  return OwnStates{};
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
                                  : search_together(inputs, waiter, config.run.directory));
  Result<StartPoint> chosen = StartPoint{};
  if (inputs.communicator.rank() == 0) {
    const StorageWait storage(inputs.watch, "the checkpoint");
    chosen = choose_start(inputs.env, as_resumed(config), own, /*in_place=*/true,
                          [&](std::uint64_t bytes) { storage.progress(bytes); });
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

}  // namespace holdfast::inline elastic
