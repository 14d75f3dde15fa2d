// Epilogue of a matrix product: the part of the op besides multiplying.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cpu::HF_ISA {

// Writes `count` elements of C from element `first` on, which are in one row: sum_at(i, lanes) + residual, or C,
// or times the derivative of GELU.
template <typename C, typename SumAt>
HF_INLINE void write_row(const Matmul& op, std::int64_t first, std::int64_t count, const SumAt& sum_at) {
  C* const c = static_cast<C*>(op.c) + first;
  if (op.gelu_of != nullptr) {
    const C* const x = static_cast<const C*>(op.gelu_of) + first;
    for_lanes(count, [&](std::int64_t i, auto some) {
      store(c + i, sum_at(i, some) * gelu_slope(load(x + i, some)), some);
    });
    return;
  }
  const C* const added = op.accumulate            ? c
                         : op.residual != nullptr ? static_cast<const C*>(op.residual) + first
                                                  : nullptr;
  for_lanes(count, [&](std::int64_t i, auto some) {
    f32x16 sum = sum_at(i, some);
    if (added != nullptr) sum = sum + load(added + i, some);
    store(c + i, sum, some);
  });
}

// Computes C from a sum of nothing, which has a bias alone: for a product of depth 0, and for the bias part of a
// product that accumulates.
HF_INLINE void add_bias_alone(const Matmul& op) {
  for_dtype(op.dtype_c, [&](auto c_element) {
    for_dtype(op.dtype, [&](auto bias_element) {
      const auto* bias = static_cast<const decltype(bias_element)*>(op.bias);
      for (std::int64_t row = 0; row < op.m; ++row) {
        write_row<decltype(c_element)>(op, row * op.ldc, op.n, [&](std::int64_t i, auto some) {
          return bias != nullptr ? load(bias + i, some) : zero();
        });
      }
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
