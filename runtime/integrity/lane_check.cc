#include "runtime/integrity/lane_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "runtime/integrity/product_check.h"

namespace holdfast::integrity {
namespace {

constexpr std::size_t audit_trials = 2;

// Ranks other than the owner; the owner alone where there is no other.
int auditors(int data_ranks) {
  return std::max(1, data_ranks - 1);
}

LaneTrials trials_of(const Attempt& first, const Attempt& second) {
  LaneTrials made{.restored_parameters = second.restored_parameters};
  const auto text = [](const std::optional<Digest>& digest) {
    return digest.has_value() ? to_hex(*digest) : std::string();
  };
  const std::array<AuditDigests, audit_trials> digests = {first.digests, second.digests};
  for (std::size_t i = 0; i < audit_trials; ++i) {
    made.as_owner[i] = text(digests[i].as_owner);
    made.as_auditor[i] = text(digests[i].as_auditor);
  }
  return made;
}

// Returns the trials of each pair of ranks that are at the same stage and slice.
std::map<std::pair<int, int>, std::array<AuditTrial, audit_trials>> trials_by_pair(
    const LaneRecords& records, const std::array<LaneAudit, audit_trials>& audits) {
  std::map<std::pair<int, int>, std::array<AuditTrial, audit_trials>> pairs;
  for (const CheckRecord<LaneTrials>& record : records) {
    std::array<AuditTrial, audit_trials>& pair = pairs[{record.pipeline, record.tensor}];
    for (std::size_t i = 0; i < audit_trials; ++i) {
      pair[i].audit = audits[i];
      if (record.data == audits[i].owner) HF_CHECK(from_hex(record.found.as_owner[i], pair[i].owner));
      if (record.data == audits[i].auditor) HF_CHECK(from_hex(record.found.as_auditor[i], pair[i].auditor));
    }
  }
  return pairs;
}

// Returns all ranks of the copies of the model that the suspects are of; none where that is more than one copy.
LaneSuspects whole_copies(const LaneRecords& records, LaneSuspects suspects) {
  std::set<int> copies;
  for (const int rank : suspects.ranks) copies.insert(records[static_cast<std::size_t>(rank)].data);
  suspects.ranks.clear();
  if (copies.size() != 1) return suspects;
  for (std::size_t rank = 0; rank < records.size(); ++rank)
    if (copies.contains(records[rank].data)) suspects.ranks.push_back(static_cast<int>(rank));
  return suspects;
}

LaneSuspects attribute_to_replica(const LaneRecords& records,
                                  const std::array<LaneAudit, audit_trials>& audits) {
  using Who = AuditAttribution::Who;
  const auto pairs = trials_by_pair(records, audits);
  LaneSuspects suspects;
  bool is_known = true;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const CheckRecord<LaneTrials>& record = records[rank];
    const auto& pair = pairs.at({record.pipeline, record.tensor});
    const Who who = attribute(pair[0], pair[1]).who;
    if (who == Who::unknown) is_known = false;
    const bool is_owner = who == Who::owner && record.data == audits[0].owner;
    const bool is_auditor = who == Who::auditor && record.data == audits[0].auditor;
    if (is_owner || is_auditor) suspects.ranks.push_back(static_cast<int>(rank));
    suspects.has_auditor |= is_auditor;
  }
  if (!is_known) suspects = {};
  return whole_copies(records, std::move(suspects));
}

// Returns the newest step that no rank that may be a suspect has computed wrong, as far as audits say.
std::uint64_t last_verified_step(std::uint64_t step, std::span<const int> suspects,
                                 const LaneRecords& records, const LaneAudit& audit) {
  std::set<int> replicas = {audit.owner, audit.auditor};
  if (!suspects.empty()) replicas.clear();
  for (const int rank : suspects) replicas.insert(records[static_cast<std::size_t>(rank)].data);
  for (const RankRecord& record : records)
    if (replicas.contains(record.data)) step = std::min(step, record.verified_step);
  return step;
}

std::string sentence_of(const Finding& finding, const LaneAudit& audit, bool by_parameters) {
  const bool lasts = finding.hardware == HardwareState::lasts;
  std::string who = "it is not known which of the two";
  if (!finding.suspects.empty()) {
    std::vector<std::string> names;
    for (const Suspect& suspect : finding.suspects) names.push_back(suspect.record.name());
    who = fmt::format("{}{} computed {}", names.size() > 1 ? "one of " : "", fmt::join(names, ", "),
                      by_parameters ? "with parameters that had changed in its memory" : "wrong numbers");
  }
  return fmt::format(
      "step {}: lane {} was computed by replicas {} and {}, and the bits of its gradients are not the "
      "same{}; {}{}",
      finding.report.step, audit.lane, audit.owner, audit.auditor,
      lasts ? ", nor are they when it is computed again" : ", but they are when it is computed again", who,
      lasts ? fmt::format("; weights may be wrong since step {}", finding.verified_step) : "");
}

// Returns the kind of finding about each of the suspects.
std::string_view kind_of(const LaneSuspects& suspects, bool lasts) {
  if (suspects.ranks.size() > 1) return lasts ? finding_kinds::lasts : "";
  if (suspects.by_parameters) return finding_kinds::memory;
  return lasts ? finding_kinds::lasts : finding_kinds::once;
}

}  // namespace

std::optional<LaneAudit> audit_at(std::uint64_t step, std::int64_t every_steps, int lanes, int data_ranks,
                                  int retry) {
  if (every_steps <= 0 || step % static_cast<std::uint64_t>(every_steps) != 0) return {};
  const std::uint64_t audit = step / static_cast<std::uint64_t>(every_steps) - 1;
  const auto lane = static_cast<int>(audit % static_cast<std::uint64_t>(lanes));
  const std::uint64_t round = audit / static_cast<std::uint64_t>(lanes) + static_cast<std::uint64_t>(retry);
  const int owner = lane % data_ranks;
  const auto distance = static_cast<int>(round % static_cast<std::uint64_t>(auditors(data_ranks))) + 1;
  return LaneAudit{.lane = lane, .owner = owner, .auditor = (owner + distance) % data_ranks};
}

std::uint64_t last_audit_of(int data_rank, std::uint64_t step, std::int64_t every_steps, int lanes,
                            int data_ranks) {
  if (every_steps <= 0) return 0;
  const auto every = static_cast<std::uint64_t>(every_steps);
  for (std::uint64_t before = (step - 1) / every * every; before > 0; before -= every) {
    const LaneAudit audit = audit_at(before, every_steps, lanes, data_ranks).value();
    if (audit.owner == data_rank || audit.auditor == data_rank) return before;
  }
  return 0;
}

std::uint64_t proved_step(std::uint64_t since, std::uint64_t step, std::int64_t every_steps, int lanes,
                          int data_ranks) {
  std::uint64_t proved = step;
  for (int rank = 0; rank < data_ranks && proved > since; ++rank)
    proved = std::min(proved, last_audit_of(rank, step + 1, every_steps, lanes, data_ranks));
  return proved > since ? proved : 0;
}

std::int64_t affordable_audit_interval(int waves) {
  constexpr std::int64_t steps_of_one_wave = 1334;  // 2 / 0.15 %
  return std::max<std::int64_t>(1, (steps_of_one_wave + waves - 1) / waves);
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
  const bool same_auditor = first.audit.auditor == second.audit.auditor;
  if (first.agrees() && second.agrees()) return {};
  const bool owner_differs = first.owner != second.owner;
  if (second.agrees()) return {.who = owner_differs ? owner : auditor, .lasts = false};
  if (first.agrees())
    return {.who = owner_differs ? owner : same_auditor ? auditor : unknown, .lasts = false};
  if (owner_differs) return {.who = owner, .lasts = true};
  const bool auditors_agree = first.auditor == second.auditor;
  if (same_auditor) return {.who = auditors_agree ? unknown : auditor, .lasts = true};
  return {.who = auditors_agree ? owner : unknown, .lasts = true};
}

LaneSuspects attribute(const LaneRecords& records, const std::array<LaneAudit, audit_trials>& audits,
                       bool lasts) {
  LaneSuspects suspects{.by_parameters = true};
  for (std::size_t rank = 0; rank < records.size() && !lasts; ++rank) {
    const CheckRecord<LaneTrials>& record = records[rank];
    const bool is_audited = record.data == audits[0].owner || record.data == audits[0].auditor;
    if (record.found.restored_parameters && is_audited) suspects.ranks.push_back(static_cast<int>(rank));
  }
  return suspects.ranks.empty() ? attribute_to_replica(records, audits) : suspects;
}

Result<CheckedStep> check_lane(const StepAccess& step, const Attempt& first) {
  if (!first.audit_failed()) return CheckedStep{.attempt = first};
  std::vector<AttemptBits> bits = {step.bits_of(first)};
  HF_TRY(Attempt attempt, step.attempt_again(bits, 1));
  const std::array<LaneAudit, audit_trials> audits = {first.audit.value(), attempt.audit.value()};
  HF_TRY(const LaneRecords records, gather_records(step.rank, step.verified_step, trials_of(first, attempt)));
  bool lasts = attempt.audit_failed();
  LaneSuspects suspects = attribute(records, audits, lasts);
  // A product with a known result may say which of two replicas that differ for good is wrong.
  if (lasts && suspects.ranks.empty()) {
    HF_TRY(suspects.ranks, ranks_with_wrong_products(step));
  }
  const int replicas = step.rank.mesh.shape().data;
  int attempts = 2;
  if (!lasts && suspects.has_auditor && audits[1].auditor != audits[0].auditor) {
    bits.push_back(step.bits_of(attempt));
    HF_TRY(attempt, step.attempt_again(bits, replicas - 1));
    lasts = attempt.audit_failed();
    ++attempts;
  }
  Finding finding{.hardware = lasts ? HardwareState::lasts : HardwareState::recovered,
                  .verified_step = last_verified_step(step.step, suspects.ranks, records, audits[0]),
                  // A replica that audits itself does not know since when it computes wrong.
                  .may_go_back = replicas > 1,
                  .kept = "the numbers that both computed count",
                  .stopped = std::string(replace_hardware_clause),
                  .report = {.step = step.step + 1,
                             .value = attempt.numbers.grad_norm,
                             .attempts = attempts,
                             .differing_ranks = static_cast<int>(suspects.ranks.size()),
                             .lane = audits[0].lane}};
  for (const int rank : suspects.ranks)
    finding.suspects.push_back(
        {.index = rank, .record = records[static_cast<std::size_t>(rank)], .kind = kind_of(suspects, lasts)});
  finding.report.reason = sentence_of(finding, audits[0], suspects.by_parameters);
  return follow(step.rank, attempt, std::move(finding));
}

}  // namespace holdfast::integrity
