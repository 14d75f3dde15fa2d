// Bias of a matrix product: the part of the op besides multiplying.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cpu::HF_ISA {

// Computes C = bias + C, or bias + residual, or zero for either that there is not: for a product that sums
// nothing, and for the bias part of a product that accumulates.
HF_INLINE void add_bias_alone(const Matmul& op) {
  for_dtype(op.dtype_c, [&](auto c_element) {
    for_dtype(op.dtype, [&](auto bias_element) {
      using C = decltype(c_element);
      const auto* bias = static_cast<const decltype(bias_element)*>(op.bias);
      for (std::int64_t row = 0; row < op.m; ++row) {
        C* c = static_cast<C*>(op.c) + row * op.ldc;
        const C* added = op.accumulate            ? c
                         : op.residual != nullptr ? static_cast<const C*>(op.residual) + row * op.ldc
                                                  : nullptr;
        for_lanes(op.n, [&](std::int64_t i, auto some) {
          f32x16 sum = bias != nullptr ? load(bias + i, some) : zero();
          if (added != nullptr) sum = sum + load(added + i, some);
          store(c + i, sum, some);
        });
      }
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
