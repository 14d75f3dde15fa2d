#include "runtime/train/step_attempt.h"

#include <algorithm>
#include <cmath>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/integrity/lane_check.h"
#include "runtime/rank/watch.h"
#include "runtime/save/state_saver.h"
#include "runtime/save/uploads.h"
#include "runtime/train/worker_access.h"

namespace holdfast::train {
namespace {

// Returns the audit of an attempt at the next step. `attempt`: counted from 0.
std::optional<LaneAudit> audit_of(const Worker& worker, int attempt) {
  const Workload& workload = worker.workload();
  return audit_at(worker.state().step + 1, workload.audit_every_steps, workload.lanes.lanes(),
                  workload.lanes.ranks(), attempt);
}

// Launches the digests of the parameters that the lanes have been computed with, in a step of an audit, and in the
// first step of a run that has frozen ones.
Result<void> launch_parameter_digests(Worker& worker, bool audits) {
  const bool must_remember =
      worker.workload().audit_every_steps > 0 && worker.checks().parameters.must_remember();
  if (!audits && !must_remember) return {};
  HF_TRY_VOID(worker.parameter_gather().finish());  // of a rank without lanes it may be under way
  worker.checks().parameters.launch();
  if (!must_remember) return {};
  wait_for_device(worker.rank().device, worker.rank().communicator);
  worker.checks().parameters.remember();
  return {};
}

// Runs all lanes, after the one of another replica that this one audits: it uses the memory of the gradients.
Result<void> run_lanes(Worker& worker, const std::optional<LaneAudit>& audit, LaneOutcome& lanes) {
  const int replica = worker.rank().coordinate.data;
  if (audit.has_value()) {
    const std::int64_t begin_ns = worker.rank().env.monotonic_ns();
    const int lane = audit->lane_of(audit->owner_for(replica));
    const std::unique_ptr<DataLoader> loader = worker.loader_of_lane(lane);
    HF_TRY_VOID(worker.lane_runner().audit(lane, *loader, lanes.failure));
    wait_for_device(worker.rank().device, worker.rank().communicator);  // it reads the slots of the tokens
    lanes.audit_ns = worker.rank().env.monotonic_ns() - begin_ns;
  }
  worker.reduction().begin_step(/*digests_links=*/audit.has_value());
  HF_TRY_VOID(
      worker.lane_runner().run(lanes, audit.has_value() ? audit->lane_of(replica) : LaneRunner::no_lane));
  const HostSpan wait(&worker.rank().spans, {.kind = SpanKind::wait_device});
  worker.reduction().finish_step();
  HF_TRY_VOID(launch_parameter_digests(worker, audit.has_value()));
  wait_for_device(worker.rank().device, worker.rank().communicator);
  return {};
}

AuditDigests digests_of(Worker& worker, const std::optional<LaneAudit>& audit) {
  if (!audit.has_value()) return {};
  return {.as_owner = worker.checks().lanes.total(LaneDigests::Of::owner),
          .as_auditor = worker.checks().lanes.total(LaneDigests::Of::auditor)};
}

Digest parameters_digest(Worker& worker) {
  const std::byte* const parameters = worker.stage().parameters();
  const Workload& workload = worker.workload();
  const std::uint64_t bytes = workload.buckets.parameter_elements() * bytes_of(workload.spec.dtype);
  DigestStream stream;
  for (std::uint64_t begin = 0; begin < bytes; begin += HostAccess::buffer_bytes) {
    const std::uint64_t count = std::min(HostAccess::buffer_bytes, bytes - begin);
    stream.add(worker.rank().host_access.to_read({parameters + begin, count}));
  }
  return stream.finish();
}

// Makes the parameters in this rank's memory those of their owners again. Returns whether they were others.
Result<bool> restore_parameters(Worker& worker) {
  const Digest before = parameters_digest(worker);
  worker.optimizer().launch_copies(worker.rank().device);
  wait_for_device(worker.rank().device, worker.rank().communicator);
  HF_TRY_VOID(worker.parameter_gather().begin(ParameterGather::Which::all));
  HF_TRY_VOID(worker.parameter_gather().finish());
  return parameters_digest(worker) != before;
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

// Returns the factor that turns gradients of sum / tokens_per_step into those of the mean over the targets
// that count, whose number is known only when all ranks have read their samples. The factor is exactly 1 when
// all targets count and 0 when none does: such a step has the loss 0 and learns nothing.
double mean_factor(const Worker& worker, const Ballot& ballot) {
  if (ballot.counted_targets == 0) return 0.0;
  return static_cast<double>(worker.workload().tokens_per_step()) /
         static_cast<double>(ballot.counted_targets);
}

Result<void> vote(Worker& worker, Ballot& ballot) {
  ballot.loss.normalise();
  ballot.square_norm.normalise();
  const HostSpan wait(&worker.rank().spans, {.kind = SpanKind::wait_vote});
  return sum_over_ranks(worker.rank().communicator, worker.rank().waiter, ballot);
}

// Brings the lanes' numbers to the vote, with what else this rank's ballot says already. The device is checked
// after the wait for a snapshot, so that no snapshot is voted on that the device has not delivered completely.
Result<VotedStep> vote_on(Worker& worker, LaneOutcome& lanes, const std::optional<LaneAudit>& audit,
                          Ballot ballot) {
  const AuditDigests digests = digests_of(worker, audit);
  ballot.checks.links = worker.reduction().links().balance();
  if (audit.has_value()) {
    ballot.checks.audit = audit_term(digests, *audit, worker.rank().coordinate);
    ballot.checks.parameters = worker.checks().parameters.term();
  }
  ballot.checks.corrupted = finds_corruption(worker) ? 1 : 0;
  ballot.checks.run_state = run_state_term(worker);
  Result<void>& failure = lanes.failure;
  if (Result<void> device = worker.state_view().device_outcome(); failure.ok()) failure = std::move(device);
  sum_blocks(worker, lanes, ballot);
  ballot.data = lanes.data;
  ballot.counted_targets = lanes.counted_targets;
  ballot.failures = failure.ok() ? 0 : 1;
  HF_FAULT_POINT(worker.rank().faults, "step.before_vote");
  HF_TRY_VOID(vote(worker, ballot));
  HF_FAULT_POINT(worker.rank().faults, "step.after_vote");
  if (ballot.failures > 0) {
    HF_TRY_VOID(agree_on_fitness(worker.rank().communicator, worker.rank().waiter, failure,
                                 worker.rank().env.host_name(), Examined::own));
  }
  const double factor = mean_factor(worker, ballot);
  const auto targets = static_cast<double>(std::max<std::int64_t>(1, ballot.counted_targets));
  return VotedStep{.sums = ballot,
                   .attempt = {.numbers = {.step = worker.state().step + 1,
                                           .loss = ballot.loss.value() / targets,
                                           .grad_norm = factor * std::sqrt(ballot.square_norm.value()),
                                           .counted_targets = ballot.counted_targets},
                               .votes = ballot.checks,
                               .square_norm = ballot.square_norm,
                               .data = ballot.data,
                               .gradient_factor = factor,
                               .losses = lanes.losses,
                               .audit = audit,
                               .digests = digests},
                   .audit_ns = lanes.audit_ns};
}

}  // namespace

Result<VotedStep> attempt_step(Worker& worker, const StepRequest& request) {
  LaneOutcome lanes{.data = {}, .failure = request.trouble};
  const std::optional<LaneAudit> audit = audit_of(worker, 0);
  HF_TRY_VOID(run_lanes(worker, audit, lanes));
  Ballot ballot{.stops = request.stop ? 1 : 0,
                .grows = request.grow ? 1 : 0,
                .starts_ranks = request.starts_ranks ? 1 : 0,
                .restarts = request.restart.wanted ? 1 : 0,
                .hosts_leaving = std::clamp(request.restart.hosts_leaving, 0, 2),
                .due_asked_for = request.due.asked_for ? 1 : 0,
                .checks = {.wrong_products = worker.checks().products.finding().has_value() ? 1 : 0}};
  if (worker.rank().communicator.rank() == 0) {
    ballot.due_to_disk = request.due.to_disk ? 1 : 0;
    ballot.due_to_ram = request.due.to_ram ? 1 : 0;
    ballot.gathers_times = request.gathers_times ? 1 : 0;
  }
  if (request.saver != nullptr) ballot.saves = request.saver->vote();
  if (request.uploads != nullptr) request.uploads->vote(ballot.saves);
  return vote_on(worker, lanes, audit, ballot);
}

Result<Attempt> attempt_again(Worker& worker, std::span<const AttemptBits> earlier, int audit_retry) {
  enter(worker.rank().watch, Phase::step, worker.state().step + 1);
  HF_TRY(const bool restored, restore_parameters(worker));
  // A loader that could not begin returns its error with the first microbatch, and so to the vote.
  static_cast<void>(worker.start_loader().ok());
  LaneOutcome lanes;
  const std::optional<LaneAudit> audit = audit_of(worker, audit_retry);
  HF_TRY_VOID(run_lanes(worker, audit, lanes));
  const AttemptBits bits = access_to_step(worker).bits_of({.losses = lanes.losses});
  HF_TRY(VotedStep voted, vote_on(worker, lanes, audit,
                                  {.checks = {.differs_from_last = bits == earlier.back() ? 0 : 1,
                                              .differs_from_first = bits == earlier.front() ? 0 : 1}}));
  voted.attempt.restored_parameters = restored;
  return std::move(voted.attempt);
}

}  // namespace holdfast::train
