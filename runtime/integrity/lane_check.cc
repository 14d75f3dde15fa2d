#include "runtime/integrity/lane_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "runtime/core/random.h"
#include "runtime/integrity/product_check.h"

namespace holdfast::integrity {
namespace {

constexpr std::size_t audit_trials = 2;

using Pair = std::array<AuditTrial, audit_trials>;
// Pipeline stage, slice, and owner of the lane.
using PairKey = std::tuple<int, int, int>;
using Pairs = std::map<PairKey, Pair>;

LaneTrials trials_of(const Attempt& first, const Attempt& second) {
  return {.as_owner = {to_hex(first.digests.as_owner), to_hex(second.digests.as_owner)},
          .as_auditor = {to_hex(first.digests.as_auditor), to_hex(second.digests.as_auditor)},
          .restored_parameters = second.restored_parameters};
}

// Returns the trials of each pair of ranks that are at the same stage and slice.
Pairs trials_by_pair(const LaneRecords& records, const std::array<LaneAudit, audit_trials>& audits) {
  Pairs pairs;
  for (const CheckRecord<LaneTrials>& record : records) {
    for (std::size_t i = 0; i < audit_trials; ++i) {
      const int audited = audits[i].owner_for(record.data);
      AuditTrial& own = pairs[{record.pipeline, record.tensor, record.data}][i];
      AuditTrial& other = pairs[{record.pipeline, record.tensor, audited}][i];
      HF_CHECK(from_hex(record.found.as_owner[i], own.by_owner));
      HF_CHECK(from_hex(record.found.as_auditor[i], other.by_auditor));
      other.auditor = record.data;
    }
  }
  return pairs;
}

// Returns the replicas that may have computed wrong where the trials of a lane do not agree.
std::set<int> replicas_of(const PairKey& key, const Pair& pair) {
  std::set<int> replicas;
  for (const AuditTrial& trial : pair) {
    if (trial.agrees()) continue;
    replicas.insert({std::get<2>(key), trial.auditor});
  }
  return replicas;
}

// Returns the replica that explains all lanes that were not computed alike, or none: a lane says which one it was, or
// one that others have named took part in it.
std::optional<int> wrong_replica(const Pairs& pairs) {
  using Who = AuditAttribution::Who;
  std::set<int> named;
  for (const auto& [key, pair] : pairs) {
    const Who who = attribute(pair[0], pair[1]).who;
    if (who == Who::owner) named.insert(std::get<2>(key));
    if (who == Who::auditor) named.insert(pair[0].auditor);
  }
  if (named.size() != 1) return {};
  const int replica = *named.begin();
  for (const auto& [key, pair] : pairs) {
    const std::set<int> replicas = replicas_of(key, pair);
    if (!replicas.empty() && !replicas.contains(replica)) return {};
  }
  return replica;
}

// Completes the suspects, of which `ranks` is set: with a lane that was not computed alike in the first trial, one of a
// suspect where there is one.
void describe(LaneSuspects& suspects, const LaneRecords& records, const Pairs& pairs,
              const LaneAudit& audit) {
  std::set<int> suspected, involved;
  for (const int rank : suspects.ranks) suspected.insert(records[static_cast<std::size_t>(rank)].data);
  std::optional<bool> of_suspect;  // whether the lane is; none: no lane is chosen yet
  for (const auto& [key, pair] : pairs) {
    involved.merge(replicas_of(key, pair));
    const int owner = std::get<2>(key), auditor = pair[0].auditor;
    const bool has_suspect = suspected.contains(owner) || suspected.contains(auditor);
    if (pair[0].agrees() || (of_suspect.has_value() && (*of_suspect || !has_suspect))) continue;
    of_suspect = has_suspect;
    suspects.lane = audit.lane_of(owner);
    suspects.owner = owner;
    suspects.auditor = auditor;
  }
  const std::set<int>& wrong = suspected.empty() ? involved : suspected;
  suspects.replicas.assign(wrong.begin(), wrong.end());
}

// Returns the newest step that no replica that may be a suspect has computed wrong, as far as audits say.
std::uint64_t last_verified_step(std::uint64_t step, const LaneSuspects& suspects,
                                 const LaneRecords& records) {
  for (const RankRecord& record : records)
    if (std::ranges::find(suspects.replicas, record.data) != suspects.replicas.end())
      step = std::min(step, record.verified_step);
  return step;
}

// Says who computed wrong numbers, as far as lanes tell.
std::string who_did(const LaneSuspects& suspects, const LaneRecords& records) {
  if (suspects.ranks.empty()) {
    return suspects.replicas.size() == 2
               ? "it is not known which of the two"
               : fmt::format("it is not known which of replicas {}", fmt::join(suspects.replicas, ", "));
  }
  std::vector<std::string> names;
  for (const int rank : suspects.ranks) names.push_back(records[static_cast<std::size_t>(rank)].name());
  return fmt::format(
      "{}{} computed {}", names.size() > 1 ? "one of " : "", fmt::join(names, ", "),
      suspects.by_parameters ? "with parameters that had changed in its memory" : "wrong numbers");
}

// Returns the kind of finding about each of the suspects.
std::string_view kind_of(const LaneSuspects& suspects, bool lasts) {
  if (suspects.ranks.size() > 1) return lasts ? finding_kinds::lasts : "";
  if (suspects.by_parameters) return finding_kinds::memory;
  return lasts ? finding_kinds::lasts : finding_kinds::once;
}

// Returns what lanes alone say. `audit`: of one of the trials; `step`: the newest one that was made.
Finding finding_of(const LaneSuspects& suspects, const LaneRecords& records, const LaneAudit& audit,
                   std::uint64_t step, bool lasts) {
  Finding finding{.hardware = lasts ? HardwareState::lasts : HardwareState::recovered,
                  .verified_step = last_verified_step(step, suspects, records),
                  // A replica that audits itself does not know since when it computes wrong.
                  .may_go_back = !audit.is_of_itself(),
                  .kept = "the numbers that both computed count",
                  .stopped = std::string(replace_hardware_clause)};
  for (const int rank : suspects.ranks)
    finding.suspects.push_back(
        {.index = rank, .record = records[static_cast<std::size_t>(rank)], .kind = kind_of(suspects, lasts)});
  finding.report.reason = who_did(suspects, records);
  if (lasts)
    finding.report.reason += fmt::format("; weights may be wrong since step {}", finding.verified_step);
  return finding;
}

std::string lane_clause(const LaneSuspects& suspects, std::uint64_t step, bool lasts) {
  return fmt::format(
      "step {}: lane {} was computed by replicas {} and {}, and the bits of its gradients are not the "
      "same{}; ",
      step, suspects.lane, suspects.owner, suspects.auditor,
      lasts ? ", nor are they when it is computed again" : ", but they are when it is computed again");
}

}  // namespace

std::optional<LaneAudit> audit_at(std::uint64_t step, std::int64_t every_steps, int lanes, int replicas,
                                  int retry) {
  if (every_steps <= 0 || step % static_cast<std::uint64_t>(every_steps) != 0) return {};
  const std::uint64_t audit = step / static_cast<std::uint64_t>(every_steps) - 1;
  const auto waves = static_cast<std::uint64_t>((lanes + replicas - 1) / replicas);
  LaneAudit planned{.lanes = lanes, .replicas = replicas, .wave = static_cast<int>(audit % waves)};
  if (replicas == 1) return planned;
  const std::uint64_t round = audit / waves + static_cast<std::uint64_t>(retry);
  planned.distance = static_cast<int>(round % static_cast<std::uint64_t>(replicas - 1)) + 1;
  return planned;
}

std::uint64_t proved_step(std::uint64_t since, std::uint64_t step, std::int64_t every_steps) {
  if (every_steps <= 0) return 0;
  const std::uint64_t audited = step - step % static_cast<std::uint64_t>(every_steps);
  return audited > since ? audited : 0;
}

std::int64_t affordable_audit_interval(int waves, const ScheduleShape& shape) {
  constexpr std::int64_t dividend = 4000, divisor = 3;  // 2 / 0.15 %
  // Times are in thirds of a microbatch: its forward, and its backward of inputs and of weights (schedule_time.h).
  const std::int64_t fill = shape.waves < waves ? 0 : shape.stages - 1;
  const bool is_split = shape.kind == ScheduleKind::zero_bubble;
  const std::int64_t full = 3 * std::int64_t{shape.microbatches_per_lane};
  const std::int64_t lane = full + (is_split ? 2 : 3) * fill;
  const std::int64_t step = full * waves + (is_split ? 1 : 3) * fill;
  return (dividend * lane + divisor * step - 1) / (divisor * step);
}

LaneDigests::LaneDigests(const BucketPlan& buckets, Device& device, MemoryPlan& plan)
    : buckets_(&buckets),
      device_(&device),
      slot_(plan.reserve("lane_digests", MemoryClass::workspace,
                         2 * static_cast<std::uint64_t>(buckets.local_count()) * sizeof(DigestWords),
                         MemoryKind::host_visible)) {}

void LaneDigests::bind(const MemoryArena& arena, const float* gradients) {
  words_ = arena.at<DigestWords>(slot_);
  gradients_ = gradients;
}

std::span<DigestWords> LaneDigests::words(Of of) const {
  const auto count = static_cast<std::size_t>(buckets_->local_count());
  return {words_ + (of == Of::owner ? 0 : count), count};
}

void LaneDigests::launch(Of of, int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  std::int64_t first = 0;
  for (const BucketTensor& tensor : buckets_->buckets()[index].tensors) {
    const auto count = static_cast<std::int64_t>(tensor.elements());
    device_->launch(TensorDigest{.values = gradients_ + tensor.gradient_offset,
                                 .dtype = DType::fp32,
                                 .count = count,
                                 .result = &words(of)[index],
                                 .first_index = first,
                                 .accumulate = first > 0});
    first += count;
  }
}

// Weights the words of each bucket by an odd number of its own, so that buckets that change places are seen.
Digest LaneDigests::total(Of of) const {
  Digest total;
  std::uint64_t weight = 1;
  for (const DigestWords& each : words(of)) {
    total += Digest{.high = each.sum * weight, .low = each.weighted * weight};
    weight += 2;
  }
  return total;
}

AuditAttribution attribute(const AuditTrial& first, const AuditTrial& second) {
  using enum AuditAttribution::Who;
  const bool same_auditor = first.auditor == second.auditor;
  if (first.agrees() && second.agrees()) return {};
  const bool owner_differs = first.by_owner != second.by_owner;
  if (second.agrees()) return {.who = owner_differs ? owner : auditor, .lasts = false};
  if (first.agrees())
    return {.who = owner_differs ? owner : same_auditor ? auditor : unknown, .lasts = false};
  if (owner_differs) return {.who = owner, .lasts = true};
  const bool auditors_agree = first.by_auditor == second.by_auditor;
  if (same_auditor) return {.who = auditors_agree ? unknown : auditor, .lasts = true};
  return {.who = auditors_agree ? owner : unknown, .lasts = true};
}

Digest audit_term(const AuditDigests& digests, const LaneAudit& audit, const MeshCoordinate& of) {
  const std::uint64_t place =
      mix64(static_cast<std::uint64_t>(of.pipeline), static_cast<std::uint64_t>(of.tensor));
  const auto weight = [place](int owner) { return mix64(place, static_cast<std::uint64_t>(owner)) | 1; };
  const std::uint64_t own = weight(of.data), other = weight(audit.owner_for(of.data));
  return {.high = own * digests.as_owner.high - other * digests.as_auditor.high,
          .low = own * digests.as_owner.low - other * digests.as_auditor.low};
}

LaneSuspects attribute(const LaneRecords& records, const std::array<LaneAudit, audit_trials>& audits,
                       bool lasts, std::span<const Suspect> with_wrong_products) {
  LaneSuspects suspects;
  for (const Suspect& suspect : with_wrong_products) suspects.ranks.push_back(suspect.index);
  for (std::size_t rank = 0; rank < records.size() && !lasts; ++rank)
    if (records[rank].found.restored_parameters) suspects.ranks.push_back(static_cast<int>(rank));
  suspects.by_parameters = !lasts && !suspects.ranks.empty();
  const Pairs pairs = trials_by_pair(records, audits);
  if (suspects.ranks.empty()) {
    const std::optional<int> replica = wrong_replica(pairs);
    for (std::size_t rank = 0; rank < records.size(); ++rank)
      if (records[rank].data == replica) suspects.ranks.push_back(static_cast<int>(rank));
  }
  describe(suspects, records, pairs, audits[0]);
  return suspects;
}

Result<CheckedStep> check_lane(const StepAccess& step, const Attempt& first) {
  if (!first.audit_failed()) return CheckedStep{.attempt = first};
  const std::array<AttemptBits, 1> bits = {step.bits_of(first)};
  HF_TRY(const Attempt second, step.attempt_again(bits, 1));
  HF_TRY(const LaneRecords records, gather_records(step.rank, step.verified_step, trials_of(first, second)));
  const bool lasts = second.audit_failed();
  Finding finding;
  if (lasts) {
    HF_TRY(finding, lasting_products(step));
  }
  const std::array<LaneAudit, audit_trials> audits = {first.audit.value(), second.audit.value()};
  const LaneSuspects suspects = attribute(records, audits, lasts, finding.suspects);
  if (finding.suspects.empty()) finding = finding_of(suspects, records, audits[0], step.step, lasts);
  VerdictEvent& report = finding.report;
  report.step = step.step + 1;
  report.value = second.numbers.grad_norm;
  report.attempts = 2;
  report.differing_ranks = static_cast<int>(suspects.ranks.size());
  report.lane = suspects.lane;
  report.reason = lane_clause(suspects, report.step, lasts) + report.reason;
  return follow(step.rank, second, std::move(finding));
}

}  // namespace holdfast::integrity
