// What a matrix product does besides multiplying.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/matmul.h"

namespace holdfast::inline kernels::cpu::HF_ISA {

// C = bias + C, or bias, or zero: a product that sums nothing, and the part of one with a bias that
// accumulates.
HF_INLINE void add_bias_alone(const Matmul& op) {
  for_dtype(op.dtype_c, [&](auto c_element) {
    for_dtype(op.dtype, [&](auto bias_element) {
      using C = decltype(c_element);
      const auto* bias = static_cast<const decltype(bias_element)*>(op.bias);
      for (std::int64_t row = 0; row < op.m; ++row) {
        C* c = static_cast<C*>(op.c) + row * op.ldc;
        for_lanes(op.n, [&](std::int64_t i, auto some) {
          f32x16 sum = bias != nullptr ? load(bias + i, some) : zero();
          if (op.accumulate) sum = sum + load(c + i, some);
          store(c + i, sum, some);
        });
      }
    });
  });
}

}  // namespace holdfast::inline kernels::cpu::HF_ISA
