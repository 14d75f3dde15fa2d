// The element types of tensors. There is no tensor class: a tensor is a pointer into memory that a MemoryPlan
// owns, together with the shape in the op, model or ShardSpec that uses it. Shape suffixes used across the
// tree: B batch, T sequence, C width, H heads, K key/value heads, D head size, F feed-forward width, V
// vocabulary, N rows (B*T).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/core/check.h"

namespace holdfast::core {

enum class DType : std::uint8_t { fp32 = 0, bf16 = 1, int32 = 2, fp64 = 3 };

constexpr std::size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::int32:
      return 4;
    case DType::fp64:
      return 8;
  }
  return 0;
}

std::string_view name_of(DType dtype);

// Holds a bfloat16 as stored bits. Conversions round to nearest even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;
};
static_assert(sizeof(BFloat16) == 2);

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  // Rounding could carry a NaN into infinity, so a NaN is truncated and its quiet bit set.
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return BFloat16{static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x0040u : rounded)};
}

}  // namespace holdfast::core
