#include "runtime/train/trainer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "checkpoint/ram_tier.h"
#include "parallel/comm/agreement.h"
#include "runtime/rank/watch.h"
#include "runtime/save/save.h"
#include "runtime/train/damage_judgement.h"

namespace holdfast::inline train {
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

// Returns the intervals of the config. A run that may go back has snapshots where it goes back to.
CheckpointConfig save_intervals(const Config& config) {
  CheckpointConfig intervals = config.checkpoint;
  const bool may_go_back = config.verdict.preset == "guard" && config.verdict.on_spike == "rollback";
  if (may_go_back && intervals.ram_every_steps == CheckpointConfig::interval_auto)
    intervals.ram_every_steps = config.verdict.rollback_steps;
  return intervals;
}

}  // namespace

Trainer::Trainer(const Parts& parts)
    : parts_(parts),
      trace_(parts.worker),
      uploads_({.env = parts.worker.rank().env,
                .faults = parts.worker.rank().faults,
                .store = parts.store,
                .config = parts.worker.rank().config,
                .rank = parts.worker.rank().communicator.rank(),
                .ranks = parts.worker.rank().communicator.size()}) {
  // The initial estimate of the duration of a save is that of a slow disk.
  constexpr std::int64_t slow_ns_per_byte = 10;
  longest_save_ns_ = static_cast<std::int64_t>(parts.worker.state_view().state_bytes()) * slow_ns_per_byte;
  if (parts.worker.snapshots().bytes() > 0)
    saver_ = std::make_unique<StateSaver>(parts.worker.state_view(), parts.store, parts.writer, parts.resumed,
                                          parts.tier);
}

// Runs the steps. An error that all ranks agree on ends the run only after the saves that it has begun,
// because they are of earlier steps, and sound.
Result<ExitCode> Trainer::run() {
  Result<ExitCode> code = run_steps();
  const bool peers_are_there = code.ok() || code.error().code != ExitCode::communication;
  if (saver_ && peers_are_there) {
    if (Result<void> finished = saver_->finish(); code.ok() && !finished.ok()) code = finished.error();
    report_saves();
  }
  if (goes_back_together_) {
    if (const Result<void> left = leave_steps(); !left.ok()) return left.error();
  }
  return code;
}

Result<ExitCode> Trainer::run_steps() {
  Worker& worker = parts_.worker;
  const Config& config = worker.rank().config;
  const auto last_step = static_cast<std::uint64_t>(config.training.steps);
  HF_TRY_VOID(uploads_.offer_newest(worker.rank().communicator, worker.rank().waiter));
  HF_TRY(const bool stops, stops_before_a_step());
  if (stops) {
    HF_TRY_VOID(prepare_saves());
    HF_TRY_VOID(save());
    return end(ExitCode::saved);
  }
  // An evaluation that was due at a stop is skipped there and made up for here.
  if (worker.state().step > 0 && evaluation_due(worker.state().step)) HF_TRY_VOID(evaluate());
  HF_TRY_VOID(prepare_saves());
  if (parts_.saves_first) HF_TRY_VOID(save());
  HF_TRY_VOID(free_old_snapshots());
  while (worker.state().step < last_step) {
    HF_TRY(const StepOutcome outcome, step());
    const bool last = outcome.step == last_step;
    const bool stopping = outcome.stop && !last;
    if (outcome.restart.wanted && !last && !stopping) {
      HF_TRY(const bool ends, end_for_another_start(outcome.due.wants_disk(), outcome.restart.hosts_leaving));
      if (ends) return ExitCode::saved;
    }
    if (outcome.grow && !last && !stopping) return pause_for_resize(outcome.due.wants_disk());
    if (!stopping && evaluation_due(outcome.step)) HF_TRY_VOID(evaluate());
    if (last || stopping) {
      HF_TRY_VOID(save());
    } else if (const bool to_disk = outcome.due.wants_disk(); to_disk || outcome.due.to_ram) {
      HF_TRY_VOID(begin_save(to_disk));
    }
    if (stopping) return end(ExitCode::saved);
  }
  return end(ExitCode::done);
}

std::unique_ptr<StateSaver> Trainer::give_up_saves() {
  if (saver_) saver_->cancel();
  return std::move(saver_);
}

// Returns whether a rank was asked to stop before the first step. State that is only in memory is then saved
// without another step, which may take longer than there is time.
Result<bool> Trainer::stops_before_a_step() {
  if (!parts_.resumed.has_value()) return false;
  std::array<std::int64_t, 1> stops = {parts_.stop.stop_requested() ? 1 : 0};
  HF_TRY_VOID(all_reduce_sum(parts_.worker.rank().communicator, parts_.worker.rank().waiter, stops));
  return stops[0] > 0;
}

// Saves the state and leaves the steps, so that the run can be resized. An evaluation that is due is made up
// for when the run goes on. Nothing is computed again: where there is no RAM tier the disk has the state.
Result<ExitCode> Trainer::pause_for_resize(bool to_disk) {
  if (saver_ && saver_->has_ram_tier()) {
    HF_TRY_VOID(seal_in_memory(to_disk));
    HF_TRY_VOID(saver_->finish());
    report_saves();
  } else {
    HF_TRY_VOID(save());
  }
  HF_TRY_VOID(leave_steps());
  stands_still_ = true;
  return ExitCode::done;
}

Result<void> Trainer::seal_in_memory(bool to_disk) {
  HF_TRY_VOID(check_state(/*update_follows=*/false));
  HF_TRY_VOID(saver_->finish_with_replicas());
  HF_TRY(const bool begun, saver_->begin(to_disk));
  if (!begun) HF_TRY_VOID(outcome_of(saver_->begin(/*to_disk=*/true)));
  if (to_disk || !begun) answer_requests();
  return {};
}

// Ends what is still under way in parallel with the steps.
Result<void> Trainer::leave_steps() {
  Worker& worker = parts_.worker;
  HF_TRY_VOID(worker.parameter_gather().finish());
  trace_.finish();
  uploads_.cancel();
  return agree_on_outcome(worker.rank().communicator, worker.rank().waiter, trouble_,
                          worker.rank().env.host_name());
}

// Seals the state where the next start finds it. Returns false where a host is to be left and the state would
// not survive without it; the run goes on, and the next step is another try.
Result<bool> Trainer::end_for_another_start(bool to_disk, int hosts_leaving) {
  if (hosts_leaving == 0) {
    HF_TRY_VOID(outcome_of(pause_for_resize(to_disk)));
    stands_still_ = false;
  } else {
    HF_TRY(const bool sealed, seal_elsewhere(to_disk, hosts_leaving));
    if (!sealed) {
      if (!std::exchange(reported_unsealed_, true))
        parts_.progress.say(
            "the state is not safe without the hosts that are to be left: they are left when it is");
      return false;
    }
    HF_TRY_VOID(leave_steps());
  }
  ends_for_another_start_ = true;
  return true;
}

// Seals the state so that it survives the loss of the hosts that leave, and returns whether this succeeded.
// Where one host leaves and all of the state has replicas on other hosts, a confirmed snapshot is enough;
// else the state goes to the disk, which is not lost with the hosts unless each host has its own.
Result<bool> Trainer::seal_elsewhere(bool to_disk, int hosts_leaving) {
  const std::uint64_t step = parts_.worker.state().step;
  if (hosts_leaving == 1 && parts_.survives_host && saver_ && saver_->has_replicas()) {
    HF_TRY_VOID(seal_in_memory(to_disk));
    HF_TRY_VOID(saver_->finish_with_replicas());
    report_saves();
    if (saver_->confirmed_step() == step) return true;
  }
  const bool in_parts = parts_.tier.has_value() && parts_.tier->in_parts();
  if (in_parts && (hosts_leaving > 1 || parts_.tier->copies() == nullptr)) return false;
  const Result<void> saved = save();
  if (saved.ok()) return true;
  if (saved.error().code == ExitCode::communication) return saved.error();
  save_failed({.step = step, .outcome = saved});
  return false;
}

Result<void> Trainer::prepare_saves() {
  if (!saver_) return {};
  HF_TRY_VOID(saver_->prepare());
  if (!saver_->warning().empty()) parts_.progress.say("no RAM snapshots: " + saver_->warning());
  if (!saver_->replica_warning().empty())
    parts_.progress.say("no replicas of RAM snapshots: " + saver_->replica_warning());
  Worker& worker = parts_.worker;
  if (!parts_.cadence.has_value())
    parts_.cadence.emplace(save_intervals(worker.rank().config), worker.rank().env.monotonic_ns());
  cadence_ = &*parts_.cadence;
  const MeshShape& shape = worker.rank().mesh.shape();
  cadence_->begin_epoch(
      {.history = parts_.failures,
       .has_ram_tier = saver_->has_ram_tier(),
       .survives_host = parts_.survives_host && saver_->has_replicas(),
       .work = static_cast<double>(worker.workload().lanes.waves()) / (shape.pipeline * shape.tensor),
       .snapshot_bytes = static_cast<double>(worker.snapshots().bytes())});
  return {};
}

// Removes the RAM snapshots that the run resumed from where there is no RAM tier: no newer snapshot would
// ever replace them, and they would take memory until the end of the run. They are removed when the state is
// on the disk; where the save fails they stay.
Result<void> Trainer::free_old_snapshots() {
  if (!parts_.resumed.has_value() || (saver_ && saver_->has_ram_tier())) return {};
  Worker& worker = parts_.worker;
  const Result<void> saved = save();
  if (!saved.ok() &&
      (worker.rank().communicator.abandoned() || saved.error().code == ExitCode::communication))
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

// Ends the run. Waiting lines have no later step in which to be tried again: either all of them are written
// to their files now, or the run ends with that error.
Result<ExitCode> Trainer::end(ExitCode code) {
  Worker& worker = parts_.worker;
  enter(worker.rank().watch, Phase::end, worker.state().step, worker.rank().config.watchdog.ceiling_ms);
  HF_TRY_VOID(worker.parameter_gather().finish());
  trace_.finish();
  // Uploads are cancelled after a request to stop, because there may be no time for them; the next start
  // offers this checkpoint again.
  if (code != ExitCode::done) uploads_.cancel();
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
  return code;
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
  if (outcome.ends_steps) return end_by_verdict(*outcome.verdict, outcome.leaving_ranks, outcome.rollback);
  if (outcome.verdict.has_value()) parts_.progress.judged(*outcome.verdict, {});
  if (parts_.starts_ranks_ns != nullptr)
    *parts_.starts_ranks_ns = outcome.starts_ranks ? env.monotonic_ns() : 0;
  const std::int64_t duration_ns = env.monotonic_ns() - begin_ns;
  if (SampleLog* ledger = parts_.worker.ledger()) keep(ledger->close_step(outcome.step));
  if (outcome.due.asked_for) step_asked_for_ = outcome.step;
  longest_step_ns_ = std::max(longest_step_ns_, duration_ns);
  RunState& state = parts_.worker.state();
  state.recent_steps.add(parts_.progress.stepped(outcome, state.data_digest, duration_ns));
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

// Returns the error by which a verdict ends the steps. Where a rank has to leave, the others lose it like one
// that died; where the state cannot be trusted, all go back to one that can. Batches that are left out say
// nothing against the saves under way.
Error Trainer::end_by_verdict(VerdictEvent verdict, std::span<const int> leaving_ranks,
                              const std::optional<Rollback>& rollback) {
  const RankContext& rank = parts_.worker.rank();
  Communicator& all = rank.communicator;
  rollback_ = rollback;
  const bool leaves_batches = rollback.has_value() && rollback->data_cursor.has_value();
  if (!record_rollback(verdict.reason)) {
    rollback_.reset();
    if (leaves_batches) {
      verdict.action = name_of(VerdictAction::stop);
      verdict.reason += "; but no such state is left. Set verdict.on_spike = \"tell\" to go on from here";
    } else {
      verdict.reason += fmt::format("; but no state of step {} or before is left, so the newest one counts",
                                    rollback->trusted_step);
    }
  }
  parts_.progress.judged(verdict, rollback_);
  goes_back_together_ = rollback_.has_value() && leaves_batches;
  if (goes_back_together_ || verdict.action == name_of(VerdictAction::stop))
    return fail(ExitCode::numerics, "{}", verdict.reason);
  goes_back_together_ = all.size() == 1;
  if (goes_back_together_) return fail(ExitCode::communication, "{}", verdict.reason);
  has_to_leave_ = std::ranges::find(leaving_ranks, all.rank()) != leaving_ranks.end();
  // No rank gives up the group before all have the verdict. One that is given up here has it.
  static_cast<void>(barrier(all, rank.waiter).ok());
  all.abandon();
  return fail(ExitCode::communication, "{}", verdict.reason);
}

// Records a roll-back before anything else happens, so that whoever dies now the run goes back. Returns false,
// on all ranks, where there is no state to go back to. What fails otherwise is tried again by the recovery.
bool Trainer::record_rollback(const std::string& reason) {
  if (!rollback_.has_value() || !parts_.record_rollback) return true;
  std::array<std::int64_t, 1> refusals = {parts_.record_rollback(*rollback_, reason) ? 0 : 1};
  const RankContext& rank = parts_.worker.rank();
  return !all_reduce_sum(rank.communicator, rank.waiter, refusals).ok() || refusals[0] == 0;
}

// Looks for damage of the state before it is saved: what the last update found, and where no update follows all
// that is in memory.
Result<void> Trainer::check_state(bool update_follows) {
  if (!parts_.worker.optimizer().checks_state()) return {};
  HF_TRY(std::optional<DamagedState> damaged, look_for_damage(parts_.worker));
  if (!damaged.has_value() && !update_follows) {
    HF_TRY(damaged, examine_state(parts_.worker));
  }
  if (!damaged.has_value()) return {};
  return end_by_verdict(damaged->report, damaged->leaving_ranks,
                        Rollback{.trusted_step = damaged->trusted_step});
}

// Returns whether the run pauses for new ranks after the coming step, which is saved as `due` says.
bool Trainer::grows(const SaveDue& due) {
  if (parts_.growth == nullptr) return false;
  Growth::Saves saves;
  if (saver_) saves = {.is_settled = saver_->is_settled(), .under_way = saver_->saves_under_way()};
  if (due.wants_disk()) saves.under_way.push_back(parts_.worker.state().step + 1);
  return parts_.growth->due(parts_.worker.rank().env.monotonic_ns(), saves);
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

void Trainer::note_save(std::int64_t duration_ns) {
  longest_save_ns_ = saved_ ? std::max(longest_save_ns_, duration_ns) : duration_ns;
  saved_ = true;
}

// Keeps checkpoints that a verdict may want to go back to.
void Trainer::keep_what_is_needed() {
  const Worker& worker = parts_.worker;
  const VerdictConfig& verdict = worker.rank().config.verdict;
  const RunState& state = worker.state();
  if (verdict.preset != "guard") return;
  std::uint64_t needed = state.step;
  if (verdict.on_spike == "rollback")
    needed = std::min(needed, rollback_target(state.step + 1, verdict.rollback_steps));
  const bool compares_replicas =
      worker.workload().audit_every_steps > 0 && worker.workload().lanes.ranks() > 1;
  if (compares_replicas && verdict.on_wrong_rank == "rollback") needed = std::min(needed, state.audited_step);
  if (needed < state.step) parts_.store.keep_around(needed);
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

// Saves at once on request where no save is due before the end and there is therefore no memory for a copy of
// the state, so that the steps wait. Like any other save before the end, this one may fail.
Result<void> Trainer::save_on_request() {
  Result<void> outcome = save();
  if (outcome.ok() || outcome.error().code == ExitCode::communication) return outcome;
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
    cadence_->ended(report);
    if (report.outcome.ok()) {
      note_save(report.drain_ns + report.publish_ns);
      saved(report);
    } else {
      save_failed(report);
    }
  }
}

void Trainer::save_failed(const SaveReport& report) {
  // Another writer has replaced this one, so the run ends here and its log no longer belongs to this process.
  if (report.outcome.error().code == ExitCode::communication) return keep(report.outcome);
  parts_.progress.save_failed(report);
  if (parts_.requests != nullptr) parts_.requests->ended(report.step, report.outcome);
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

void Trainer::report_uploads() {
  for (const UploadReport& report : uploads_.take_reports()) parts_.progress.uploaded(report);
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
  saved({.step = step,
         .outcome = {},
         .bytes = bytes,
         .stall_ns = duration_ns,
         .drain_ns = duration_ns,
         .durable_ns = duration_ns,
         .duration_ns = duration_ns});
  return {};
}

}  // namespace holdfast::inline train
