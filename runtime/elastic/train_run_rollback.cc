// TrainRun's part for verdicts that take the run back: what is recorded of the decision, and when it is possible.
#include <algorithm>

#include "checkpoint/candidates.h"
#include "checkpoint/ram_tier.h"
#include "runtime/elastic/train_run_internal.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"

namespace holdfast::inline elastic {

// Begins to count which steps this process has proved to compute right. A new rank has computed none of those before
// it came. A process of a start may have had another one before it on the same hardware.
void TrainRun::begin_to_prove() {
  if (recovery_.sound_step.has_value()) return;
  const RunState& state = worker_->state();
  recovery_.sound_step = is_joiner() || state.audited_step == 0 ? state.step : state.audited_step;
}

// Returns whether there is a state to go back to. The start counts as one while the run is young: no longer than the
// audits of all ranks take, or where the roll-back itself goes to the start.
bool TrainRun::can_go_back(const Rollback& rollback) const {
  if (!group_.writes) return true;
  const Workload& workload = worker_->workload();
  const std::int64_t round =
      workload.audit_every_steps * workload.lanes.lanes() * std::max(1, workload.lanes.ranks() - 1);
  const bool is_young = rollback.trusted_step <= static_cast<std::uint64_t>(std::max<std::int64_t>(0, round));
  if (rollback.data_cursor.has_value() ? rollback.trusted_step == 0 : is_young) return true;
  const Result<std::vector<CheckpointCandidate>> candidates =
      list_candidates(launched_.env, setup_.config.run.directory);
  if (!candidates.ok()) return true;
  const auto counts = [](const CheckpointCandidate& each) { return each.manifest.ok() && !each.discarded; };
  const bool is_saved = std::ranges::any_of(*candidates, counts);
  const bool is_saved_before = std::ranges::any_of(*candidates, [&](const CheckpointCandidate& each) {
    return counts(each) && each.step <= rollback.trusted_step;
  });
  const std::vector<FoundSnapshot> snapshots =
      list_snapshots(launched_.env, digest_of(worker_->state().shm_run_id));
  return !is_saved || is_saved_before || std::ranges::any_of(snapshots, [&](const FoundSnapshot& each) {
    return each.identity.step <= rollback.trusted_step;
  });
}

// Keeps the decision in shared memory, where it outlives this process, and has the writer record it. A write that
// fails is made again by the recovery, or by the next start.
void TrainRun::decide_rollback(const Rollback& rollback, const std::string& reason) {
  const RunState& state = worker_->state();
  recovery_.rollback = {
      .run_id = state.run_id,
      .generation = {.parent = {.generation = state.generation, .step = rollback.trusted_step},
                     .settings = numeric_settings(setup_.config),
                     .reason = reason}};
  if (rollback.data_cursor.has_value())
    recovery_.rollback->generation.jump =
        DataJump{.at_step = rollback.trusted_step, .data_cursor = *rollback.data_cursor};
  const StorageWait storage(launched_.watch, "the record of a roll-back");
  // Without room in shared memory the memory of this process has to do.
  static_cast<void>(
      keep_rollback(launched_.env, digest_of(state.shm_run_id), setup_.start.writer,
                    launched_.communicator.rank(),
                    {.decided = *recovery_.rollback, .run_directory = real_path(setup_.config.run.directory)})
          .ok());
  if (const Result<void> recorded = record_rollback(); !recorded.ok())
    print_message("{}", recorded.error().message);
}

// Has the decision in the lineage, on a rank that writes.
Result<void> TrainRun::record_rollback() {
  if (!group_.writes) return {};
  HF_TRY_VOID(check_claim());
  const DecidedRollback& decided = *recovery_.rollback;
  const std::string& directory = setup_.config.run.directory;
  HF_TRY(const Lineage lineage, read_lineage(launched_.env, directory));
  if (is_recorded(decided, lineage)) return {};
  HF_FAULT_POINT(launched_.faults, "generation.before_publish");
  return saves_.store.value().record_rollback(decided.run_id, decided.generation);
}

// Has the decision in the lineage before a state is chosen. A disk that does not take it is waited for; if that lasts,
// the ranks end to be started again, and the next start finds what they have kept.
Result<void> TrainRun::complete_rollback() {
  const bool is_decided = recovery_.rollback.has_value();
  Result<void> recorded;
  if (is_decided) {
    const StorageWait storage(launched_.watch, "the record of a roll-back");
    recorded = retry_storage(launched_.env, [this] { return record_rollback(); });
  }
  const std::int64_t patience_ms = setup_.config.parallel.timeout_ms + storage_patience_ms;
  HF_TRY_VOID(agree_among(world(), recorded, waiter().with_timeout(patience_ms)));
  renew_limits(launched_.watch);
  if (is_decided)
    static_cast<void>(remove_kept_rollbacks(launched_.env, digest_of(recovery_.inventory.shm_run_id)).ok());
  recovery_.rollback.reset();
  return {};
}

}  // namespace holdfast::inline elastic
