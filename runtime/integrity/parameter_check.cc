#include "runtime/integrity/parameter_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "runtime/core/random.h"

namespace holdfast::integrity {
namespace {

std::uint64_t odd_weight(std::uint64_t group, int member) {
  return mix64(group, static_cast<std::uint64_t>(member)) | 1;
}

Digest times(const Digest& digest, std::uint64_t factor) {
  return {.high = digest.high * factor, .low = digest.low * factor};
}

Digest digest_of_words(const DigestWords& words) {
  return {.high = words.sum, .low = words.weighted};
}

// Weighs buckets by odd numbers, so that a changed bit stays one, and buckets that change places are seen.
std::uint64_t weight_of_bucket(std::size_t bucket) {
  return 2 * static_cast<std::uint64_t>(bucket) + 1;
}

// Returns the group of terms about what frozen tensors of single ranks were; those of sets come before.
constexpr std::uint64_t group_of_changes = parameter_set_count;

std::string first_of(const std::string& first, std::size_t count) {
  return count > 1 ? fmt::format("{} and {} more", first, count - 1) : first;
}

// Names the tensors of a bucket that are sliced or replicated, the first ones.
std::string names_of(const Bucket& bucket, bool replicated) {
  std::string first;
  std::size_t count = 0;
  for (const BucketTensor& tensor : bucket.tensors) {
    if (tensor.is_replicated() != replicated) continue;
    if (count++ == 0) first = tensor.name;
  }
  return first_of(first, count);
}

// ParameterDetail is what a rank of a group that does not agree says when the step was computed again, or was not.
struct ParameterDetail {
  bool restored = false;              // Attempt::restored_parameters
  std::string changed = {};           // frozen tensors that have changed; empty: none
  std::vector<HeldBucket> held = {};  // in the first attempt

  static void visit_fields(auto& self, auto&& visit) {
    visit("restored", self.restored);
    visit("changed", self.changed);
    visit("held", self.held);
  }
};

using Details = std::span<const ParameterDetail>;

const CheckRecord<HeldParameters>& at(const ParameterRecords& records, int rank) {
  return records[static_cast<std::size_t>(rank)];
}

// Returns the groups of ranks that must hold the set alike.
std::vector<std::vector<int>> groups_of(const ParameterRecords& records, ParameterSet set) {
  std::map<std::pair<int, int>, std::vector<int>> groups;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const int slice = is_replicated(set) ? 0 : records[rank].tensor;
    groups[{records[rank].pipeline, slice}].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> all;
  for (auto& [place, ranks] : groups) all.push_back(std::move(ranks));
  return all;
}

// Returns the members that more than half of the others contradict; none where there is no such majority.
std::optional<std::vector<int>> minority_of(std::span<const int> members, const ParameterRecords& records,
                                            std::size_t set) {
  std::map<std::string, std::vector<int>> holders;
  for (const int rank : members) holders[at(records, rank).found.sets[set]].push_back(rank);
  const auto most =
      std::ranges::max_element(holders, {}, [](const auto& each) { return each.second.size(); });
  if (most == holders.end() || 2 * most->second.size() <= members.size()) return std::nullopt;
  std::vector<int> others;
  for (const auto& [digest, ranks] : holders)
    if (digest != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
  return others;
}

// Returns the first tensors that a suspect holds otherwise than another one; empty if they are not known.
std::string tensors_of(int suspect, std::span<const int> suspects, const ParameterRecords& records,
                       Details details) {
  const ParameterDetail& mine = details[static_cast<std::size_t>(suspect)];
  if (!mine.changed.empty()) return mine.changed;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const ParameterDetail& other = details[rank];
    const bool is_right = std::ranges::find(suspects, static_cast<int>(rank)) == suspects.end();
    if (!is_right || records[rank].pipeline != at(records, suspect).pipeline ||
        other.held.size() != mine.held.size())
      continue;
    for (std::size_t bucket = 0; bucket < mine.held.size(); ++bucket) {
      for (const std::size_t replicated : {std::size_t{0}, std::size_t{1}}) {
        const bool must_agree = replicated == 1 || records[rank].tensor == at(records, suspect).tensor;
        if (must_agree && mine.held[bucket].digests[replicated] != other.held[bucket].digests[replicated])
          return mine.held[bucket].tensors[replicated];
      }
    }
  }
  return "";
}

std::string describe(std::span<const int> suspects, const ParameterRecords& records, Details details) {
  if (suspects.empty()) return "it is not known whose have changed";
  std::vector<std::string> all;
  for (const int rank : suspects) {
    const std::string tensors = tensors_of(rank, suspects, records, details);
    all.push_back(fmt::format("{} computed with parameters that had changed in its memory{}{}",
                              at(records, rank).name(), tensors.empty() ? "" : ": ", tensors));
  }
  return fmt::format("{}", fmt::join(all, "; "));
}

HeldParameters held_by(const ParameterDigests& digests) {
  HeldParameters held{.frozen_changed = !digests.changed_frozen_tensors().empty()};
  for (std::size_t i = 0; i < parameter_set_count; ++i)
    held.sets[i] = to_hex(digests.total(static_cast<ParameterSet>(i)));
  return held;
}

}  // namespace

AgreementPlace agreement_place(ParameterSet set, const MeshShape& shape, const MeshCoordinate& coordinate) {
  const auto word = [](int value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t stage = mix64(static_cast<std::uint64_t>(set), word(coordinate.pipeline));
  if (!is_replicated(set))
    return {
        .group = mix64(stage, word(coordinate.tensor) + 1), .member = coordinate.data, .members = shape.data};
  return {.group = stage,
          .member = coordinate.data * shape.tensor + coordinate.tensor,
          .members = shape.data * shape.tensor};
}

Digest agreement_term(const AgreementPlace& place, const Digest& digest) {
  if (place.member > 0) return times(digest, odd_weight(place.group, place.member));
  std::uint64_t others = 0;
  for (int member = 1; member < place.members; ++member) others += odd_weight(place.group, member);
  return times(digest, 0 - others);
}

ParameterDigests::ParameterDigests(const Parts& parts, MemoryPlan& plan)
    : parts_(parts), count_(2 * parts.buckets.buckets().size()) {
  slot_ = plan.reserve("parameter_digests", MemoryClass::workspace, count_ * sizeof(DigestWords),
                       MemoryKind::host_visible);
  for (std::size_t bucket = 0; bucket < parts.buckets.buckets().size(); ++bucket)
    has_frozen_ |= is_frozen_bucket(bucket);
  if (has_frozen_) remembered_.reserve(count_);
}

void ParameterDigests::bind(const MemoryArena& arena, const std::byte* parameters) {
  words_ = arena.at<DigestWords>(slot_);
  parameters_ = parameters;
}

void ParameterDigests::launch() {
  std::fill_n(words_, count_, DigestWords());  // not all of them have tensors
  launch_all_kinds();
}

void ParameterDigests::launch_all_kinds() {
  const std::vector<Bucket>& buckets = parts_.buckets.buckets();
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (!has_parameters(bucket)) continue;
    std::array<std::int64_t, 2> first = {};
    for (const BucketTensor& tensor : buckets[bucket].tensors) {
      const std::size_t replicated = tensor.is_replicated() ? 1 : 0;
      const auto count = static_cast<std::int64_t>(tensor.elements());
      parts_.device.launch(
          TensorDigest{.values = parameters_ + tensor.parameter_offset * bytes_of(parts_.dtype),
                       .dtype = parts_.dtype,
                       .count = count,
                       .result = &words_[2 * bucket + replicated],
                       .first_index = first[replicated],
                       .accumulate = first[replicated] > 0});
      first[replicated] += count;
    }
  }
}

Digest ParameterDigests::total(ParameterSet set) const {
  Digest total;
  for (std::size_t bucket = 0; 2 * bucket < count_; ++bucket) {
    if (!has_parameters(bucket) || is_frozen_bucket(bucket) != is_frozen(set)) continue;
    total += times(digest_of_words(words(bucket, is_replicated(set))), weight_of_bucket(bucket));
  }
  return total;
}

// Returns 0 where no frozen tensor has changed since remember().
Digest ParameterDigests::frozen_change() const {
  Digest change;
  if (remembered_.empty()) return change;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!is_frozen_bucket(i / 2)) continue;
    const DigestWords &now = words_[i], &before = remembered_[i];
    change += times({.high = now.sum - before.sum, .low = now.weighted - before.weighted}, 2 * i + 1);
  }
  return change;
}

Digest ParameterDigests::term() const {
  Digest term;
  for (std::size_t i = 0; i < parameter_set_count; ++i) {
    const auto set = static_cast<ParameterSet>(i);
    term += agreement_term(agreement_place(set, parts_.shape, parts_.coordinate), total(set));
  }
  const AgreementPlace place =
      agreement_place(ParameterSet::frozen_replicated, parts_.shape, parts_.coordinate);
  term += times(frozen_change(), odd_weight(mix64(place.group, group_of_changes), place.member));
  return term;
}

std::vector<HeldBucket> ParameterDigests::held() const {
  std::vector<HeldBucket> all;
  for (std::size_t bucket = 0; 2 * bucket < count_; ++bucket) {
    HeldBucket& held = all.emplace_back();
    if (!has_parameters(bucket)) continue;
    for (const bool replicated : {false, true}) {
      held.digests[replicated ? 1 : 0] = to_hex(digest_of_words(words(bucket, replicated)));
      held.tensors[replicated ? 1 : 0] = names_of(parts_.buckets.buckets()[bucket], replicated);
    }
  }
  return all;
}

std::string ParameterDigests::changed_frozen_tensors() const {
  if (remembered_.empty()) return "";
  for (std::size_t i = 0; i < count_; ++i) {
    if (is_frozen_bucket(i / 2) && words_[i] != remembered_[i])
      return names_of(parts_.buckets.buckets()[i / 2], /*replicated=*/i % 2 == 1);
  }
  return "";
}

void ParameterDigests::remember() {
  remembered_.assign(words_, words_ + count_);
}

ParameterSuspects attribute(const ParameterRecords& records) {
  std::set<int> others_contradict, affected;
  ParameterSuspects suspects;
  bool is_known = true;
  for (std::size_t rank = 0; rank < records.size(); ++rank)
    if (records[rank].found.frozen_changed) others_contradict.insert(static_cast<int>(rank));
  affected = others_contradict;
  suspects.in_frozen = !others_contradict.empty();
  for (std::size_t i = 0; i < parameter_set_count; ++i) {
    const auto set = static_cast<ParameterSet>(i);
    for (const std::vector<int>& group : groups_of(records, set)) {
      const auto digest = [&](int rank) { return at(records, rank).found.sets[i]; };
      if (std::ranges::all_of(group, [&](int rank) { return digest(rank) == digest(group[0]); })) continue;
      affected.insert(group.begin(), group.end());
      suspects.in_frozen |= is_frozen(set);
      std::vector<int> members = group;
      if (is_frozen(set))
        std::erase_if(members, [&](int rank) { return at(records, rank).found.frozen_changed; });
      if (members.empty()) continue;
      const std::optional<std::vector<int>> others = minority_of(members, records, i);
      is_known &= others.has_value();
      if (others.has_value()) others_contradict.insert(others->begin(), others->end());
    }
  }
  if (is_known) suspects.ranks.assign(others_contradict.begin(), others_contradict.end());
  suspects.affected.assign(affected.begin(), affected.end());
  return suspects;
}

Result<CheckedStep> check_parameters(const StepAccess& step, const Attempt& first) {
  if (!first.parameters_differ()) return CheckedStep{.attempt = first};
  const RankContext& rank = step.rank;
  const ParameterDigests& digests = step.parameters;
  HF_TRY(const ParameterRecords records,
         gather_records(rank, digests.verified_step().value_or(step.first_step), held_by(digests)));
  const ParameterSuspects differ = attribute(records);
  ParameterDetail detail;
  if (std::ranges::binary_search(differ.affected, rank.communicator.rank()))
    detail = {.changed = digests.changed_frozen_tensors(), .held = digests.held()};
  Attempt attempt = first;
  if (!differ.in_frozen) {
    const std::vector<AttemptBits> bits = {step.bits_of(first)};
    HF_TRY(attempt, step.attempt_again(bits, /*audit_retry=*/0));
    detail.restored = attempt.restored_parameters;
  }
  HF_TRY(const std::vector<ParameterDetail> details, gather(rank.communicator, rank.waiter, detail));
  std::vector<int> suspects;
  for (std::size_t each = 0; each < details.size(); ++each)
    if (details[each].restored) suspects.push_back(static_cast<int>(each));
  if (suspects.empty()) suspects = differ.ranks;

  const bool lasts = !differ.in_frozen && attempt.parameters_differ();
  Finding finding{
      .of = VerdictSubject::state,
      .hardware = differ.in_frozen ? HardwareState::corrupted
                  : lasts          ? HardwareState::lasts
                                   : HardwareState::recovered,
      .verified_step = step.step,
      .kept = "they are those of their owners again, and the step was computed again",
      .stopped =
          "they differ again in the second attempt, so the update was not made. Replace that hardware, "
          "or start again without it",
      .notes_last = true,
      .report = {.step = step.step + 1,
                 .attempts = differ.in_frozen ? 1 : 2,
                 .differing_ranks = static_cast<int>(suspects.size())}};
  for (const RankRecord& each : records)
    finding.verified_step = std::min(finding.verified_step, each.verified_step);
  for (const int each : suspects)
    finding.suspects.push_back({.index = each,
                                .record = at(records, each),
                                .kind = lasts ? finding_kinds::lasts : finding_kinds::memory});
  finding.report.reason = fmt::format("step {}: {}: {}", finding.report.step,
                                      differ.in_frozen ? "frozen parameters have changed in memory"
                                                       : "copies of parameters are not the same on all ranks",
                                      describe(suspects, records, details));
  return follow(rank, attempt, std::move(finding));
}

}  // namespace holdfast::integrity
