// Trainer's part for saves: when one is due, how it begins, and what is told of it when it ends.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "checkpoint/candidates.h"
#include "checkpoint/ram_tier.h"
#include "parallel/comm/agreement.h"
#include "runtime/rank/return_wait.h"
#include "runtime/rank/watch.h"
#include "runtime/save/save.h"
#include "runtime/save/save_failure.h"
#include "runtime/train/trainer.h"

namespace holdfast::train {
namespace {

// Returns the intervals of the config. A run that may go back has snapshots where it goes back to.
CheckpointConfig save_intervals(const Config& config) {
  CheckpointConfig intervals = config.checkpoint;
  const bool may_go_back = config.verdict.preset == "guard" && config.verdict.on_spike == "rollback";
  if (may_go_back && intervals.ram_every_steps == CheckpointConfig::interval_auto)
    intervals.ram_every_steps = config.verdict.rollback_steps;
  return intervals;
}

}  // namespace

Result<void> Trainer::prepare_saves() {
  if (!saver_) return {};
  HF_TRY_VOID(saver_->prepare());
  if (!saver_->warning().empty()) parts_.progress.say("no RAM snapshots: " + saver_->warning());
  if (!saver_->replica_warning().empty())
    parts_.progress.say("no replicas of RAM snapshots: " + saver_->replica_warning());
  Worker& worker = parts_.worker;
  const bool is_first_epoch = !parts_.cadence.has_value();
  if (is_first_epoch)
    parts_.cadence.emplace(save_intervals(worker.rank().config), worker.rank().env.monotonic_ns());
  cadence_ = &*parts_.cadence;
  const MeshShape& shape = worker.rank().mesh.shape();
  cadence_->begin_epoch(
      {.history = parts_.failures,
       .has_ram_tier = saver_->has_ram_tier(),
       .survives_host = parts_.survives_host && saver_->has_replicas(),
       .work = static_cast<double>(worker.workload().lanes.waves()) / (shape.pipeline * shape.tensor),
       .snapshot_bytes = static_cast<double>(worker.snapshots().bytes()),
       .saved_step = is_first_epoch ? newest_saved_step() : 0});
  return {};
}

// Returns the step of the newest checkpoint when training begins, on a rank that tells of it. State that is in memory
// alone is newer than that.
std::uint64_t Trainer::newest_saved_step() const {
  if (!parts_.resumed.has_value()) return parts_.worker.state().step;
  if (parts_.claim == nullptr) return 0;
  const StorageWait storage(parts_.worker.rank().watch, "the checkpoints");
  const CheckpointStore::Published published = parts_.store.published();
  if (!published.candidates.ok()) return 0;
  for (const CheckpointCandidate& each : *published.candidates) {  // newest first
    if (each.manifest.ok() && !each.discarded) return each.step;
  }
  return 0;
}

// Removes the RAM snapshots that the run resumed from where there is no RAM tier: no newer snapshot would
// ever replace them, and they would take memory until the end of the run. They are removed when the state is
// on the disk; where the save fails they stay.
Result<void> Trainer::free_old_snapshots() {
  if (!parts_.resumed.has_value() || (saver_ && saver_->has_ram_tier())) return {};
  Worker& worker = parts_.worker;
  const Result<void> saved = save();
  if (!saved.ok() && (worker.rank().communicator.abandoned() ||
                      saved.error().code == ExitCode::communication || is_of_unfit_ranks(saved.error())))
    return saved;
  if (!saved.ok()) {
    parts_.progress.say("the RAM snapshots of the last start stay: " + saved.error().message);
    return {};
  }
  return agree_on_outcome(
      worker.rank().communicator, worker.rank().waiter,
      outcome_of(remove_snapshots(worker.rank().env, digest_of(worker.state().shm_run_id))),
      worker.rank().env.host_name());
}

// Returns the saves that are due after the coming step. A requested save waits for the save before it, so
// that the next steps do not wait for the disk, and for a growth, which would itself have to wait for the
// save.
SaveDue Trainer::due() {
  Worker& worker = parts_.worker;
  const bool growth_waits = parts_.growth != nullptr && parts_.growth->ready();
  SaveDue due;
  if (cadence_ != nullptr)
    due = cadence_->due(worker.state().step + 1, worker.rank().env.monotonic_ns(), growth_waits);
  const bool asked_for =
      parts_.stop.save_requested() || (parts_.requests != nullptr && parts_.requests->waiting());
  due.asked_for = asked_for && !growth_waits && !(saver_ && saver_->is_saving());
  return due;
}

void Trainer::note_save(std::int64_t duration_ns) {
  longest_save_ns_ = saved_ ? std::max(longest_save_ns_, duration_ns) : duration_ns;
  saved_ = true;
}

Result<void> Trainer::begin_save(bool to_disk) {
  HF_TRY_VOID(check_state(/*update_follows=*/true));
  if (!saver_) return save_on_request();
  keep_what_is_needed();
  const HostSpan span(&parts_.worker.rank().spans, {.kind = SpanKind::save});
  Env& env = parts_.worker.rank().env;
  beside_save(parts_.worker.rank().watch);
  const std::int64_t begin_ns = env.monotonic_ns();
  HF_TRY(const bool begun, saver_->begin(to_disk));
  const std::int64_t now_ns = env.monotonic_ns();
  if (begun) {
    cadence_->began({.step = parts_.worker.state().step,
                     .to_disk = to_disk,
                     .stall_ns = now_ns - begin_ns,
                     .now_ns = now_ns});
  }
  if (to_disk) answer_requests();
  report_saves();
  return {};
}

// Saves the state and waits until it is complete, as nothing comes after; an error ends the run.
Result<void> Trainer::save() {
  Worker& worker = parts_.worker;
  HF_TRY_VOID(check_state(/*update_follows=*/false));
  answer_requests();
  if (saver_) HF_TRY_VOID(saver_->finish());
  report_saves();
  enter(worker.rank().watch, Phase::save, worker.state().step, worker.rank().config.watchdog.ceiling_ms);
  const HostSpan span(&worker.rank().spans, {.kind = SpanKind::save});
  const std::int64_t begin_ns = worker.rank().env.monotonic_ns();
  keep_what_is_needed();
  HF_TRY(const std::uint64_t bytes, save_checkpoint(worker.state_view(), parts_.store,
                                                    worker.rank().config.checkpoint.keep, parts_.tier));
  const std::int64_t duration_ns = worker.rank().env.monotonic_ns() - begin_ns;
  note_save(duration_ns);
  const std::uint64_t step = worker.state().step;
  if (cadence_ != nullptr) cadence_->saved(step, begin_ns);
  saved({.step = step,
         .outcome = {},
         .bytes = bytes,
         .stall_ns = duration_ns,
         .drain_ns = duration_ns,
         .durable_ns = duration_ns,
         .duration_ns = duration_ns});
  return {};
}

// Saves the state after the last step, or at a stop. Where no rank can write it now, it is tried again for
// elastic.input_timeout, unless the run is to stop.
Result<void> Trainer::save_at_end() {
  constexpr std::int64_t longest_pause_ms = 10'000;
  const RankContext& rank = parts_.worker.rank();
  const std::int64_t limit_ms = rank.config.elastic.input_timeout_ms;
  ReturnWait wait({.env = rank.env,
                   .communicator = rank.communicator,
                   .timeout_ms = limit_ms,
                   .longest_pause_ms = longest_pause_ms,
                   .gives_up = [this] { return parts_.stop.stop_requested() || time_is_up(); }});
  while (true) {
    const Result<void> outcome = save();
    if (outcome.ok() || !ReturnWait::may_return(rank.communicator, outcome.error())) return outcome;
    enter(rank.watch, Phase::save, parts_.worker.state().step, rank.config.watchdog.ceiling_ms);
    HF_TRY(const bool again, wait.again(rank.waiter, [&] {
      parts_.progress.last_save_failed({.step = parts_.worker.state().step, .outcome = outcome}, unsaved(),
                                       limit_ms);
    }));
    if (!again) return outcome;
  }
}

// Returns what is in no checkpoint; none where no save was due before this one.
std::optional<UnsavedWork::Size> Trainer::unsaved() const {
  if (cadence_ == nullptr) return std::nullopt;
  return cadence_->unsaved(parts_.worker.state().step, parts_.worker.rank().env.monotonic_ns());
}

// Saves at once on request where no save is due before the end and there is therefore no memory for a copy of
// the state, so that the steps wait. Like any other save before the end, this one may fail.
Result<void> Trainer::save_on_request() {
  Result<void> outcome = save();
  if (outcome.ok() || outcome.error().code == ExitCode::communication || is_of_unfit_ranks(outcome.error()))
    return outcome;
  save_failed({.step = parts_.worker.state().step, .outcome = outcome});
  return {};
}

// Answers all requests for a save: the save that begins now is as new as any of them can have asked for.
void Trainer::answer_requests() {
  parts_.stop.save_begun(step_asked_for_ == parts_.worker.state().step);
  if (parts_.requests != nullptr) parts_.requests->begun(parts_.worker.state().step);
}

void Trainer::report_saves() {
  report_uploads();
  if (!saver_) return;
  for (const ReplicaReport& report : saver_->take_replica_reports()) {
    cadence_->replicated(report);
    parts_.progress.replicated(report);
  }
  for (const SaveReport& report : saver_->take_reports()) {
    cadence_->ended(report, parts_.worker.rank().env.monotonic_ns());
    if (report.outcome.ok()) {
      note_save(report.drain_ns + report.publish_ns);
      saved(report);
    } else {
      save_failed(report);
    }
  }
}

void Trainer::saved(const SaveReport& report) {
  const std::string directory = parts_.store.checkpoint_directory(report.step);
  parts_.progress.saved(report, directory);
  if (parts_.requests != nullptr) parts_.requests->ended(report.step, {});
  if (step_asked_for_ == report.step && report.step > 0) {
    step_asked_for_ = 0;
    parts_.progress.say(fmt::format("saved on request: step {} in {}", report.step, directory));
  }
  uploads_.offer(report.step);
}

void Trainer::save_failed(const SaveReport& report) {
  // Another writer has replaced this one, so the run ends here and its log no longer belongs to this process.
  if (report.outcome.error().code == ExitCode::communication) return keep(report.outcome);
  parts_.progress.save_failed(report, unsaved());
  if (parts_.requests != nullptr) parts_.requests->ended(report.step, report.outcome);
}

void Trainer::report_uploads() {
  for (const UploadReport& report : uploads_.take_reports()) parts_.progress.uploaded(report);
}

}  // namespace holdfast::train
