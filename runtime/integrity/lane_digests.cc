#include "runtime/integrity/lane_digests.h"

namespace holdfast::integrity {

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

}  // namespace holdfast::integrity
