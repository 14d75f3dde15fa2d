#include "runtime/integrity/parameter_digests.h"

#include <fmt/core.h>

#include <algorithm>

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

}  // namespace holdfast::integrity
