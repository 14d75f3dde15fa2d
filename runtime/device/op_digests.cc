#include "runtime/device/op_digests.h"

#include <algorithm>
#include <bit>

#include "kernels/op_outputs.h"

namespace holdfast::device {

MemoryPlan::Slot OpDigests::reserve(MemoryPlan& plan, std::size_t capacity) {
  return plan.reserve("op_digests", MemoryClass::workspace, capacity * sizeof(DigestWords),
                      MemoryKind::host_visible);
}

OpDigests::OpDigests(Device& device, std::span<DigestWords> memory) : device_(device), memory_(memory) {
  taken_.reserve(memory.size());
}

void OpDigests::launched(OpId id, const void* arguments) {
  const std::int64_t order = ops_++;
  int index = 0;
  for (const OpOutput& output : outputs_of(id, arguments)) {
    if (taken_.size() == memory_.size()) {
      ++left_out_;
      continue;
    }
    device_.launch(TensorDigest{.values = output.values,
                                .dtype = output.dtype,
                                .count = output.count,
                                .result = &memory_[taken_.size()]});
    taken_.push_back({.order = order,
                      .op = id,
                      .output = index++,
                      .may_be_infinite = output.may_be_infinite,
                      .scope = device_.scope(),
                      .words = {}});
  }
}

void OpDigests::clear() {
  taken_.clear();
  ops_ = left_out_ = 0;
}

std::vector<OpDigest> OpDigests::list() const {
  std::vector<OpDigest> digests = taken_;
  for (std::size_t i = 0; i < digests.size(); ++i) digests[i].words = memory_[i];
  return digests;
}

std::optional<OpDigest> first_nonfinite(std::span<const OpDigest> digests) {
  const OpDigest* first = nullptr;
  for (const OpDigest& each : digests) {
    if (each.words.nonfinite == 0 || each.may_be_infinite) continue;
    if (first == nullptr || is_computed_before(each.scope, first->scope)) first = &each;
  }
  return first == nullptr ? std::nullopt : std::optional(*first);
}

std::optional<std::size_t> first_difference(std::span<const OpDigest> one, std::span<const OpDigest> other) {
  const std::size_t both = std::min(one.size(), other.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (one[i] != other[i]) return i;
  }
  return std::nullopt;
}

std::optional<OpGrowth> largest_growth(std::span<const OpDigest> digests) {
  std::optional<OpGrowth> growth;
  double before = 0.0;
  for (const OpDigest& each : digests) {
    const auto largest = static_cast<double>(std::bit_cast<float>(each.words.largest));
    const double factor = before > 0.0 ? largest / before : 0.0;
    if (factor > 1.0 && (!growth || factor > growth->factor)) growth = {.digest = each, .factor = factor};
    before = std::max(before, largest);
  }
  return growth;
}

}  // namespace holdfast::device
