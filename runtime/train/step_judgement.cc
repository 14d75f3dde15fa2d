#include "runtime/train/step_judgement.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel/comm/gather.h"
#include "runtime/integrity/hardware_findings.h"
#include "runtime/run/numbers_log.h"
#include "runtime/train/audit_judgement.h"
#include "runtime/train/damage_judgement.h"
#include "runtime/train/link_judgement.h"
#include "runtime/train/numbers_origin.h"
#include "runtime/train/parameter_judgement.h"
#include "runtime/train/product_judgement.h"
#include "runtime/train/step_finding.h"

namespace holdfast::train {
namespace {

// Roll-backs are counted over so many times verdict.rollback_steps.
constexpr std::int64_t rollback_window = 10;

// DoubtfulStep is what has become of a step that was in doubt.
struct DoubtfulStep {
  Verdict doubt = {};    // on the first attempt
  Verdict verdict = {};  // on the last attempt
  AttemptRecord record = {};
  std::vector<AttemptBits> bits = {};             // of all attempts
  bool restored_parameters = false;               // Attempt::restored_parameters, of any attempt
  std::optional<CheckedOp> first_nonfinite = {};  // of this rank in the last attempt, if it was checked

  bool is_corruption() const { return verdict.kind == VerdictKind::fine || is_unrepeatable(record); }
  const Verdict& shown() const { return verdict.kind == VerdictKind::fine ? doubt : verdict; }
};

StepNumbers numbers_of(Worker& worker, const Attempt& attempt) {
  return {.step = worker.state().step + 1,
          .loss = attempt.loss,
          .grad_norm = attempt.grad_norm,
          .counted_targets = attempt.sums.counted_targets};
}

constexpr const char* leaves_clause = "that rank leaves the run, which goes on without it";

std::string cause_of(const DoubtfulStep& step, const VerdictEvent& report, bool by_parameters) {
  const int attempts = step.record.attempts;
  if (attempts == 1) return "";
  if (report.differing_ranks == 0)
    return fmt::format(
        "{} attempts have the same bits, so data or numerics gave these numbers, not hardware; ", attempts);
  const std::string rank = report.rank.has_value()
                               ? fmt::format("rank {} (host {})", *report.rank, *report.host)
                               : std::string("some rank");
  const std::string who =
      fmt::format("{} computed {}", rank,
                  by_parameters ? "with parameters that had changed in its memory" : "wrong numbers");
  return fmt::format(
      "{} attempts from the same state do not all have the same bits: {}; {}", attempts, who,
      is_unrepeatable(step.record) ? "no two agree, so none can be trusted; " : "the two that agree count; ");
}

std::string consequence_of(const DoubtfulStep& step, const JudgedStep& judged, const VerdictEvent& report,
                           const Config& config) {
  if (is_unrepeatable(step.record))
    return "the update was not made. Find the faulty hardware, then start again";
  if (!judged.leaving_ranks.empty()) return leaves_clause;
  switch (judged.action) {
    case VerdictAction::skip:
      return fmt::format(
          "the update is not made and the run goes on with the next batch (at most {} times in {} steps){}",
          config.verdict.skips_max, config.verdict.window_steps,
          report.op.has_value() || report.tensor.has_value()
              ? std::string()
              : fmt::format("; holdfast replay {} --step {} --checks names the op", config.run.directory,
                            step.verdict.step));
    case VerdictAction::clip:
      return fmt::format("the gradients are clipped to the usual norm, {:.4g}", judged.norm_limit);
    case VerdictAction::stop:
      return "the update was not made. Lower optimizer.learning_rate or start again from an older checkpoint";
    case VerdictAction::rollback:
      return fmt::format(
          "the run goes back to step {} and on from there without the batches of steps {} to {} (at most {} "
          "times in {} steps)",
          judged.rollback->trusted_step, judged.rollback->trusted_step + 1, step.verdict.step,
          config.verdict.rollbacks_max, rollback_window * config.verdict.rollback_steps);
    case VerdictAction::redo:
    case VerdictAction::commit:
      break;
  }
  return "the run goes on with these numbers";
}

// Returns a clause that says where the numbers arise; empty if it is not known.
std::string origin_of(const VerdictEvent& report) {
  if (report.op.has_value()) {
    return fmt::format(", and the first result that is not finite is of {} {}", *report.op,
                       report.layer.has_value() ? fmt::format("in {}, {}", *report.layer, *report.pass)
                                                : std::string("where lanes are added"));
  }
  if (!report.tensor.has_value()) return "";
  return fmt::format(", and {} has {:.0f} % of the squared gradient norm", *report.tensor,
                     100.0 * report.share);
}

std::string sentence_of(Worker& worker, const DoubtfulStep& step, const JudgedStep& judged,
                        const VerdictEvent& report, bool by_parameters) {
  const Attempt& attempt = judged.attempt;
  std::string what;
  if (step.shown().kind == VerdictKind::nonfinite && step.verdict.kind == VerdictKind::nonfinite) {
    what = fmt::format("the loss is {} and the gradient norm {}, expected finite numbers", attempt.loss,
                       attempt.grad_norm);
  } else if (step.verdict.kind == VerdictKind::fine) {
    what = fmt::format(
        "the numbers of the first attempt were {}; the loss is {:.6g} and the gradient norm {:.6g}",
        name_of(step.doubt.kind), attempt.loss, attempt.grad_norm);
  } else {
    what = description_of(step.verdict, numbers_of(worker, attempt), worker.state().numbers);
  }
  what += origin_of(report);
  if (report.lane.has_value())
    what += fmt::format(" ({} in lane {}, microbatch {}: {})",
                        step.verdict.kind == VerdictKind::nonfinite ? "first" : "largest loss", *report.lane,
                        *report.microbatch, report.samples.value_or(""));
  return fmt::format("step {}: {}; {}{}", report.step, what, cause_of(step, report, by_parameters),
                     consequence_of(step, judged, report, worker.rank().config));
}

// Numbers that two attempts have alike come from somewhere in the computation.
Result<void> name_origin(Worker& worker, const DoubtfulStep& step, const Attempt& attempt,
                         VerdictEvent& report) {
  if (step.record.attempts == 1 || is_unrepeatable(step.record)) return {};
  if (step.verdict.kind == VerdictKind::nonfinite) return name_first_op(worker, step.first_nonfinite, report);
  if (step.verdict.kind == VerdictKind::spike) return name_largest_tensor(worker, attempt, report);
  return {};
}

// Makes the step again, with checks of all ops where some attempt was not finite.
Result<Attempt> make_again(Worker& worker, DoubtfulStep& step) {
  step.first_nonfinite.reset();
  if (step.doubt.kind != VerdictKind::nonfinite && step.verdict.kind != VerdictKind::nonfinite)
    return attempt_again(worker, step.bits, step.record.attempts);
  HF_TRY(CheckedAttempt checked, attempt_with_checks(worker, step.bits, step.record.attempts));
  step.first_nonfinite = std::move(checked.first_nonfinite);
  return std::move(checked.attempt);
}

// Returns whether a rank that computed wrong numbers, and did so before, leaves: the step is then made again
// without it, whatever its numbers are. Of numbers that end the run nobody knows that another rank would help.
bool evicts(Worker& worker, const StepBlame& blame, std::span<const StepFinding> findings,
            VerdictAction action) {
  if (!blame.culprit.has_value() || action == VerdictAction::stop) return false;
  const StepFinding& culprit = findings[static_cast<std::size_t>(*blame.culprit)];
  return culprit.hardware.earlier_findings > 0 && can_spare_a_replica(worker);
}

// Reports the step, and makes a rank leave for which it is the second finding.
Result<void> conclude(Worker& worker, const DoubtfulStep& step, JudgedStep& judged) {
  const Verdict& shown = step.shown();
  const bool kept = judged.action == VerdictAction::commit;
  VerdictEvent report{.step = worker.state().step + 1,
                      .what = step.is_corruption() ? "corruption" : std::string(name_of(shown.kind)),
                      .action = !kept                      ? std::string(name_of(judged.action))
                                : step.record.attempts > 1 ? "redo"
                                                           : "none",
                      .of = shown.of_norm ? "grad_norm" : "loss",
                      .value = shown.of_norm ? judged.attempt.grad_norm : judged.attempt.loss,
                      .score = shown.score,
                      .median = shown.median,
                      .attempts = step.record.attempts};
  HF_TRY(const std::vector<StepFinding> findings,
         gather(worker.rank().communicator, worker.rank().waiter,
                finding_of(worker, judged.attempt, step.bits, step.restored_parameters)));
  const MeshShape& shape = worker.rank().mesh.shape();
  const StepBlame blame = name_rank(findings, shape.pipeline * shape.tensor == 1, report);
  if (evicts(worker, blame, findings, judged.action)) {
    judged.action = VerdictAction::stop;
    judged.leaving_ranks = {*blame.culprit};
    judged.rollback.reset();  // the step is judged again without that rank
    report.what = verdict_values::corruption;
    report.action = verdict_values::evict;
  }
  const bool about_step =
      step.verdict.kind == VerdictKind::nonfinite || step.verdict.kind == VerdictKind::spike;
  if (about_step) name_microbatch(worker, findings, report);
  HF_TRY_VOID(name_origin(worker, step, judged.attempt, report));
  report.reason = sentence_of(worker, step, judged, report, blame.by_parameters);
  if (blame.culprit.has_value()) {
    note_finding(worker.rank(), findings[static_cast<std::size_t>(*blame.culprit)].hardware,
                 blame.by_parameters            ? finding_kinds::memory
                 : is_unrepeatable(step.record) ? finding_kinds::lasts
                                                : finding_kinds::once,
                 report);
  }
  judged.report = std::move(report);
  return {};
}

// Decides what follows from a check of hardware that failed, with `step.report.action` and `consequence` where
// nothing has to.
JudgedStep follow(const Worker& worker, AuditedStep step, std::string consequence, bool may_go_back) {
  JudgedStep judged{.attempt = step.attempt};
  const bool is_known = !step.to_blame.empty();
  if (step.lasts) {
    judged.action = VerdictAction::stop;
    step.report.action = name_of(VerdictAction::stop);
    consequence = "the update was not made. Replace that hardware, or start again without it";
    if (may_go_back && worker.rank().config.verdict.on_wrong_rank == "rollback")
      judged.rollback = Rollback{.trusted_step = step.sound_step};
  }
  if (is_known && (step.lasts || step.is_repeated) && can_spare_a_replica(worker)) {
    judged.action = VerdictAction::stop;
    judged.leaving_ranks = step.to_blame;
    step.report.action = verdict_values::evict;
    consequence =
        step.to_blame.size() == 1 ? leaves_clause : "they leave the run, which goes on without them";
  }
  if (judged.rollback.has_value()) {
    consequence += fmt::format(", from step {} or before", judged.rollback->trusted_step);
  }
  step.report.reason += "; " + consequence;
  judged.report = std::move(step.report);
  return judged;
}

// Numbers of an audit that came out right at the second time count.
Result<JudgedStep> judge_failed_audit(Worker& worker, const Attempt& first) {
  HF_TRY(AuditedStep step, judge_audit(worker, first));
  step.report.action = "redo";
  // A replica that audits itself does not know since when it computes wrong.
  const bool is_of_replicas = worker.workload().lanes.ranks() > 1;
  return follow(worker, std::move(step), "the numbers that both computed count", is_of_replicas);
}

Result<JudgedStep> judge_wrong_products(Worker& worker, const Attempt& first) {
  HF_TRY(AuditedStep step, judge_products(worker, first));
  step.report.action = "none";
  return follow(worker, std::move(step), "nothing was computed with that product", /*may_go_back=*/true);
}

JudgedStep end_with(DamagedState damaged, const Attempt& attempt) {
  return {.attempt = attempt,
          .action = VerdictAction::stop,
          .report = std::move(damaged.report),
          .leaving_ranks = std::move(damaged.leaving_ranks),
          .rollback = Rollback{.trusted_step = damaged.trusted_step}};
}

// Returns how many more roll-backs are allowed at the step in hand.
std::int64_t rollbacks_left(const RunState& state, const VerdictConfig& config) {
  const auto window = static_cast<std::uint64_t>(rollback_window * config.rollback_steps);
  std::uint64_t made = 0;
  for (const DataJump& jump : state.jumps)
    if (jump.at_step + window > state.step) made += jump.times;
  return std::max<std::int64_t>(0, config.rollbacks_max - static_cast<std::int64_t>(made));
}

// Takes the run back so that the batches up to the one of the step in hand are left out.
Rollback leave_out_batches(const Worker& worker) {
  const RunState& state = worker.state();
  return {.trusted_step = rollback_target(state.step + 1, worker.rank().config.verdict.rollback_steps),
          .data_cursor = state.data_cursor + worker.workload().batch_shape.samples_per_step()};
}

// Judges the numbers of an attempt, and makes the step again while there is doubt.
Result<JudgedStep> judge_numbers(Worker& worker, const Attempt& first) {
  const VerdictConfig& config = worker.rank().config.verdict;
  NumbersHistory& history = worker.state().numbers;
  history.set_window(config.window_steps);
  JudgedStep judged{.attempt = first};
  DoubtfulStep step{.doubt = judge(history, numbers_of(worker, first), config)};
  step.verdict = step.doubt;
  if (step.doubt.kind == VerdictKind::fine) return judged;
  step.bits = {attempt_bits(worker, first)};
  // Attempts read the same memory, so they agree on numbers of a state that has changed in it.
  if (next_action(history, step.verdict, step.record, config) == VerdictAction::redo) {
    HF_TRY(std::optional<DamagedState> damaged, examine_state(worker));
    if (damaged.has_value()) return end_with(std::move(*damaged), first);
  }
  const std::int64_t rollbacks = rollbacks_left(worker.state(), config);
  while ((judged.action = next_action(history, step.verdict, step.record, config, rollbacks)) ==
         VerdictAction::redo) {
    HF_TRY(judged.attempt, make_again(worker, step));
    step.restored_parameters |= judged.attempt.restored_parameters;
    step.bits.push_back(attempt_bits(worker, judged.attempt));
    step.verdict = judge(history, numbers_of(worker, judged.attempt), config);
    step.record = {.attempts = step.record.attempts + 1,
                   .differing_ranks_last = static_cast<int>(judged.attempt.sums.differs_from_last),
                   .differing_ranks_first = static_cast<int>(judged.attempt.sums.differs_from_first)};
  }
  if (judged.action == VerdictAction::clip) judged.norm_limit = median_norm(history);
  if (judged.action == VerdictAction::rollback) judged.rollback = leave_out_batches(worker);
  HF_TRY_VOID(conclude(worker, step, judged));
  return judged;
}

// Decides what follows from links that delivered other gradients than were sent.
Result<JudgedStep> judge_failed_links(Worker& worker, const Attempt& first) {
  HF_TRY(LinkedStep step, judge_links(worker, first));
  JudgedStep judged{.attempt = step.attempt,
                    .action = step.action,
                    .report = std::move(step.report),
                    .leaving_ranks = std::move(step.leaving_ranks)};
  if (step.trusted_step.has_value()) judged.rollback = Rollback{.trusted_step = *step.trusted_step};
  return judged;
}

// Adds what was reported of the same step before.
void put_before(VerdictEvent earlier, JudgedStep& judged) {
  if (!judged.report.has_value()) {
    judged.report = std::move(earlier);
    return;
  }
  VerdictEvent& report = *judged.report;
  report.reason = earlier.reason + "; then " + report.reason;
  report.attempts += earlier.attempts;
  if (!report.rank.has_value()) {
    report.rank = earlier.rank;
    report.host = earlier.host;
    report.device = earlier.device;
  }
}

using Judge = Result<JudgedStep> (*)(Worker& worker, const Attempt& first);

// Judges what came out right at the second time further: the step may have a bad sample besides.
Result<JudgedStep> judge_further(Worker& worker, JudgedStep before, Judge judge) {
  if (before.action != VerdictAction::commit) return before;
  HF_TRY(JudgedStep judged, judge(worker, before.attempt));
  put_before(std::move(*before.report), judged);
  return judged;
}

// Decides what follows where ranks hold other parameters than they must. Their lane may fail its audit besides.
Result<JudgedStep> judge_held_parameters(Worker& worker, const Attempt& first) {
  HF_TRY(JudgedParameters step, judge_parameters(worker, first));
  JudgedStep judged{.attempt = step.attempt,
                    .action = step.ends_step ? VerdictAction::stop : VerdictAction::commit,
                    .report = std::move(step.report),
                    .leaving_ranks = std::move(step.leaving_ranks)};
  if (step.trusted_step.has_value()) judged.rollback = Rollback{.trusted_step = *step.trusted_step};
  if (step.ends_step || !step.attempt.audit_failed()) return judged;
  HF_TRY(JudgedStep audited, judge_failed_audit(worker, step.attempt));
  put_before(std::move(*judged.report), audited);
  return audited;
}

// Judges a step whose gradients arrived as they were sent.
Result<JudgedStep> judge_computation(Worker& worker, const Attempt& first) {
  if (!first.audit_failed() && !first.parameters_differ()) return judge_numbers(worker, first);
  HF_TRY(std::optional<DamagedState> damaged, examine_state(worker));
  if (damaged.has_value()) return end_with(std::move(*damaged), first);
  HF_TRY(JudgedStep audited, first.parameters_differ() ? judge_held_parameters(worker, first)
                                                       : judge_failed_audit(worker, first));
  return judge_further(worker, std::move(audited), judge_numbers);
}

// Links first: numbers that are computed from what they changed are not the ranks' fault.
Result<JudgedStep> judge_attempt(Worker& worker, const Attempt& first) {
  if (!first.links_failed()) return judge_computation(worker, first);
  HF_TRY(JudgedStep linked, judge_failed_links(worker, first));
  return judge_further(worker, std::move(linked), judge_computation);
}

}  // namespace

Result<JudgedStep> judge_step(Worker& worker, const Attempt& first) {
  if (first.sums.damaged > 0) {
    HF_TRY(DamagedState damaged, judge_damage(worker, worker.state().step));
    return end_with(std::move(damaged), first);
  }
  if (first.run_states_differ()) {  // that of the step before was right before its update
    HF_TRY(DamagedState damaged, judge_damage(worker, worker.state().step + 1));
    return end_with(std::move(damaged), first);
  }
  if (first.sums.wrong_products == 0) return judge_attempt(worker, first);
  HF_TRY(JudgedStep tested, judge_wrong_products(worker, first));
  return judge_further(worker, std::move(tested), judge_attempt);
}

}  // namespace holdfast::train
