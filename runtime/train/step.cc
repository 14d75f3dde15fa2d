#include "runtime/train/step.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/device_span.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/optim/schedule.h"
#include "runtime/save/state_saver.h"
#include "runtime/save/uploads.h"
#include "runtime/train/ballot.h"

namespace holdfast::inline train {
namespace {

Result<void> run_lanes(Worker& worker, LaneOutcome& lanes) {
  worker.reduction().begin_step();
  HF_TRY_VOID(worker.lane_runner().run(lanes));
  HF_TRY_VOID(worker.join_tied_gradients());
  const HostSpan wait(&worker.rank().spans, {.kind = SpanKind::wait_device});
  worker.reduction().finish_step();
  wait_for_device(worker.rank().device, worker.rank().communicator);
  return {};
}

void sum_blocks(Worker& worker, const LaneOutcome& lanes, Ballot& ballot) {
  // Values that all ranks of a tensor group have in common count once.
  const bool counts_replicated = worker.rank().counts_replicated();
  if (counts_replicated) {
    for (const double loss : worker.stage().loss_sums().first(lanes.losses)) ballot.loss.add(loss);
  }
  std::span<const double> sums = worker.reduction().square_sums();
  for (const Segment& segment : worker.optimizer().segments()) {
    const std::span<const double> of_segment = sums.first(segment.block_count);
    sums = sums.subspan(segment.block_count);
    if (!counts_replicated && worker.workload().buckets.tensor(segment).is_replicated()) continue;
    for (const double sum : of_segment) ballot.square_norm.add(sum);
  }
}

Result<void> vote(Worker& worker, Ballot& ballot) {
  ballot.loss.normalise();
  ballot.square_norm.normalise();
  const HostSpan wait(&worker.rank().spans, {.kind = SpanKind::wait_vote});
  return sum_over_ranks(worker.rank().communicator, worker.rank().waiter, ballot);
}

Result<void> check_finite(const StepOutcome& outcome) {
  if (std::isfinite(outcome.loss) && std::isfinite(outcome.grad_norm)) return {};
  return fail(ExitCode::numerics,
              "step {}: the loss is {} and the gradient norm {}, expected finite numbers; the update was not "
              "made. Lower "
              "optimizer.learning_rate or start again from an older checkpoint",
              outcome.step, outcome.loss, outcome.grad_norm);
}

// Returns the factor that turns gradients of sum / tokens_per_step into those of the mean over the targets
// that count, whose number is known only when all ranks have read their samples. The factor is exactly 1 when
// all targets count and 0 when none does: such a step has the loss 0 and learns nothing.
double mean_factor(const Worker& worker, const Ballot& ballot) {
  if (ballot.counted_targets == 0) return 0.0;
  return static_cast<double>(worker.workload().tokens_per_step()) /
         static_cast<double>(ballot.counted_targets);
}

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

}  // namespace

Result<StepOutcome> run_step(Worker& worker, const StepRequest& request) {
  HF_FAULT_POINT(worker.rank().faults, "step.begin");
  StepOutcome outcome{.step = worker.state().step + 1};
  Ballot ballot;
  LaneOutcome lanes{.data = {}, .failure = request.trouble};
  HF_TRY_VOID(run_lanes(worker, lanes));
  Result<void>& failure = lanes.failure;
  if (request.saver != nullptr) ballot.saves = request.saver->vote();
  if (request.uploads != nullptr) request.uploads->vote(ballot.saves);
  // The device is checked after the wait for a snapshot, so that no snapshot is voted on that the device has
  // not delivered completely.
  if (Result<void> device = worker.state_view().device_outcome(); failure.ok()) failure = std::move(device);
  sum_blocks(worker, lanes, ballot);
  ballot.data = lanes.data;
  ballot.counted_targets = lanes.counted_targets;
  ballot.stops = request.stop ? 1 : 0;
  ballot.failures = failure.ok() ? 0 : 1;
  ballot.grows = request.grow ? 1 : 0;
  ballot.starts_ranks = request.starts_ranks ? 1 : 0;
  ballot.restarts = request.restart.wanted ? 1 : 0;
  ballot.hosts_leaving = std::clamp(request.restart.hosts_leaving, 0, 2);
  if (worker.rank().communicator.rank() == 0) {
    ballot.due_to_disk = request.due.to_disk ? 1 : 0;
    ballot.due_to_ram = request.due.to_ram ? 1 : 0;
  }
  ballot.due_asked_for = request.due.asked_for ? 1 : 0;

  HF_FAULT_POINT(worker.rank().faults, "step.before_vote");
  HF_TRY_VOID(vote(worker, ballot));
  HF_FAULT_POINT(worker.rank().faults, "step.after_vote");
  if (ballot.failures > 0) {
    HF_TRY_VOID(agree_on_outcome(worker.rank().communicator, worker.rank().waiter, failure,
                                 worker.rank().env.host_name()));
  }
  const double factor = mean_factor(worker, ballot);
  outcome.loss = ballot.loss.value() / static_cast<double>(std::max<std::int64_t>(1, ballot.counted_targets));
  outcome.grad_norm = factor * std::sqrt(ballot.square_norm.value());
  outcome.stop = ballot.stops > 0;
  outcome.grow = ballot.grows > 0;
  outcome.starts_ranks = ballot.starts_ranks > 0;
  outcome.restart = {.wanted = ballot.restarts > 0, .hosts_leaving = static_cast<int>(ballot.hosts_leaving)};
  outcome.due = {.to_disk = ballot.due_to_disk > 0,
                 .to_ram = ballot.due_to_ram > 0,
                 .asked_for = ballot.due_asked_for > 0};
  outcome.saves = ballot.saves;
  HF_TRY_VOID(check_finite(outcome));

  const auto step = static_cast<std::int64_t>(outcome.step);
  outcome.learning_rate =
      learning_rate_at(worker.rank().config.optimizer, step, worker.rank().config.training.steps);
  const double scale = factor * clip_scale(worker.rank().config.optimizer.gradient_clip, outcome.grad_norm);
  {
    const DeviceSpan span(worker.rank().spans, worker.rank().device, {.kind = SpanKind::update});
    worker.optimizer().launch_update(
        worker.rank().device,
        {.step = step, .learning_rate = outcome.learning_rate, .gradient_scale = scale});
  }
  HF_TRY_VOID(finish_update(worker));
  advance(worker.state(), worker.workload().batch_shape, ballot.data, outcome);
  HF_FAULT_POINT(worker.rank().faults, "step.before_gather");
  outcome.gathers = worker.parameter_gather().begin(ParameterGather::Which::trained);
  HF_FAULT_POINT(worker.rank().faults, "step.end");
  return outcome;
}

}  // namespace holdfast::inline train
