#include "runtime/integrity/numbers_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "runtime/integrity/state_check.h"

namespace holdfast::integrity {
namespace {

// SuspiciousStep is what has become of a step whose numbers were suspicious.
struct SuspiciousStep {
  Verdict first = {};    // on the first attempt
  Verdict verdict = {};  // on the last attempt
  AttemptRecord record = {};
  std::vector<AttemptBits> bits = {};             // of all attempts
  bool restored_parameters = false;               // Attempt::restored_parameters, of any attempt
  std::optional<CheckedOp> first_nonfinite = {};  // of this rank in the last attempt, if it was checked

  bool is_corruption() const { return verdict.kind == VerdictKind::fine || is_unrepeatable(record); }
  const Verdict& shown() const { return verdict.kind == VerdictKind::fine ? first : verdict; }
};

// TensorPart is the part of the squared norm that the blocks of a tensor have which one rank owns.
struct TensorPart {
  std::string name = {};
  double squares = 0.0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("name", self.name);
    visit("squares", self.squares);
  }
};

struct LargestParts {
  std::vector<TensorPart> parts = {};

  static void visit_fields(auto& self, auto&& visit) { visit("parts", self.parts); }
};

struct SquareSumOfRanks {
  ExactSum squares = {};

  static constexpr void visit_words(auto& self, auto&& visit) { visit(self.squares); }
};

// Returns whether `one` is a likelier cause than `other`: the first that is not finite, else the largest.
bool is_worse(const MicrobatchLoss& one, const MicrobatchLoss& other) {
  if (one.is_finite != other.is_finite) return !one.is_finite;
  return std::tuple(-one.loss, one.lane, one.microbatch) <
         std::tuple(-other.loss, other.lane, other.microbatch);
}

std::optional<MicrobatchLoss> worst_microbatch(const StepAccess& step, const Attempt& attempt) {
  if (!step.rank.counts_replicated()) return {};
  std::optional<MicrobatchLoss> worst;
  const std::span<const double> losses = step.loss_sums.first(attempt.losses);
  for (std::size_t slot = 0; slot < losses.size(); ++slot) {
    const bool is_finite = std::isfinite(losses[slot]);
    const MicrobatchLoss each{.lane = step.rank_lanes[slot / step.microbatches_per_lane],
                              .microbatch = static_cast<int>(slot % step.microbatches_per_lane),
                              .is_finite = is_finite,
                              .loss = is_finite ? losses[slot] : 0.0};
    if (!worst.has_value() || is_worse(each, *worst)) worst = each;
  }
  return worst;
}

ComputedNumbers computed_numbers(const StepAccess& step, const SuspiciousStep& suspicious,
                                 const Attempt& attempt) {
  const std::vector<AttemptBits>& bits = suspicious.bits;
  const auto differ = [&](auto AttemptBits::*digest) {
    return std::ranges::any_of(bits,
                               [&](const AttemptBits& each) { return each.*digest != bits[0].*digest; });
  };
  return {.losses_differ = differ(&AttemptBits::losses),
          .gradients_differ = differ(&AttemptBits::gradients),
          .restored_parameters = suspicious.restored_parameters,
          .worst = worst_microbatch(step, attempt),
          .first_nonfinite = suspicious.first_nonfinite};
}

// Names the microbatch that numbers which are too high, or not finite, come from, with its samples.
void name_microbatch(const StepAccess& step, const NumbersRecords& records, bool of_norm,
                     VerdictEvent& report) {
  std::optional<MicrobatchLoss> worst;
  for (const CheckRecord<ComputedNumbers>& record : records) {
    const std::optional<MicrobatchLoss>& each = record.found.worst;
    if (each.has_value() && (!worst.has_value() || is_worse(*each, *worst))) worst = each;
  }
  // A norm that is not finite beside finite losses says nothing about one microbatch.
  const bool backward_alone = of_norm && !std::isfinite(report.value);
  if (!worst.has_value() || (backward_alone && worst->is_finite)) return;
  report.lane = worst->lane;
  report.microbatch = worst->microbatch;
  report.samples = step.describe_samples(worst->lane, worst->microbatch);
}

// Names the first op of all ranks whose result is not finite, with its lane, microbatch and samples.
void name_first_op(const StepAccess& step, const NumbersRecords& records, VerdictEvent& report) {
  const CheckedOp* first = nullptr;
  for (const CheckRecord<ComputedNumbers>& record : records) {
    const std::optional<CheckedOp>& op = record.found.first_nonfinite;
    if (!op.has_value()) continue;
    if (first == nullptr || is_computed_before(*op, *first)) first = &*op;
  }
  if (first == nullptr) return;
  report.op = first->op;
  const OpScope& scope = first->scope;
  if (scope.pass == OpScope::Pass::none) return;
  report.layer = part_name(scope);
  report.pass = pass_name(scope);
  report.lane = scope.lane;
  report.microbatch = scope.microbatch;
  report.samples = step.describe_samples(scope.lane, scope.microbatch);
}

// Returns the squared norm of this rank's part of each tensor; of what all ranks of a tensor group have, once.
std::map<std::string, ExactSum> own_squares(const StepAccess& step) {
  std::map<std::string, ExactSum> squares;
  const bool counts_replicated = step.rank.counts_replicated();
  std::span<const double> sums = step.reduction.square_sums();
  for (const Segment& segment : step.segments) {
    const std::span<const double> of_segment = sums.first(segment.block_count);
    sums = sums.subspan(segment.block_count);
    const BucketTensor& tensor = step.rank.buckets.tensor(segment);
    if (!counts_replicated && tensor.is_replicated()) continue;
    ExactSum& sum = squares[tensor.name];
    for (const double each : of_segment) sum.add(each);
  }
  for (auto& [name, sum] : squares) sum.normalise();
  return squares;
}

// Returns the few largest parts. A tensor that has most of the norm is among them on some rank at least.
LargestParts largest_of(const std::map<std::string, ExactSum>& squares) {
  constexpr std::size_t parts_kept = 8;
  LargestParts largest;
  for (const auto& [name, sum] : squares) largest.parts.push_back({.name = name, .squares = sum.value()});
  std::ranges::stable_sort(largest.parts, std::ranges::greater(), &TensorPart::squares);
  largest.parts.resize(std::min(largest.parts.size(), parts_kept));
  return largest;
}

std::string largest_tensor(std::span<const LargestParts> of_ranks) {
  std::map<std::string, double> squares;
  for (const LargestParts& rank : of_ranks)
    for (const TensorPart& part : rank.parts) squares[part.name] += part.squares;
  if (squares.empty()) return "";
  return std::ranges::max_element(squares, {}, [](const auto& each) { return each.second; })->first;
}

// Names the tensor with the largest share of the squared gradient norm; nothing if the norm is 0. The gradients in
// memory are those of `attempt`. All ranks call it together.
Result<void> name_largest_tensor(const StepAccess& step, const Attempt& attempt, VerdictEvent& report) {
  const double all_squares = attempt.square_norm.value();
  const std::map<std::string, ExactSum> squares = own_squares(step);
  HF_TRY(const std::vector<LargestParts> ranks,
         gather(step.rank.communicator, step.rank.waiter, largest_of(squares)));
  const std::string name = largest_tensor(ranks);
  if (name.empty() || all_squares <= 0.0) return {};
  SquareSumOfRanks sum;
  if (const auto own = squares.find(name); own != squares.end()) sum.squares = own->second;
  HF_TRY_VOID(sum_over_ranks(step.rank.communicator, step.rank.waiter, sum));
  report.tensor = name;
  report.share = sum.squares.value() / all_squares;
  return {};
}

std::string cause_of(const SuspiciousStep& suspicious, const NumbersRecords& records,
                     const NumbersSuspect& suspect) {
  const int attempts = suspicious.record.attempts;
  if (attempts == 1) return "";
  if (suspect.differing_ranks == 0)
    return fmt::format(
        "; {} attempts have the same bits, so data or numerics gave these numbers, not hardware", attempts);
  const std::string who =
      suspect.rank.has_value() ? records[static_cast<std::size_t>(*suspect.rank)].name() : "some rank";
  return fmt::format(
      "; {} attempts from the same state do not all have the same bits: {} computed {}; {}", attempts, who,
      suspect.by_parameters ? "with parameters that had changed in its memory" : "wrong numbers",
      is_unrepeatable(suspicious.record) ? "no two agree, so none can be trusted"
                                         : "the two that agree count");
}

// Says that the numbers end the run, and what to do: where a key asks for that, it is named.
std::string end_of(VerdictKind kind, VerdictAction action, const VerdictConfig& config) {
  const bool is_spike =
      kind == VerdictKind::spike || (kind == VerdictKind::exploded && config.on_spike == name_of(action));
  const bool is_drift = kind == VerdictKind::drift;
  if (!is_spike && !is_drift && action == VerdictAction::stop)
    return "the update was not made. Lower optimizer.learning_rate or start again from an older checkpoint";
  return fmt::format(
      "the update was not made{}, and the run ends here (verdict.{} = \"{}\"). Look at the step first: "
      "another start comes to it again, and goes on from it only with another value of that key, or another "
      "optimizer.learning_rate",
      action == VerdictAction::save_and_stop ? ", the state before it is saved" : "",
      is_spike   ? "on_spike"
      : is_drift ? "on_drift"
                 : "on_nonfinite",
      name_of(action));
}

std::string consequence_of(const SuspiciousStep& suspicious, VerdictAction action, const VerdictEvent& report,
                           const Config& config, double norm_limit, std::uint64_t target) {
  if (is_unrepeatable(suspicious.record))
    return "the update was not made. Find the faulty hardware, then start again";
  switch (action) {
    case VerdictAction::skip:
      return fmt::format(
          "the update is not made and the run goes on with the next batch (at most {} times in {} steps){}",
          config.verdict.skips_max, config.verdict.window_steps,
          report.op.has_value() || report.tensor.has_value()
              ? std::string()
              : fmt::format("; holdfast replay {} --step {} --checks names the op", config.run.directory,
                            report.step));
    case VerdictAction::clip:
      return fmt::format("the gradients are clipped to the usual norm, {:.4g}", norm_limit);
    case VerdictAction::stop:
    case VerdictAction::save_and_stop:
      return end_of(suspicious.verdict.kind, action, config.verdict);
    case VerdictAction::rollback:
      return fmt::format(
          "the run goes back to step {} and on from there without the batches of steps {} to {} (at most {} "
          "times in {} steps)",
          target, target + 1, report.step, config.verdict.rollbacks_max, rollback_window(config.verdict));
    case VerdictAction::redo:
    case VerdictAction::none:
    case VerdictAction::evict:
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

// Returns a sentence on the numbers, and where they arise.
std::string sentence_of(const StepAccess& step, const SuspiciousStep& suspicious, const StepNumbers& numbers,
                        const VerdictEvent& report) {
  std::string what;
  if (suspicious.verdict.kind == VerdictKind::nonfinite) {
    what = fmt::format("the loss is {} and the gradient norm {}, expected finite numbers", numbers.loss,
                       numbers.grad_norm);
  } else if (suspicious.verdict.kind == VerdictKind::fine) {
    what = fmt::format(
        "the numbers of the first attempt were {}; the loss is {:.6g} and the gradient norm {:.6g}",
        name_of(suspicious.first.kind), numbers.loss, numbers.grad_norm);
  } else {
    what = description_of(suspicious.verdict, numbers, step.history);
  }
  what += origin_of(report);
  if (report.lane.has_value())
    what += fmt::format(" ({} in lane {}, microbatch {}: {})",
                        suspicious.verdict.kind == VerdictKind::nonfinite ? "first" : "largest loss",
                        *report.lane, *report.microbatch, report.samples.value_or(""));
  return fmt::format("step {}: {}", report.step, what);
}

// Makes the step again, with checks of all ops where some attempt was not finite, which changes no bit. A rank that has
// no memory for them finds nothing.
Result<Attempt> attempt_again(const StepAccess& step, SuspiciousStep& suspicious) {
  suspicious.first_nonfinite.reset();
  const bool checks_ops =
      suspicious.first.kind == VerdictKind::nonfinite || suspicious.verdict.kind == VerdictKind::nonfinite;
  StepChecks* const checks = checks_ops ? step.op_checks() : nullptr;
  if (checks != nullptr) checks->begin();
  Result<Attempt> attempt = step.attempt_again(suspicious.bits, suspicious.record.attempts);
  if (checks != nullptr) checks->end();
  if (checks != nullptr && attempt.ok()) suspicious.first_nonfinite = checks->result().first_nonfinite;
  return attempt;
}

// Makes the step again as long as the policy says so. Returns what it says then.
Result<VerdictAction> repeat(const StepAccess& step, SuspiciousStep& suspicious, Attempt& attempt) {
  const VerdictConfig& config = step.rank.config.verdict;
  const auto made = static_cast<std::int64_t>(step.rollbacks);
  const std::int64_t rollbacks_left = std::max<std::int64_t>(0, config.rollbacks_max - made);
  VerdictAction action = VerdictAction::none;
  while ((action = next_action(step.history, suspicious.verdict, suspicious.record, config,
                               rollbacks_left)) == VerdictAction::redo) {
    HF_TRY(attempt, attempt_again(step, suspicious));
    suspicious.restored_parameters |= attempt.restored_parameters;
    suspicious.bits.push_back(step.bits_of(attempt));
    suspicious.verdict = verdict_of(step.history, attempt.numbers, config);
    suspicious.record = {.attempts = suspicious.record.attempts + 1,
                         .differing_ranks_last = static_cast<int>(attempt.votes.differs_from_last),
                         .differing_ranks_first = static_cast<int>(attempt.votes.differs_from_first)};
  }
  return action;
}

// Says what follows from the numbers, and from bits that differ.
Result<CheckedStep> conclude(const StepAccess& step, const SuspiciousStep& suspicious, const Attempt& attempt,
                             VerdictAction action) {
  const RankContext& rank = step.rank;
  const Verdict& shown = suspicious.shown();
  const VerdictKind kind = suspicious.verdict.kind;
  HF_TRY(const NumbersRecords records,
         gather_records(rank, step.verified_step, computed_numbers(step, suspicious, attempt)));
  const MeshShape& shape = rank.mesh.shape();
  const NumbersSuspect suspect = attribute(records, shape.pipeline * shape.tensor == 1);
  Finding finding{.kind = suspicious.is_corruption() ? VerdictKind::corruption : shown.kind,
                  .of = shown.of_norm ? VerdictSubject::grad_norm : VerdictSubject::loss,
                  .action = action,
                  .notes_last = true,
                  .report = {.step = attempt.numbers.step,
                             .value = shown.of_norm ? attempt.numbers.grad_norm : attempt.numbers.loss,
                             .score = shown.score,
                             .median = shown.median,
                             .attempts = suspicious.record.attempts,
                             .differing_ranks = suspect.differing_ranks}};
  if (suspect.rank.has_value())
    finding.suspects = {{.index = *suspect.rank,
                         .record = records[static_cast<std::size_t>(*suspect.rank)],
                         .kind = suspect.by_parameters                ? finding_kinds::memory
                                 : is_unrepeatable(suspicious.record) ? finding_kinds::lasts
                                                                      : finding_kinds::once}};
  VerdictEvent& report = finding.report;
  const bool is_too_high = kind == VerdictKind::spike || kind == VerdictKind::exploded;
  if (kind == VerdictKind::nonfinite || is_too_high) name_microbatch(step, records, shown.of_norm, report);
  if (suspicious.record.attempts > 1 && !is_unrepeatable(suspicious.record)) {
    if (kind == VerdictKind::nonfinite) name_first_op(step, records, report);
    if (is_too_high) HF_TRY_VOID(name_largest_tensor(step, attempt, report));
  }
  const double norm_limit = action == VerdictAction::clip ? median_norm(step.history) : 0.0;
  Rollback rollback;
  if (action == VerdictAction::rollback)
    rollback = {.trusted_step = rollback_target(step.history, suspicious.verdict, rank.config.verdict),
                .data_cursor = step.next_data_cursor};
  finding.kept = consequence_of(suspicious, action, report, rank.config, norm_limit, rollback.trusted_step);
  report.reason =
      sentence_of(step, suspicious, attempt.numbers, report) + cause_of(suspicious, records, suspect);
  CheckedStep checked = follow(rank, attempt, std::move(finding));
  checked.norm_limit = norm_limit;
  if (checked.action == VerdictAction::rollback) checked.rollback = rollback;
  return checked;
}

}  // namespace

NumbersSuspect attribute(const NumbersRecords& records, bool copies_have_one_rank) {
  NumbersSuspect found;
  for (const CheckRecord<ComputedNumbers>& record : records) {
    found.by_parameters |= record.found.restored_parameters;
    if (record.found.losses_differ || record.found.gradients_differ) ++found.differing_ranks;
  }
  std::vector<int> suspects;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const ComputedNumbers& each = records[rank].found;
    if (found.by_parameters ? each.restored_parameters : each.losses_differ && copies_have_one_rank)
      suspects.push_back(static_cast<int>(rank));
  }
  // One rank alone is the suspect where its losses differ, or where there is no other rank.
  if (suspects.empty() && records.size() == 1 && found.differing_ranks == 1) suspects = {0};
  if (suspects.size() == 1) found.rank = suspects[0];
  return found;
}

Result<CheckedStep> check_numbers(const StepAccess& step, const Attempt& first) {
  const VerdictConfig& config = step.rank.config.verdict;
  step.history.set_window(config.window_steps);
  SuspiciousStep suspicious{.first = verdict_of(step.history, first.numbers, config)};
  suspicious.verdict = suspicious.first;
  if (suspicious.first.kind == VerdictKind::fine) return CheckedStep{.attempt = first};
  suspicious.bits = {step.bits_of(first)};
  // Attempts read the same memory, so they agree on numbers of a state that has changed in it.
  if (next_action(step.history, suspicious.verdict, suspicious.record, config) == VerdictAction::redo) {
    HF_TRY(std::optional<CheckedStep> corrupted, check_state(step, first));
    if (corrupted.has_value()) return *std::move(corrupted);
  }
  Attempt attempt = first;
  HF_TRY(const VerdictAction action, repeat(step, suspicious, attempt));
  return conclude(step, suspicious, attempt, action);
}

}  // namespace holdfast::integrity
