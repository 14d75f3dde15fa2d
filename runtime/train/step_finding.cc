#include "runtime/train/step_finding.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "runtime/train/sample_text.h"

namespace holdfast::train {
namespace {

// Returns whether `one` is a likelier cause than `other`: the first that is not finite, else the largest.
bool is_worse(const MicrobatchLoss& one, const MicrobatchLoss& other) {
  if (one.is_finite != other.is_finite) return !one.is_finite;
  return std::tuple(-one.loss, one.lane, one.microbatch) <
         std::tuple(-other.loss, other.lane, other.microbatch);
}

std::optional<MicrobatchLoss> worst_microbatch(Worker& worker, const Attempt& attempt) {
  if (!worker.rank().counts_replicated()) return {};
  const Workload& workload = worker.workload();
  const auto per_lane = static_cast<std::size_t>(workload.batch_shape.microbatches_per_lane);
  std::optional<MicrobatchLoss> worst;
  const std::span<const double> losses = worker.stage().loss_sums().first(attempt.losses);
  for (std::size_t slot = 0; slot < losses.size(); ++slot) {
    const bool is_finite = std::isfinite(losses[slot]);
    const MicrobatchLoss each{.lane = workload.rank_lanes[slot / per_lane],
                              .microbatch = static_cast<int>(slot % per_lane),
                              .is_finite = is_finite,
                              .loss = is_finite ? losses[slot] : 0.0};
    if (!worst.has_value() || is_worse(each, *worst)) worst = each;
  }
  return worst;
}

}  // namespace

StepFinding finding_of(Worker& worker, const Attempt& attempt, std::span<const AttemptBits> bits,
                       bool restored_parameters) {
  const auto differ = [&](auto AttemptBits::*digest) {
    return std::ranges::any_of(bits,
                               [&](const AttemptBits& each) { return each.*digest != bits[0].*digest; });
  };
  const Communicator& all = worker.rank().communicator;
  return {.rank = all.global_rank(all.rank()),
          .host = worker.rank().env.host_name(),
          .losses_differ = differ(&AttemptBits::losses),
          .gradients_differ = differ(&AttemptBits::gradients),
          .restored_parameters = restored_parameters,
          .worst = worst_microbatch(worker, attempt),
          .hardware = own_hardware(worker.rank())};
}

void name_microbatch(Worker& worker, std::span<const StepFinding> findings, VerdictEvent& report) {
  std::optional<MicrobatchLoss> worst;
  for (const StepFinding& finding : findings)
    if (finding.worst.has_value() && (!worst.has_value() || is_worse(*finding.worst, *worst)))
      worst = finding.worst;
  // A norm that is not finite beside finite losses says nothing about one microbatch.
  const bool backward_alone = report.of == "grad_norm" && !std::isfinite(report.value);
  if (!worst.has_value() || (backward_alone && worst->is_finite)) return;
  report.lane = worst->lane;
  report.microbatch = worst->microbatch;
  report.samples = describe_samples(worker.data(), worker.rank().config, worker.state().data_cursor,
                                    worst->lane, worst->microbatch);
}

StepBlame name_rank(std::span<const StepFinding> findings, bool copies_have_one_rank, VerdictEvent& report) {
  std::vector<const StepFinding*> suspects;
  const bool by_parameters = std::ranges::any_of(findings, &StepFinding::restored_parameters);
  for (const StepFinding& finding : findings) {
    if (finding.losses_differ || finding.gradients_differ) ++report.differing_ranks;
    if (by_parameters ? finding.restored_parameters : finding.losses_differ && copies_have_one_rank)
      suspects.push_back(&finding);
  }
  // One rank alone is to blame where its losses differ, or where there is no other rank.
  if (suspects.empty() && findings.size() == 1 && report.differing_ranks == 1) suspects = {&findings[0]};
  if (suspects.size() != 1) return {.by_parameters = by_parameters};
  report.rank = suspects[0]->rank;
  report.host = suspects[0]->host;
  return {.by_parameters = by_parameters, .culprit = static_cast<int>(suspects[0] - findings.data())};
}

}  // namespace holdfast::train
