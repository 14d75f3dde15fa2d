#include "runtime/train/trainer.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
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

Trainer::Trainer(TrainingParts parts)
    : parts_(std::move(parts)),
      rank_(parts_.worker.rank()),
      saves_(parts_, trouble_),
      trace_(parts_.worker),
      stragglers_(parts_.worker, parts_.progress, parts_.startup_ns) {}

// Runs the steps. An error that all ranks agree on ends the run only after the saves that it has begun,
// because they are of earlier steps, and sound.
StepsEnd Trainer::run() {
  Result<StepsEnd::How> how = run_steps();
  if (!verdict_.has_value()) verdict_ = saves_.take_verdict();
  if (verdict_.has_value()) return {.how = StepsEnd::How::verdict, .verdict = std::move(verdict_)};
  if (how.ok() || how.error().code != ExitCode::communication) {  // all ranks are there
    if (const Result<void> finished = saves_.finish(); how.ok() && !finished.ok()) how = finished.error();
    verdict_ = saves_.take_verdict();
    if (verdict_.has_value()) return {.how = StepsEnd::How::verdict, .verdict = std::move(verdict_)};
  }
  if (!how.ok()) return fault(how.error());
  return {.how = *how};
}

StepsEnd Trainer::end_by_verdict(const Error& error, bool together, VerdictAction action) {
  // The error of the verdict counts, whatever becomes of the saves.
  if (error.code != ExitCode::communication) static_cast<void>(saves_.finish().ok());
  Result<void> left = together ? leave_steps() : Result<void>();
  if (action == VerdictAction::save_and_stop) left = save_by_verdict();
  StepsEnd end = fault(left.ok() ? error : left.error());
  end.goes_back_together = together;
  return end;
}

// Saves the state that the step of the verdict began from. Returns an error where a peer is gone.
Result<void> Trainer::save_by_verdict() {
  if (parts_.worker.state().step == 0) return {};  // another start makes the same
  const Result<void> saved =
      saves_.save_at_end([this] { return parts_.stop.stop_requested() || time_is_up(); });
  if (saved.ok() || rank_.communicator.abandoned()) return saved;
  parts_.progress.say("the state before that step is not saved: " + saved.error().message);
  return {};
}

StepsEnd Trainer::fault(const Error& error) {
  const std::int64_t now_ns = rank_.env.monotonic_ns();
  return {.error = error, .saves = saves_.give_up(), .ended_ns = now_ns, .starts_ranks_ns = starts_ranks_ns_};
}

Result<StepsEnd::How> Trainer::run_steps() {
  Worker& worker = parts_.worker;
  const Config& config = rank_.config;
  const auto last_step = static_cast<std::uint64_t>(config.training.steps);
  HF_TRY_VOID(saves_.offer_newest());
  HF_TRY(const bool stops, stops_before_a_step());
  if (stops) {
    HF_TRY_VOID(saves_.prepare());
    HF_TRY_VOID(saves_.save());
    return end(StepsEnd::How::saved);
  }
  // An evaluation that was due at a stop is skipped there and made up for here.
  if (worker.state().step > 0 && evaluation_due(worker.state().step)) HF_TRY_VOID(evaluate());
  HF_TRY_VOID(saves_.prepare());
  if (parts_.saves_first) HF_TRY_VOID(saves_.save());
  HF_TRY_VOID(saves_.free_old_snapshots());
  HF_TRY_VOID(stragglers_.begin());
  // A rank whose step has changed in memory must not end alone: the vote of the next step finds it.
  while (worker.position().step_of(worker.state()) < last_step) {
    HF_TRY(const StepOutcome outcome, step());
    const bool last = outcome.step == last_step;
    const bool stopping = outcome.stop && !last;
    if (!last && !stopping) {
      HF_TRY(const std::string connections, worker.advance_connections());
      if (!connections.empty()) parts_.progress.say(connections);
    }
    if (outcome.restart.wanted && !last && !stopping) {
      HF_TRY(const bool sealed, seal_for_another_start(outcome));
      if (sealed) return StepsEnd::How::sealed;
    }
    if (outcome.grow && !last && !stopping) {
      HF_TRY_VOID(saves_.seal(outcome.due.wants_disk()));
      HF_TRY_VOID(leave_steps());
      return StepsEnd::How::paused;
    }
    if (!stopping && evaluation_due(outcome.step)) HF_TRY_VOID(evaluate());
    if (last || stopping) {
      HF_TRY_VOID(saves_.save_at_end([this] { return parts_.stop.stop_requested() || time_is_up(); }));
    } else if (const bool to_disk = outcome.due.wants_disk(); to_disk || outcome.due.to_ram) {
      HF_TRY_VOID(while_saving([&] { return saves_.begin(to_disk); }));
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
  HF_TRY_VOID(all_reduce_sum(rank_.communicator, rank_.waiter, stops));
  return stops[0] > 0;
}

// Ends the run. Waiting lines have no later step in which to be tried again: either all of them are written
// to their files now, or the run ends with that error.
Result<StepsEnd::How> Trainer::end(StepsEnd::How how) {
  Worker& worker = parts_.worker;
  enter(rank_.watch, Phase::end, worker.state().step, rank_.config.watchdog.ceiling_ms);
  HF_TRY_VOID(worker.parameter_gather().finish());
  trace_.finish();
  stragglers_.finish();
  // Uploads are cancelled after a request to stop, because there may be no time for them; the next start
  // offers this checkpoint again.
  HF_TRY_VOID(saves_.finish_uploads(/*cancels=*/how != StepsEnd::How::finished));
  keep(parts_.progress.flush());
  if (SampleLog* ledger = worker.ledger()) keep(ledger->flush());
  HF_TRY_VOID(agree_on_outcome(rank_.communicator, rank_.waiter, trouble_, rank_.env.host_name()));
  saves_.remove_snapshots();
  return how;
}

// Seals the state where the next start finds it. Returns false where a host is to be left and the state would
// not survive without it; the run goes on, and the next step is another try.
Result<bool> Trainer::seal_for_another_start(const StepOutcome& outcome) {
  const bool to_disk = outcome.due.wants_disk();
  bool sealed = true;
  if (outcome.restart.hosts_leaving == 0) {
    HF_TRY_VOID(saves_.seal(to_disk));
  } else {
    HF_TRY(sealed, saves_.seal_elsewhere(to_disk, outcome.restart.hosts_leaving));
  }
  if (sealed) HF_TRY_VOID(leave_steps());
  if (!sealed && !std::exchange(reported_unsealed_, true)) {
    parts_.progress.say(
        "the state is not safe without the hosts that are to be left: they are left when it is");
  }
  return sealed;
}

// Ends what is still under way in parallel with the steps. Where they go on later, nothing is computed again, and an
// evaluation that is due is made up for.
Result<void> Trainer::leave_steps() {
  HF_TRY_VOID(parts_.worker.parameter_gather().finish());
  trace_.finish();
  stragglers_.finish();
  saves_.cancel_uploads();
  return agree_on_outcome(rank_.communicator, rank_.waiter, trouble_, rank_.env.host_name());
}

void Trainer::keep(const Result<void>& result) {
  if (trouble_.ok()) trouble_ = result;
}

bool Trainer::evaluation_due(std::uint64_t step) const {
  const Config& config = rank_.config;
  if (!parts_.held_out) return false;
  const auto every_steps = static_cast<std::uint64_t>(config.evaluation.every_steps);
  return (every_steps > 0 && step % every_steps == 0) ||
         step == static_cast<std::uint64_t>(config.training.steps);
}

// Returns whether run.stop_after leaves no time for another step. Without a stop now the run makes this step
// with what may be due after it, then another step and its save. The estimate of their time is a quarter more
// than the longest durations seen.
bool Trainer::time_is_up() const {
  const std::int64_t limit_ms = rank_.config.run.stop_after_ms;
  if (limit_ms == 0) return false;
  const std::int64_t elapsed_ns = rank_.env.monotonic_ns() - parts_.started_ns;
  const std::int64_t needed_ns =
      (2 * longest_step_ns_ + longest_evaluation_ns_ + 2 * saves_.longest_save_ns()) / 4 * 5;
  return elapsed_ns + needed_ns >= limit_ms * 1'000'000;
}

namespace {

// ShadowResults are those of one rank.
struct ShadowResults {
  std::vector<ShadowResult> results = {};
  static void visit_fields(auto& self, auto&& visit) { visit("results", self.results); }
};

bool compares_kernels(const KernelsConfig& kernels, std::uint64_t step) {
  return std::ranges::any_of(kernels.shadows, [step](const KernelRuleConfig& shadow) {
    return step % static_cast<std::uint64_t>(shadow.every_steps) == 0;
  });
}

// Says to a device that a step is made, in which kernels may be compared, until the end of this object.
class ComparedStep {
 public:
  ComparedStep(Device& device, const KernelsConfig& kernels, std::uint64_t step) : device_(device) {
    // The device outlives a recovery: what it has of a step that a fault ended counts nowhere.
    if (compares_kernels(kernels, step)) device.take_shadow_results();
    device.shadow_step(step);
  }
  ~ComparedStep() { device_.shadow_step(0); }
  ComparedStep(const ComparedStep&) = delete;
  ComparedStep& operator=(const ComparedStep&) = delete;

 private:
  Device& device_;
};

}  // namespace

Result<StepOutcome> Trainer::step() {
  Worker& worker = parts_.worker;
  RunState& state = worker.state();
  const std::uint64_t step = state.step + 1;
  if (parts_.claim != nullptr) keep(parts_.claim->still_held());
  const bool stop = parts_.stop.stop_requested() || time_is_up();
  const SaveDue due = saves_.due();
  const bool grow = grows(due);
  enter(rank_.watch, Phase::step, step);
  HF_TRY_VOID(trace_.before_step(step));
  rank_.spans.begin_step(step);
  const std::int64_t begin_ns = rank_.env.monotonic_ns();
  SaveCadence::Step cost = saves_.begin_step();
  HF_TRY(StepOutcome outcome, [&] {
    const StepSpan span(worker);
    stragglers_.begin_step();
    const ComparedStep compared(rank_.device, rank_.config.kernels, step);
    return run_step(worker, {.stop = stop,
                             .grow = grow,
                             .starts_ranks = parts_.growth.has_value() && parts_.growth->announces(),
                             .restart = parts_.requests != nullptr ? parts_.requests->restart_request()
                                                                   : RestartRequest{},
                             .trouble = trouble_,
                             .saver = saves_.saver(),
                             .uploads = &saves_.uploads(),
                             .due = due,
                             .gathers_times = stragglers_.wants_times()});
  }());
  stragglers_.end_step();
  if (outcome.ends_steps) {
    verdict_ = StepsVerdict{.event = *std::move(outcome.verdict),
                            .action = outcome.action,
                            .leaving_ranks = std::move(outcome.leaving_ranks),
                            .rollback = outcome.rollback};
    return fail(ExitCode::communication, "{}", verdict_->event.reason);
  }
  if (outcome.verdict.has_value()) parts_.progress.reached_verdict(*outcome.verdict, {});
  starts_ranks_ns_ = outcome.starts_ranks ? rank_.env.monotonic_ns() : 0;
  // Rank 0 waits here for ranks that end the step later, as it would in the next one: a part of the steps all the same.
  const Result<void> exchanged = outcome.gathers.ok() ? stragglers_.exchange(outcome) : outcome.gathers;
  const std::int64_t duration_ns = rank_.env.monotonic_ns() - begin_ns;
  if (SampleLog* ledger = worker.ledger()) keep(ledger->close_step(outcome.step));
  longest_step_ns_ = std::max(longest_step_ns_, duration_ns);
  parts_.progress.stepped(outcome, state, duration_ns,
                          {.saving_ns = std::exchange(saving_ns_, 0),
                           .stall_ns = stragglers_.last_stall_ns(),
                           .own = stragglers_.last_step()});
  HF_TRY_VOID(exchanged);
  HF_TRY_VOID(tell_shadows(step));
  HF_TRY_VOID(while_saving([&] { return saves_.advance(outcome); }));
  cost.beside_snapshot = cost.beside_snapshot || outcome.keeps_state;
  stragglers_.judge(outcome);
  if (rank_.watch != nullptr) {
    const std::string lost = rank_.watch->take_lost_spares();
    if (!lost.empty()) parts_.progress.lost_spares(outcome.step, lost);
  }
  cost.duration_ns = rank_.env.monotonic_ns() - begin_ns;
  saves_.stepped(outcome.step, cost);
  return outcome;
}

// Tells what kernels that are compared have computed in a step, of all ranks.
Result<void> Trainer::tell_shadows(std::uint64_t step) {
  if (!compares_kernels(rank_.config.kernels, step)) return {};
  ShadowResults mine{.results = rank_.device.take_shadow_results()};
  HF_TRY(std::vector<ShadowResults> ranks, gather(rank_.communicator, rank_.waiter, mine));
  std::vector<ShadowResult> all;
  for (ShadowResults& rank : ranks) {
    for (ShadowResult& result : rank.results) {
      const auto found =
          std::ranges::find_if(all, [&](const ShadowResult& each) { return each.is_about(result); });
      if (found == all.end()) {
        all.push_back(std::move(result));
      } else {
        found->add(result);
      }
    }
  }
  parts_.progress.compared_kernels(step, all);
  return {};
}

// Does what training waits for because of its saves.
Result<void> Trainer::while_saving(const std::function<Result<void>()>& work) {
  const std::int64_t begin_ns = rank_.env.monotonic_ns();
  Result<void> outcome = work();
  saving_ns_ += rank_.env.monotonic_ns() - begin_ns;
  return outcome;
}

// Returns whether the run pauses for new ranks after the coming step, which is saved as `due` says.
bool Trainer::grows(const SaveDue& due) {
  return parts_.growth.has_value() && parts_.growth->due(rank_.env.monotonic_ns(), saves_.under_way(due));
}

Result<void> Trainer::evaluate() {
  Env& env = rank_.env;
  enter(rank_.watch, Phase::evaluation, parts_.worker.state().step);
  const std::int64_t begin_ns = env.monotonic_ns();
  const HostSpan span(&rank_.spans, {.kind = SpanKind::evaluation});
  HF_TRY(const double loss, parts_.held_out->loss(parts_.worker));
  const std::int64_t duration_ns = env.monotonic_ns() - begin_ns;
  longest_evaluation_ns_ = std::max(longest_evaluation_ns_, duration_ns);
  parts_.progress.evaluated(parts_.worker.state().step, loss, duration_ns);
  return {};
}

}  // namespace holdfast::train
