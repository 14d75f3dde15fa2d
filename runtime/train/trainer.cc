#include "runtime/train/trainer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/ram_tier.h"
#include "parallel/comm/agreement.h"
#include "runtime/rank/watch.h"

namespace holdfast::train {
namespace {

// StepSpan records a step with the processor time that the host thread takes for all of it: the cost of
// running a step besides what the device computes.
class StepSpan {
 public:
  explicit StepSpan(Worker& worker)
      : worker_(&worker), span_(worker.rank().spans.begin({.kind = SpanKind::step})) {
    if (span_ != nullptr) span_->begin.worked_ns = worker.rank().env.thread_processor_ns();
  }
  ~StepSpan() {
    if (!worker_->rank().spans.is_open(span_)) return;
    worker_->rank().spans.end(span_);
    span_->end.worked_ns = worker_->rank().env.thread_processor_ns();
  }
  StepSpan(const StepSpan&) = delete;
  StepSpan& operator=(const StepSpan&) = delete;

 private:
  Worker* worker_;
  Span* span_;
};

}  // namespace

Trainer::Trainer(const Parts& parts)
    : parts_(parts),
      trace_(parts.worker),
      uploads_({.env = parts.worker.rank().env,
                .faults = parts.worker.rank().faults,
                .store = parts.store,
                .config = parts.worker.rank().config,
                .rank = parts.worker.rank().communicator.rank(),
                .ranks = parts.worker.rank().communicator.size(),
                .domains = parts.tier.has_value() ? parts.tier->domains() : std::nullopt}) {
  // The initial estimate of the duration of a save is that of a slow disk.
  constexpr std::int64_t slow_ns_per_byte = 10;
  longest_save_ns_ = static_cast<std::int64_t>(parts.worker.state_view().state_bytes()) * slow_ns_per_byte;
  if (parts.worker.snapshots().bytes() > 0)
    saver_ = std::make_unique<StateSaver>(parts.worker.state_view(), parts.store, parts.writer, parts.resumed,
                                          parts.tier);
}

// Runs the steps. An error that all ranks agree on ends the run only after the saves that it has begun,
// because they are of earlier steps, and sound.
StepsEnd Trainer::run() {
  Result<StepsEnd::How> how = run_steps();
  if (verdict_.has_value()) return {.how = StepsEnd::How::verdict, .verdict = std::move(verdict_)};
  const bool peers_are_there = how.ok() || how.error().code != ExitCode::communication;
  if (peers_are_there) {
    if (const Result<void> finished = finish_saves(); how.ok() && !finished.ok()) how = finished.error();
  }
  if (!how.ok()) return fault(how.error());
  return {.how = *how};
}

StepsEnd Trainer::end_by_verdict(const Error& error, bool together) {
  // The error of the verdict counts, whatever becomes of the saves.
  if (error.code != ExitCode::communication) static_cast<void>(finish_saves().ok());
  const Result<void> left = together ? leave_steps() : Result<void>();
  StepsEnd end = fault(left.ok() ? error : left.error());
  end.goes_back_together = together;
  return end;
}

Result<void> Trainer::finish_saves() {
  if (!saver_) return {};
  Result<void> finished = saver_->finish();
  report_saves();
  return finished;
}

StepsEnd Trainer::fault(const Error& error) {
  StepsEnd end{.error = error,
               .ended_ns = parts_.worker.rank().env.monotonic_ns(),
               .starts_ranks_ns = starts_ranks_ns_};
  if (saver_) {
    end.unused_slot = saver_->unused_slot();
    end.kept_step = saver_->confirmed_step();
    saver_->cancel();
    end.saves = std::move(saver_);
  }
  // The snapshot that the state was resumed from stays until a newer one is confirmed.
  if (!end.kept_step.has_value() && parts_.resumed.has_value()) end.kept_step = parts_.resumed->step;
  return end;
}

Error Trainer::leave_by(StepsVerdict verdict) {
  verdict_ = std::move(verdict);
  return fail(ExitCode::communication, "{}", verdict_->event.reason);
}

Result<StepsEnd::How> Trainer::run_steps() {
  Worker& worker = parts_.worker;
  const Config& config = worker.rank().config;
  const auto last_step = static_cast<std::uint64_t>(config.training.steps);
  HF_TRY_VOID(uploads_.offer_newest(worker.rank().communicator, worker.rank().waiter));
  HF_TRY(const bool stops, stops_before_a_step());
  if (stops) {
    HF_TRY_VOID(prepare_saves());
    HF_TRY_VOID(save());
    return end(StepsEnd::How::saved);
  }
  // An evaluation that was due at a stop is skipped there and made up for here.
  if (worker.state().step > 0 && evaluation_due(worker.state().step)) HF_TRY_VOID(evaluate());
  HF_TRY_VOID(prepare_saves());
  if (parts_.saves_first) HF_TRY_VOID(save());
  HF_TRY_VOID(free_old_snapshots());
  // A rank whose step has changed in memory must not end alone: the vote of the next step finds it.
  while (worker.position().step_of(worker.state()) < last_step) {
    HF_TRY(const StepOutcome outcome, step());
    const bool last = outcome.step == last_step;
    const bool stopping = outcome.stop && !last;
    if (outcome.restart.wanted && !last && !stopping) {
      HF_TRY(const bool ends, end_for_another_start(outcome.due.wants_disk(), outcome.restart.hosts_leaving));
      if (ends) return StepsEnd::How::sealed;
    }
    if (outcome.grow && !last && !stopping) {
      HF_TRY_VOID(pause_for_resize(outcome.due.wants_disk()));
      return StepsEnd::How::paused;
    }
    if (!stopping && evaluation_due(outcome.step)) HF_TRY_VOID(evaluate());
    if (last || stopping) {
      HF_TRY_VOID(save_at_end());
    } else if (const bool to_disk = outcome.due.wants_disk(); to_disk || outcome.due.to_ram) {
      HF_TRY_VOID(begin_save(to_disk));
    }
    if (stopping) return end(StepsEnd::How::saved);
  }
  return end(StepsEnd::How::finished);
}

// Returns whether a rank was asked to stop before the first step. State that is only in memory is then saved
// without another step, which may take longer than there is time.
Result<bool> Trainer::stops_before_a_step() {
  if (!parts_.resumed.has_value()) return false;
  std::array<std::int64_t, 1> stops = {parts_.stop.stop_requested() ? 1 : 0};
  HF_TRY_VOID(all_reduce_sum(parts_.worker.rank().communicator, parts_.worker.rank().waiter, stops));
  return stops[0] > 0;
}

// Ends the run. Waiting lines have no later step in which to be tried again: either all of them are written
// to their files now, or the run ends with that error.
Result<StepsEnd::How> Trainer::end(StepsEnd::How how) {
  Worker& worker = parts_.worker;
  enter(worker.rank().watch, Phase::end, worker.state().step, worker.rank().config.watchdog.ceiling_ms);
  HF_TRY_VOID(worker.parameter_gather().finish());
  trace_.finish();
  // Uploads are cancelled after a request to stop, because there may be no time for them; the next start
  // offers this checkpoint again.
  if (how != StepsEnd::How::finished) uploads_.cancel();
  HF_TRY_VOID(uploads_.finish(worker.rank().communicator, worker.rank().waiter, [&] {
    report_uploads();
    mark(worker.rank().watch);  // the command has its own time limit
  }));
  keep(parts_.progress.flush());
  if (SampleLog* ledger = worker.ledger()) keep(ledger->flush());
  HF_TRY_VOID(agree_on_outcome(worker.rank().communicator, worker.rank().waiter, trouble_,
                               worker.rank().env.host_name()));
  // The complete state is on the disk, so the RAM snapshots can go.
  if (saver_) saver_->finish_making_slots();
  if (const Result<SharedSnapshots> removed =
          remove_snapshots(worker.rank().env, digest_of(worker.state().shm_run_id));
      !removed.ok()) {
    parts_.progress.say("RAM snapshots stay: " + removed.error().message);
  }
  return how;
}

void Trainer::keep(const Result<void>& result) {
  if (trouble_.ok()) trouble_ = result;
}

bool Trainer::evaluation_due(std::uint64_t step) const {
  const Config& config = parts_.worker.rank().config;
  if (!parts_.held_out) return false;
  const auto every_steps = static_cast<std::uint64_t>(config.evaluation.every_steps);
  return (every_steps > 0 && step % every_steps == 0) ||
         step == static_cast<std::uint64_t>(config.training.steps);
}

// Returns whether run.stop_after leaves no time for another step. Without a stop now the run makes this step
// with what may be due after it, then another step and its save. The estimate of their time is a quarter more
// than the longest durations seen.
bool Trainer::time_is_up() const {
  const std::int64_t limit_ms = parts_.worker.rank().config.run.stop_after_ms;
  if (limit_ms == 0) return false;
  const std::int64_t elapsed_ns = parts_.worker.rank().env.monotonic_ns() - parts_.started_ns;
  const std::int64_t needed_ns =
      (2 * longest_step_ns_ + longest_evaluation_ns_ + 2 * longest_save_ns_) / 4 * 5;
  return elapsed_ns + needed_ns >= limit_ms * 1'000'000;
}

Result<StepOutcome> Trainer::step() {
  Env& env = parts_.worker.rank().env;
  if (parts_.claim != nullptr) keep(parts_.claim->still_held());
  const bool stop = parts_.stop.stop_requested() || time_is_up();
  const SaveDue due = this->due();
  const bool grow = grows(due);
  enter(parts_.worker.rank().watch, Phase::step, parts_.worker.state().step + 1);
  HF_TRY_VOID(trace_.before_step(parts_.worker.state().step + 1));
  parts_.worker.rank().spans.begin_step(parts_.worker.state().step + 1);
  const std::int64_t begin_ns = env.monotonic_ns();
  const bool is_snapshotting = saver_ && saver_->is_snapshotting(), is_saving = saver_ && saver_->is_saving();
  if (is_snapshotting || is_saving) beside_save(parts_.worker.rank().watch);
  HF_TRY(const StepOutcome outcome, [&] {
    const StepSpan span(parts_.worker);
    return run_step(parts_.worker, {.stop = stop,
                                    .grow = grow,
                                    .starts_ranks = parts_.growth != nullptr && parts_.growth->announces(),
                                    .restart = parts_.requests != nullptr ? parts_.requests->restart_request()
                                                                          : RestartRequest{},
                                    .trouble = trouble_,
                                    .saver = saver_.get(),
                                    .uploads = &uploads_,
                                    .due = due});
  }());
  if (outcome.ends_steps) {
    return leave_by(
        {.event = *outcome.verdict, .leaving_ranks = outcome.leaving_ranks, .rollback = outcome.rollback});
  }
  if (outcome.verdict.has_value()) parts_.progress.judged(*outcome.verdict, {});
  starts_ranks_ns_ = outcome.starts_ranks ? env.monotonic_ns() : 0;
  const std::int64_t duration_ns = env.monotonic_ns() - begin_ns;
  if (SampleLog* ledger = parts_.worker.ledger()) keep(ledger->close_step(outcome.step));
  if (outcome.due.asked_for) step_asked_for_ = outcome.step;
  longest_step_ns_ = std::max(longest_step_ns_, duration_ns);
  parts_.progress.stepped(outcome, parts_.worker.state().data_digest, duration_ns);
  HF_TRY_VOID(outcome.gathers);
  if (saver_) HF_TRY_VOID(saver_->advance(outcome.saves));
  HF_TRY_VOID(
      uploads_.advance(parts_.worker.rank().communicator, parts_.worker.rank().waiter, outcome.saves));
  report_saves();
  if (RankWatch* const watch = parts_.worker.rank().watch; watch != nullptr) {
    const std::string lost = watch->take_lost_spares();
    if (!lost.empty()) parts_.progress.lost_spares(outcome.step, lost);
  }
  note_steps_cost(outcome.step, {.duration_ns = env.monotonic_ns() - begin_ns,
                                 .beside_snapshot = is_snapshotting,
                                 .beside_save = is_saving});
  return outcome;
}

// Returns whether the run pauses for new ranks after the coming step, which is saved as `due` says.
bool Trainer::grows(const SaveDue& due) {
  if (parts_.growth == nullptr) return false;
  Growth::Saves saves;
  if (saver_) saves = {.is_settled = saver_->is_settled(), .under_way = saver_->saves_under_way()};
  if (due.wants_disk()) saves.under_way.push_back(parts_.worker.state().step + 1);
  return parts_.growth->due(parts_.worker.rank().env.monotonic_ns(), saves);
}

void Trainer::note_steps_cost(std::uint64_t step, const SaveCadence::Step& cost) {
  if (cadence_ == nullptr) return;
  if (const std::optional<std::int64_t> copy_ns = saver_->take_copy_ns()) cadence_->copied(*copy_ns);
  cadence_->stepped(cost);
  if (const std::optional<IntervalChoice> choice = cadence_->take_choice())
    parts_.progress.chose_interval(step, *choice);
  if (const std::optional<FailureCost> costs = cadence_->take_failure_cost())
    parts_.progress.set_failure_cost(step, *costs);
}

Result<void> Trainer::evaluate() {
  Env& env = parts_.worker.rank().env;
  enter(parts_.worker.rank().watch, Phase::evaluation, parts_.worker.state().step);
  const std::int64_t begin_ns = env.monotonic_ns();
  const HostSpan span(&parts_.worker.rank().spans, {.kind = SpanKind::evaluation});
  HF_TRY(const double loss, parts_.held_out->loss(parts_.worker));
  const std::int64_t duration_ns = env.monotonic_ns() - begin_ns;
  longest_evaluation_ns_ = std::max(longest_evaluation_ns_, duration_ns);
  parts_.progress.evaluated(parts_.worker.state().step, loss, duration_ns);
  return {};
}

}  // namespace holdfast::train
