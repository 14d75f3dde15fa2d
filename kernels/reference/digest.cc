#include "kernels/digest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/reference/element.h"

namespace holdfast::kernels {

namespace {

std::uint64_t bits_at(const void* values, std::int64_t index, DType dtype) {
  const std::size_t size = bytes_of(dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(values) + static_cast<std::size_t>(index) * size, size);
  return bits;
}

double value_at(const void* values, std::int64_t index, DType dtype) {
  if (dtype == DType::int32) return 0.0;
  if (dtype == DType::fp64) return static_cast<const double*>(values)[index];
  return element(values, index, dtype);
}

}  // namespace

void reference(const TensorDigest& op) {
  DigestWords words;
  for (std::int64_t i = 0; i < op.count; ++i) {
    const std::uint64_t bits = bits_at(op.values, i, op.dtype);
    const double value = value_at(op.values, i, op.dtype);
    words.sum += bits;
    words.weighted += bits * digest_multiplier(static_cast<std::uint64_t>(op.first_index + i));
    if (!std::isfinite(value)) {
      ++words.nonfinite;
      continue;
    }
    constexpr float most = std::numeric_limits<float>::max();
    const float magnitude = std::min(static_cast<float>(std::abs(value)), most);
    words.largest = std::max(words.largest, std::bit_cast<std::uint32_t>(magnitude));
  }
  if (!op.accumulate) *op.result = {};
  add(*op.result, words);
}

}  // namespace holdfast::kernels
