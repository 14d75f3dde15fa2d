#include "runtime/train/step.h"

#include <algorithm>
#include <bit>

#include "parallel/comm/device_wait.h"
#include "runtime/device/device_span.h"
#include "runtime/integrity/step_check.h"
#include "runtime/save/state_saver.h"
#include "runtime/train/worker_access.h"

namespace holdfast::train {
namespace {

// Returns the factor that clips the gradient norm. A NaN norm never gets here; a zero norm needs no scaling.
double clip_scale(double largest_norm, double norm) {
  return largest_norm > 0.0 && norm > largest_norm ? largest_norm / norm : 1.0;
}

// Waits until the update is done where the host sees the device's memory or there are other ranks, so that
// readers of that memory find updated parameters when the step returns. Of other memory the host gets copies
// that are ordered in the queue, so a single rank launches its next step right after the update.
Result<void> finish_update(Worker& worker) {
  if (!worker.rank().device.host_sees_memory() && worker.rank().communicator.size() == 1) return {};
  {
    const HostSpan wait(&worker.rank().spans, {.kind = SpanKind::wait_device});
    wait_for_device(worker.rank().device, worker.rank().communicator);
  }
  Result<void> device = worker.state_view().device_outcome();
  if (!device.ok()) worker.rank().communicator.abandon();  // the vote is over, so this rank leaves alone
  return device;
}

void advance(RunState& state, const BatchShape& shape, const Digest& data, const StepOutcome& outcome) {
  state.step = outcome.step;
  state.data_cursor += shape.samples_per_step();
  state.data_digest = chain(state.data_digest, data);
  state.loss_digest = chain(state.loss_digest,
                            Digest{.high = outcome.step, .low = std::bit_cast<std::uint64_t>(outcome.loss)});
}

// Remembers the step in the state, by which later ones are checked.
void remember(NumbersHistory& history, const CheckedStep& checked) {
  const StepNumbers& numbers = checked.attempt.numbers;
  if (checked.action == VerdictAction::skip) return history.skip(numbers.step);
  history.add(numbers);
}

// Notes up to which step the ranks have proved to compute right.
void note_audit(Worker& worker, const LaneAudit& audit) {
  // A replica that audits itself does not find a unit that gives the same wrong numbers every time.
  if (!audit.is_of_itself()) worker.note_verified_step();
  worker.checks().parameters.note_verified_step(worker.state().step);
  RunState& state = worker.state();
  const std::uint64_t proved =
      proved_step(worker.first_step(), state.step, worker.workload().audit_every_steps);
  state.audited_step = std::max(state.audited_step, proved);
}

StepOutcome outcome_of(Worker& worker, const Ballot& sums, const CheckedStep& checked) {
  const std::uint64_t step = worker.state().step + 1;
  return {.step = step,
          .loss = checked.attempt.numbers.loss,
          .grad_norm = checked.attempt.numbers.grad_norm,
          .learning_rate = learning_rate_of(worker, step),
          .stop = sums.stops > 0,
          .grow = sums.grows > 0,
          .starts_ranks = sums.starts_ranks > 0,
          .restart = {.wanted = sums.restarts > 0, .hosts_leaving = static_cast<int>(sums.hosts_leaving)},
          .due = {.to_disk = sums.due_to_disk > 0,
                  .to_ram = sums.due_to_ram > 0,
                  .asked_for = sums.due_asked_for > 0},
          .gathers_times = sums.gathers_times > 0,
          .saves = sums.saves,
          .action = checked.action,
          .verdict = checked.report,
          .ends_steps = ends_steps(checked.action),
          .leaving_ranks = checked.leaving_ranks,
          .rollback = checked.rollback};
}

void launch_update(Worker& worker, const StepOutcome& outcome, const CheckedStep& checked,
                   const std::vector<OptimizerTensor>* kept) {
  double largest_norm = worker.rank().config.optimizer.gradient_clip;
  if (checked.norm_limit > 0.0 && (largest_norm <= 0.0 || checked.norm_limit < largest_norm))
    largest_norm = checked.norm_limit;
  const DeviceSpan span(worker.rank().spans, worker.rank().device, {.kind = SpanKind::update});
  worker.optimizer().launch_update(
      worker.rank().device,
      {.step = static_cast<std::int64_t>(outcome.step),
       .learning_rate = outcome.learning_rate,
       .gradient_scale = checked.attempt.gradient_factor * clip_scale(largest_norm, outcome.grad_norm)},
      kept);
  if (checked.attempt.audit.has_value())
    worker.optimizer().launch_frozen_check(worker.rank().device, outcome.step);
}

// Makes the update of the step, which writes the RAM snapshot that is due after it where it can.
Result<void> update(Worker& worker, const CheckedStep& checked, StateSaver* saver, StepOutcome& outcome) {
  const bool wants_snapshot = saver != nullptr && outcome.due.to_ram && !outcome.due.wants_disk();
  const std::vector<OptimizerTensor>* const kept = wants_snapshot ? saver->by_update() : nullptr;
  outcome.keeps_state = kept != nullptr;
  HF_FAULT_POINT(worker.rank().faults, "step.before_update");
  const std::int64_t begin_ns = worker.rank().env.monotonic_ns();
  launch_update(worker, outcome, checked, kept);
  HF_TRY_VOID(finish_update(worker));
  if (saver != nullptr && worker.rank().device.host_sees_memory())
    saver->snapshots().updated(worker.rank().env.monotonic_ns() - begin_ns);
  return {};
}

}  // namespace

Result<StepOutcome> run_step(Worker& worker, const StepRequest& request) {
  HF_FAULT_POINT(worker.rank().faults, "step.begin");
  // A loader that could not begin returns its error with the first microbatch, and so to the vote.
  if (take_jump(worker.state())) {
    worker.position().begin(worker.state(), worker.workload().batch_shape.samples_per_step());
    static_cast<void>(worker.start_loader().ok());
  }
  HF_TRY(const VotedStep voted, attempt_step(worker, request));
  StepAccess access = access_to_step(worker);
  std::int64_t again_ns = voted.audit_ns;
  access.attempt_again = [&worker, &again_ns](std::span<const AttemptBits> earlier, int audit_retry) {
    const std::int64_t begin_ns = worker.rank().env.monotonic_ns();
    Result<Attempt> attempt = attempt_again(worker, earlier, audit_retry);
    again_ns += worker.rank().env.monotonic_ns() - begin_ns;
    return attempt;
  };
  HF_TRY(const CheckedStep checked, check_step(access, voted.attempt));
  StepOutcome outcome = outcome_of(worker, voted.sums, checked);
  outcome.again_ns = again_ns;
  if (outcome.ends_steps) return outcome;
  if (request.saver != nullptr) HF_TRY_VOID(request.saver->confirm(outcome.saves));
  const bool updates = checked.action != VerdictAction::skip;
  if (updates) HF_TRY_VOID(update(worker, checked, request.saver, outcome));
  remember(worker.state().numbers, checked);
  advance(worker.state(), worker.workload().batch_shape, checked.attempt.data, outcome);
  worker.position().made_step();
  if (checked.attempt.audit.has_value()) note_audit(worker, *checked.attempt.audit);
  HF_FAULT_POINT(worker.rank().faults, "step.before_gather");
  if (updates) outcome.gathers = worker.parameter_gather().begin(ParameterGather::Which::trained);
  if (checked.attempt.audit.has_value()) test_products(access_to_step(worker));
  HF_FAULT_POINT(worker.rank().faults, "step.end");
  return outcome;
}

}  // namespace holdfast::train
