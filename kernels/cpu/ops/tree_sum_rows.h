// Adds the parts of a TreeSum up, for the kernels of ops that begin with one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/tree_sum.h"
#include "runtime/core/check.h"

namespace holdfast::kernels::cpu::HF_ISA {

template <int count, typename Lanes>
HF_INLINE f32x16 tree(const float* const* parts, std::int64_t i, Lanes lanes) {
  if constexpr (count == 1) {
    return load(parts[0] + i, lanes);
  } else {
    return tree<count / 2>(parts, i, lanes) + tree<count / 2>(parts + count / 2, i, lanes);
  }
}

// Adds up `size` columns from the element `first` on; `bias` is the first one's, or null.
template <int count, typename T>
HF_INLINE void add_parts(const TreeSum& op, std::int64_t first, std::int64_t size, const T* bias) {
  const float* const* parts = op.parts;
  T* const y = static_cast<T*>(op.y) + first;
  const T* const residual = op.residual == nullptr ? nullptr : static_cast<const T*>(op.residual) + first;
  for_lanes(
      size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        f32x16 sum = tree<count>(parts, first + i, lanes);
        if (bias != nullptr) sum = sum + load(bias + i, lanes);
        if (residual != nullptr) sum = sum + load(residual + i, lanes);
        store(y + i, sum, lanes);
      });
}

// Calls body(a constant) with the number of parts.
template <typename Body>
HF_INLINE void for_part_count(int part_count, const Body& body) {
  switch (part_count) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 4:
      return body(std::integral_constant<int, 4>());
    case 8:
      return body(std::integral_constant<int, 8>());
    case 16:
      return body(std::integral_constant<int, 16>());
    default:
      HF_CHECK(false);
  }
}

}  // namespace holdfast::kernels::cpu::HF_ISA
