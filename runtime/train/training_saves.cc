#include "runtime/train/training_saves.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "checkpoint/candidates.h"
#include "checkpoint/ram_tier.h"
#include "parallel/comm/agreement.h"
#include "runtime/integrity/state_check.h"
#include "runtime/rank/return_wait.h"
#include "runtime/rank/watch.h"
#include "runtime/save/save.h"
#include "runtime/save/save_failure.h"
#include "runtime/train/worker_access.h"

namespace holdfast::train {
namespace {

// Returns whether the run cannot go on after a save that failed: a peer is gone, or ranks are unfit.
bool ends_steps(const Error& error) {
  return error.code == ExitCode::communication || is_of_unfit_ranks(error);
}

}  // namespace

TrainingSaves::TrainingSaves(const TrainingParts& parts, Result<void>& trouble)
    : parts_(parts),
      rank_(parts.worker.rank()),
      trouble_(trouble),
      uploads_({.env = rank_.env,
                .faults = rank_.faults,
                .store = *parts.saves.store,
                .config = rank_.config,
                .rank = rank_.communicator.rank(),
                .ranks = rank_.communicator.size(),
                .domains = parts.saves.tier.has_value() ? parts.saves.tier->domains() : std::nullopt}) {
  // The initial estimate of the duration of a save is that of a slow disk.
  constexpr std::int64_t slow_ns_per_byte = 10;
  longest_save_ns_ = static_cast<std::int64_t>(parts.worker.state_view().state_bytes()) * slow_ns_per_byte;
}

Result<void> TrainingSaves::offer_newest() {
  return uploads_.offer_newest(rank_.communicator, rank_.waiter);
}

Result<void> TrainingSaves::prepare() {
  const SavePlan plan = save_plan(rank_.config);
  if (!plan.beside_steps) return {};
  saver_ = std::make_unique<StateSaver>(parts_.worker.state_view(), *parts_.saves.store, parts_.writer,
                                        parts_.resumed, parts_.saves.tier);
  HF_TRY_VOID(saver_->prepare());
  if (!saver_->snapshots().warning().empty())
    parts_.progress.say("no RAM snapshots: " + saver_->snapshots().warning());
  if (!saver_->snapshots().replica_warning().empty())
    parts_.progress.say("no replicas of RAM snapshots: " + saver_->snapshots().replica_warning());
  const bool is_first_epoch = !parts_.saves.cadence.has_value();
  if (is_first_epoch) parts_.saves.cadence.emplace(plan.intervals, rank_.env.monotonic_ns());
  const MeshShape& shape = rank_.mesh.shape();
  const CheckpointConfig& checkpoint = rank_.config.checkpoint;
  const RatePrior prior = run_prior({.run_mtbf_seconds = static_cast<double>(checkpoint.mtbf_ms) / 1e3,
                                     .device_mtbf_hours = rank_.config.hazard.mtbf_hours},
                                    rank_.device.host_sees_memory() ? "cpu" : "cuda", shape.ranks());
  parts_.saves.cadence->begin_epoch(
      {.history = parts_.failures,
       .ranks = shape.ranks(),
       .prior = cautious(prior),
       .has_ram_tier = saver_->snapshots().outlives_process(),
       .survives_host = parts_.saves.survives_host && saver_->snapshots().has_replicas(),
       .work = static_cast<double>(parts_.worker.workload().lanes.waves()) / (shape.pipeline * shape.tensor),
       .snapshot_bytes = static_cast<double>(parts_.worker.state_view().snapshots.bytes()),
       .saved_step = is_first_epoch ? newest_saved_step() : 0});
  return {};
}

// Returns the step of the newest checkpoint when training begins, on a rank that tells of it. State that is in memory
// alone is newer than that.
std::uint64_t TrainingSaves::newest_saved_step() const {
  if (!parts_.resumed.has_value()) return parts_.worker.state().step;
  if (parts_.claim == nullptr) return 0;
  const StorageWait storage(rank_.watch, "the checkpoints");
  const CheckpointStore::Published published = parts_.saves.store->published();
  if (!published.candidates.ok()) return 0;
  for (const CheckpointCandidate& each : *published.candidates) {  // newest first
    if (each.manifest.ok() && !each.discarded) return each.step;
  }
  return 0;
}

Result<void> TrainingSaves::free_old_snapshots() {
  if (!parts_.resumed.has_value() || (saver_ && saver_->snapshots().outlives_process())) return {};
  const Result<void> saved = save();
  if (!saved.ok() && (rank_.communicator.abandoned() || ends_steps(saved.error()))) return saved;
  if (!saved.ok()) {
    parts_.progress.say("the RAM snapshots of the last start stay: " + saved.error().message);
    return {};
  }
  return agree_on_outcome(
      rank_.communicator, rank_.waiter,
      outcome_of(checkpoint::remove_snapshots(rank_.env, digest_of(parts_.worker.state().shm_run_id))),
      rank_.env.host_name());
}

SaveDue TrainingSaves::due() {
  const bool growth_waits = parts_.growth.has_value() && parts_.growth->ready();
  SaveDue due;
  if (saver_)
    due = parts_.saves.cadence->due(parts_.worker.state().step + 1, rank_.env.monotonic_ns(), growth_waits);
  const bool asked_for =
      parts_.stop.save_requested() || (parts_.requests != nullptr && parts_.requests->waiting());
  due.asked_for = asked_for && !growth_waits && !(saver_ && saver_->disk().is_saving());
  return due;
}

Growth::Saves TrainingSaves::under_way(const SaveDue& due) const {
  Growth::Saves saves;
  if (saver_) saves = {.is_settled = saver_->snapshots().is_settled(), .under_way = saver_->disk().steps()};
  if (due.wants_disk()) saves.under_way.push_back(parts_.worker.state().step + 1);
  return saves;
}

SaveCadence::Step TrainingSaves::begin_step() {
  const SaveCadence::Step step{.beside_snapshot = saver_ && saver_->snapshots().is_beside_step(),
                               .beside_save = saver_ && saver_->disk().is_saving()};
  if (step.beside_snapshot || step.beside_save) beside_save(rank_.watch);
  return step;
}

Result<void> TrainingSaves::advance(const StepOutcome& outcome) {
  if (outcome.due.asked_for) step_asked_for_ = outcome.step;
  if (saver_) {
    SaveCadence& cadence = *parts_.saves.cadence;
    if (const std::optional<std::int64_t> copy_ns = saver_->snapshots().take_copy_ns())
      cadence.copied(*copy_ns);
    // Its price is in the step that was made, not in the next one.
    if (outcome.keeps_state)
      cadence.began({.step = outcome.step, .to_disk = false, .now_ns = rank_.env.monotonic_ns()});
    HF_TRY_VOID(saver_->advance(outcome.saves));
  }
  HF_TRY_VOID(uploads_.advance(rank_.communicator, rank_.waiter, outcome.saves));
  report();
  return {};
}

void TrainingSaves::stepped(std::uint64_t step, const SaveCadence::Step& cost) {
  if (!saver_) return;
  SaveCadence& cadence = *parts_.saves.cadence;
  cadence.stepped(cost);
  if (const std::optional<IntervalChoice> choice = cadence.take_choice())
    parts_.progress.chose_interval(step, *choice);
  if (const std::optional<FailureCost> costs = cadence.take_failure_cost())
    parts_.progress.set_failure_cost(step, *costs);
}

void TrainingSaves::note_save(std::int64_t duration_ns) {
  longest_save_ns_ = saved_ ? std::max(longest_save_ns_, duration_ns) : duration_ns;
  saved_ = true;
}

Result<void> TrainingSaves::begin(bool to_disk) {
  HF_TRY_VOID(check_state(/*update_follows=*/true));
  if (!saver_) return save_on_request();
  keep_what_is_needed();
  const HostSpan span(&rank_.spans, {.kind = SpanKind::save});
  beside_save(rank_.watch);
  const std::int64_t begin_ns = rank_.env.monotonic_ns();
  const bool is_counted = !to_disk && saver_->snapshots().has_written();  // in advance()
  HF_TRY(const bool begun, saver_->begin(to_disk));
  const std::int64_t now_ns = rank_.env.monotonic_ns();
  if (begun && !is_counted) {
    parts_.saves.cadence->began({.step = parts_.worker.state().step,
                                 .to_disk = to_disk,
                                 .stall_ns = now_ns - begin_ns,
                                 .now_ns = now_ns});
  }
  if (to_disk) answer_requests();
  report();
  return {};
}

Result<void> TrainingSaves::save() {
  HF_TRY_VOID(check_state(/*update_follows=*/false));
  answer_requests();
  if (saver_) HF_TRY_VOID(saver_->finish());
  report();
  const std::uint64_t step = parts_.worker.state().step;
  enter(rank_.watch, Phase::save, step, rank_.config.watchdog.ceiling_ms);
  const HostSpan span(&rank_.spans, {.kind = SpanKind::save});
  const std::int64_t begin_ns = rank_.env.monotonic_ns();
  keep_what_is_needed();
  HF_TRY(const std::uint64_t bytes, save_checkpoint(parts_.worker.state_view(), *parts_.saves.store,
                                                    rank_.config.checkpoint.keep, parts_.saves.tier));
  const std::int64_t duration_ns = rank_.env.monotonic_ns() - begin_ns;
  note_save(duration_ns);
  if (saver_) parts_.saves.cadence->saved(step, begin_ns);
  saved({.step = step,
         .outcome = {},
         .bytes = bytes,
         .stall_ns = duration_ns,
         .drain_ns = duration_ns,
         .durable_ns = duration_ns,
         .duration_ns = duration_ns});
  return {};
}

Result<void> TrainingSaves::save_at_end(const std::function<bool()>& gives_up) {
  constexpr std::int64_t longest_pause_ms = 10'000;
  const std::int64_t limit_ms = rank_.config.elastic.input_timeout_ms;
  ReturnWait wait({.env = rank_.env,
                   .communicator = rank_.communicator,
                   .timeout_ms = limit_ms,
                   .longest_pause_ms = longest_pause_ms,
                   .gives_up = gives_up});
  while (true) {
    const Result<void> outcome = save();
    if (outcome.ok() || !ReturnWait::may_return(rank_.communicator, outcome.error())) return outcome;
    const std::uint64_t step = parts_.worker.state().step;
    enter(rank_.watch, Phase::save, step, rank_.config.watchdog.ceiling_ms);
    HF_TRY(const bool again, wait.again(rank_.waiter, [&] {
      parts_.progress.last_save_failed({.step = step, .outcome = outcome}, unsaved(), limit_ms);
    }));
    if (!again) return outcome;
  }
}

// Returns what is in no checkpoint; none where no save was due before this one.
std::optional<UnsavedWork::Size> TrainingSaves::unsaved() const {
  if (!saver_) return std::nullopt;
  return parts_.saves.cadence->unsaved(parts_.worker.state().step, rank_.env.monotonic_ns());
}

// Saves at once on request where no save is due before the end and there is therefore no memory for a copy of
// the state, so that the steps wait. Like any other save before the end, this one may fail.
Result<void> TrainingSaves::save_on_request() {
  Result<void> outcome = save();
  if (outcome.ok() || ends_steps(outcome.error())) return outcome;
  failed({.step = parts_.worker.state().step, .outcome = outcome});
  return {};
}

// The replicas on other hosts are waited for, because the next epoch removes older snapshots before it confirms one.
Result<void> TrainingSaves::seal(bool to_disk) {
  if (!saver_ || !saver_->snapshots().outlives_process()) return save();
  HF_TRY_VOID(seal_in_memory(to_disk));
  HF_TRY_VOID(parts_.saves.survives_host ? saver_->finish_with_replicas() : saver_->finish());
  report();
  return {};
}

Result<void> TrainingSaves::seal_in_memory(bool to_disk) {
  HF_TRY_VOID(check_state(/*update_follows=*/false));
  HF_TRY_VOID(saver_->finish_with_replicas());
  HF_TRY(const bool begun, saver_->begin(to_disk));
  if (!begun) HF_TRY_VOID(outcome_of(saver_->begin(/*to_disk=*/true)));
  if (to_disk || !begun) answer_requests();
  return {};
}

// A confirmed snapshot is enough where one host leaves and all of the state has replicas on other hosts;
// else the state goes to the disk, which is not lost with the hosts unless each host has its own.
Result<bool> TrainingSaves::seal_elsewhere(bool to_disk, int hosts_leaving) {
  const std::uint64_t step = parts_.worker.state().step;
  if (hosts_leaving == 1 && parts_.saves.survives_host && saver_ && saver_->snapshots().has_replicas()) {
    HF_TRY_VOID(seal_in_memory(to_disk));
    HF_TRY_VOID(saver_->finish_with_replicas());
    report();
    if (saver_->snapshots().confirmed_step() == step) return true;
  }
  const bool in_parts = parts_.saves.tier.has_value() && parts_.saves.tier->in_parts();
  if (in_parts && (hosts_leaving > 1 || parts_.saves.tier->copies() == nullptr)) return false;
  const Result<void> saved = save();
  if (saved.ok()) return true;
  if (ends_steps(saved.error())) return saved.error();
  failed({.step = step, .outcome = saved});
  return false;
}

// No update follows that would find the state damaged of which a copy is on its way to the disk.
Result<void> TrainingSaves::finish() {
  if (!saver_) return {};
  if (saver_->disk().is_saving()) HF_TRY_VOID(check_state(/*update_follows=*/false));
  Result<void> finished = saver_->finish();
  report();
  return finished;
}

Result<void> TrainingSaves::finish_uploads(bool cancels) {
  if (cancels) uploads_.cancel();
  return uploads_.finish(rank_.communicator, rank_.waiter, [&] {
    for (const UploadReport& each : uploads_.take_reports()) parts_.progress.uploaded(each);
    mark(rank_.watch);  // the command has its own time limit
  });
}

void TrainingSaves::remove_snapshots() {
  if (saver_) saver_->snapshots().finish_making_slots();
  if (const Result<SharedSnapshots> removed =
          checkpoint::remove_snapshots(rank_.env, digest_of(parts_.worker.state().shm_run_id));
      !removed.ok()) {
    parts_.progress.say("RAM snapshots stay: " + removed.error().message);
  }
}

// The snapshot that the state was resumed from stays until a newer one is confirmed.
GivenUpSaves TrainingSaves::give_up() {
  GivenUpSaves saves;
  if (saver_) {
    saves.unused_slot = saver_->unused_slot();
    saves.kept_step = saver_->snapshots().confirmed_step();
    saver_->cancel();
    saves.saver = std::move(saver_);
  }
  if (!saves.kept_step.has_value() && parts_.resumed.has_value()) saves.kept_step = parts_.resumed->step;
  return saves;
}

// Answers all requests for a save: the save that begins now is as new as any of them can have asked for.
void TrainingSaves::answer_requests() {
  parts_.stop.save_begun(step_asked_for_ == parts_.worker.state().step);
  if (parts_.requests != nullptr) parts_.requests->begun(parts_.worker.state().step);
}

void TrainingSaves::report() {
  for (const UploadReport& each : uploads_.take_reports()) parts_.progress.uploaded(each);
  if (!saver_) return;
  for (const ReplicaReport& each : saver_->snapshots().take_replica_reports()) {
    parts_.saves.cadence->replicated(each);
    parts_.progress.replicated(each);
  }
  for (const SaveReport& each : saver_->disk().take_reports()) {
    parts_.saves.cadence->ended(each, rank_.env.monotonic_ns());
    if (each.outcome.ok()) {
      note_save(each.drain_ns + each.publish_ns);
      saved(each);
    } else {
      failed(each);
    }
  }
}

void TrainingSaves::saved(const SaveReport& report) {
  const std::string directory = parts_.saves.store->checkpoint_directory(report.step);
  parts_.progress.saved(report, directory);
  if (parts_.requests != nullptr) parts_.requests->ended(report.step, {});
  if (step_asked_for_ == report.step && report.step > 0) {
    step_asked_for_ = 0;
    parts_.progress.say(fmt::format("saved on request: step {} in {}", report.step, directory));
  }
  uploads_.offer(report.step);
}

void TrainingSaves::failed(const SaveReport& report) {
  // Another writer has replaced this one, so the run ends here and its log no longer belongs to this process.
  if (report.outcome.error().code == ExitCode::communication) {
    if (trouble_.ok()) trouble_ = report.outcome;
    return;
  }
  parts_.progress.save_failed(report, unsaved());
  if (parts_.requests != nullptr) parts_.requests->ended(report.step, report.outcome);
}

// Looks for corruption of the state before it is saved: what the last update found, and where no update follows all
// that is in memory.
Result<void> TrainingSaves::check_state(bool update_follows) {
  if (!parts_.worker.optimizer().checks_state()) return {};
  HF_TRY(std::optional<CheckedStep> found,
         check_state_to_save(access_to_step(parts_.worker), update_follows));
  if (!found.has_value()) return {};
  verdict_ = StepsVerdict{.event = *std::move(found->report),
                          .action = found->action,
                          .leaving_ranks = std::move(found->leaving_ranks),
                          .rollback = found->rollback};
  return fail(ExitCode::communication, "{}", verdict_->event.reason);
}

// Keeps checkpoints that a verdict may want to go back to.
void TrainingSaves::keep_what_is_needed() {
  Worker& worker = parts_.worker;
  const VerdictConfig& verdict = rank_.config.verdict;
  const RunState& state = worker.state();
  if (verdict.preset != "guard") return;
  std::uint64_t needed = std::min(state.step, needed_step(state.numbers, state.step + 1, verdict));
  const bool compares_replicas =
      worker.workload().audit_every_steps > 0 && worker.workload().lanes.ranks() > 1;
  if (compares_replicas && verdict.on_wrong_rank == "rollback") needed = std::min(needed, state.audited_step);
  // Frozen tensors are compared at audits alone.
  const ParameterDigests& parameters = worker.checks().parameters;
  if (worker.workload().audit_every_steps > 0 && parameters.has_frozen())
    needed = std::min(needed, parameters.verified_step().value_or(worker.first_step()));
  if (needed < state.step) parts_.saves.store->keep_around(needed);
}

}  // namespace holdfast::train
