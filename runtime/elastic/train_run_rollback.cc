// TrainRun's part for verdicts that take the run back: what is recorded of the decision, and when it is possible.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "checkpoint/candidates.h"
#include "checkpoint/ram_tier.h"
#include "runtime/elastic/decided_rollback.h"
#include "runtime/elastic/download.h"
#include "runtime/elastic/train_run_internal.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"

namespace holdfast::elastic {

// Begins to count which steps this process has proved to compute right. A new rank has computed none of those before
// it came. A process of a start may have had another one before it on the same hardware.
void TrainRun::begin_to_prove() {
  if (recovery_.sound_step.has_value()) return;
  const RunState& state = worker_->state();
  recovery_.sound_step = group_.is_joiner() || state.audited_step == 0 ? state.step : state.audited_step;
}

namespace {

// Says why a run that was to go back ends, and what to do.
std::string without_a_state(std::string_view kind) {
  const bool may_go_on = kind == name_of(VerdictKind::spike) || kind == name_of(VerdictKind::drift);
  return fmt::format("; but no such state is left. {}",
                     may_go_on ? fmt::format("Set verdict.on_{} = \"tell\" to go on from here", kind)
                               : "Lower optimizer.learning_rate or start again from an older checkpoint");
}

bool counts(const CheckpointCandidate& candidate) {
  return candidate.manifest.ok() && !candidate.discarded;
}

}  // namespace

// Returns whether the run directory, or the start of the run, has a state to go back to. What cannot be read is left to
// the recovery.
bool TrainRun::disk_goes_back(std::uint64_t trusted_step) {
  const auto [candidates, lineage] = saves_.store->published();
  if (!candidates.ok() || !lineage.ok() || trusted_step == 0) return true;
  if (lineage->run_id == worker_->state().run_id && lineage->start_counts(trusted_step)) return true;
  return std::ranges::any_of(*candidates, [&](const CheckpointCandidate& each) {
    return counts(each) && each.step <= trusted_step;
  });
}

// Returns whether the run may begin again though nobody knows what it has published: no checkpoint counts.
bool TrainRun::has_nothing_to_lose() {
  const auto [candidates, lineage] = saves_.store->published();
  if (!candidates.ok() || !lineage.ok()) return true;
  const bool is_known = lineage->run_id == worker_->state().run_id && lineage->first_step.has_value();
  return !is_known && std::ranges::none_of(*candidates, counts);
}

// Returns whether the hosts have a state to go back to, which all ranks agree on. The parts of a snapshot are on many
// hosts; one that is not whole without the ranks that leave is no state.
Result<bool> TrainRun::knows_state(const Rollback& rollback, std::span<const int> leaving_ranks) {
  HF_TRY(std::vector<std::vector<SnapshotIdentity>> offers,
         source_of_active().snapshots(digest_of(worker_->state().shm_run_id)));
  for (const int rank : leaving_ranks) offers[static_cast<std::size_t>(rank)].clear();
  for (std::vector<SnapshotIdentity>& each : offers) {
    std::erase_if(each, [&](const SnapshotIdentity& of) {
      const ParentCheckpoint state = {.generation = of.generation, .step = of.step};
      return of.step > rollback.trusted_step || setup_.start.lineage.discards(state);
    });
  }
  if (newest_whole_step(offers, {}).has_value()) return true;
  std::array<std::int64_t, 1> refusals = {!group_.writes() || disk_goes_back(rollback.trusted_step) ? 0 : 1};
  HF_TRY_VOID(all_reduce_sum(group_.active().communicator, group_.waiter(), refusals));
  return refusals[0] == 0;
}

// Lets checkpoint.download_command fetch a state to go back to, and returns whether it has. Where run.directory is local
// to each host, that comes to the host of rank 0 alone, which has to stay.
Result<bool> TrainRun::fetch_state(std::uint64_t trusted_step, std::span<const int> leaving_ranks) {
  const bool is_lost =
      setup_.domain.has_value() && std::ranges::find(leaving_ranks, 0) != leaving_ranks.end();
  if (setup_.config.checkpoint.download_command.empty() || is_lost) return false;
  saves_.store->keep_around(trusted_step);  // a save that is under way may remove old ones at its end
  enter(launched_.watch, Phase::load, step(), setup_.config.watchdog.ceiling_ms);
  Result<bool> came = join_earlier_download(source_of_active(), *setup_.data, trusted_step + 1);
  enter_recovery(launched_.watch, step(), setup_.config);
  return came;
}

// Returns whether there is a state to go back to. Collective; errors are those of the communicator.
Result<bool> TrainRun::can_go_back(const Rollback& rollback, std::span<const int> leaving_ranks) {
  HF_TRY(const bool is_here, knows_state(rollback, leaving_ranks));
  if (is_here) return true;
  HF_TRY(const bool came, fetch_state(rollback.trusted_step, leaving_ranks));
  if (came) return true;
  std::array<std::int64_t, 1> refusals = {!group_.writes() || has_nothing_to_lose() ? 0 : 1};
  HF_TRY_VOID(all_reduce_sum(group_.active().communicator, group_.waiter(), refusals));
  return refusals[0] == 0;
}

// Follows a verdict that has ended the steps. Where a rank has to leave, the others lose it like one that died; where the
// state cannot be trusted, all go back to one that can. Batches that are left out say nothing against the saves under
// way.
void TrainRun::follow_verdict(Trainer& trainer, StepsVerdict verdict) {
  Communicator& all = worker_->rank().communicator;
  VerdictEvent& event = verdict.event;
  std::optional<Rollback>& rollback = verdict.rollback;
  const bool leaves_batches = rollback.has_value() && rollback->data_cursor.has_value();
  if (rollback.has_value() && !decide_to_go_back(*rollback, verdict.leaving_ranks, event.reason)) {
    if (leaves_batches) {
      verdict.action = VerdictAction::stop;
      event.action = name_of(verdict.action);
      event.reason += without_a_state(event.what);
    } else {
      event.reason += fmt::format("; but no state of step {} or before is left, so the newest one counts",
                                  rollback->trusted_step);
    }
    rollback.reset();
  }
  journal_.progress()->judged(event, rollback);
  const bool goes_back = rollback.has_value() && leaves_batches;
  const bool is_numerics = goes_back || ends_run(verdict.action);
  const bool together = goes_back || (!is_numerics && all.size() == 1);
  if (!is_numerics && !together) {
    // No rank gives up the group before all have the verdict. One that is given up here has it.
    static_cast<void>(barrier(all, worker_->rank().waiter).ok());
    all.abandon();
  }
  steps_ = trainer.end_by_verdict(
      fail(is_numerics ? ExitCode::numerics : ExitCode::communication, "{}", event.reason), together,
      verdict.action);
  steps_.is_evicted = !is_numerics && !together &&
                      std::ranges::find(verdict.leaving_ranks, all.rank()) != verdict.leaving_ranks.end();
  if (rollback.has_value()) distrust_state(rollback->trusted_step);
}

// Records a roll-back before anything else happens, so that whoever dies now the run goes back. Returns false,
// on all ranks, where there is no state to go back to. What fails otherwise is tried again by the recovery.
bool TrainRun::decide_to_go_back(const Rollback& rollback, std::span<const int> leaving_ranks,
                                 const std::string& reason) {
  const Result<bool> possible = can_go_back(rollback, leaving_ranks);
  if (possible.ok() && !*possible) return false;
  decide_rollback(rollback, reason);
  return true;
}

// Makes the RAM snapshots of newer steps count for nothing, and the live state, too. The saves of this rank end
// first, so that none is sealed afterwards.
void TrainRun::distrust_state(std::uint64_t trusted_step) {
  enter_recovery(launched_.watch, step(), setup_.config);
  wait_for_given_up_saves();
  steps_.saves.unused_slot.reset();
  steps_.saves.kept_step = std::min(steps_.saves.kept_step.value_or(0), trusted_step);
  unseal_snapshots_after(launched_.env, digest_of(worker_->state().shm_run_id), trusted_step);
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
  if (!group_.writes()) return {};
  HF_TRY_VOID(journal_.check_claim());
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
  HF_TRY_VOID(group_.agree_among_all(recorded, group_.waiter().with_timeout(patience_ms)));
  renew_limits(launched_.watch);
  recovery_.rollback.reset();
  const std::string& id = recovery_.inventory.shm_run_id;
  if (!recovery_.inventory.lost_some) {
    if (is_decided) static_cast<void>(remove_kept_rollbacks(launched_.env, digest_of(id)).ok());
    return {};
  }
  // The ranks that have decided may be dead, and spares, one of which may write now, were not asked.
  Config resumed = setup_.config;
  resumed.run.resume = "auto";
  return record_kept_rollbacks(group_.world(), group_.waiter().with_timeout(patience_ms), resumed,
                               journal_.claim_check());
}

}  // namespace holdfast::elastic
