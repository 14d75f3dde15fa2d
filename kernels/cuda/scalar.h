// Functions on single numbers: bf16 from and to fp32, and functions that a GPU has an instruction for. On the
// emulated device (tests/cuda_emulator) the standard library computes the same.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "runtime/core/tensor.h"

namespace holdfast::kernels::cuda {

__device__ inline float as_float(float value) {
  return value;
}
__device__ inline float as_float(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

// Rounds to nearest even, as runtime/core/tensor.h does; a GPU does not preserve the bits of a NaN.
template <typename T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}

#ifdef HF_CUDA_EMULATED

template <>
inline BFloat16 from_float<BFloat16>(float value) {
  return to_bfloat16(value);
}
inline unsigned pack_bf16(float low, float high) {
  return from_float<BFloat16>(low).bits | static_cast<unsigned>(from_float<BFloat16>(high).bits) << 16;
}
inline float exp2_approximate(float x) {
  return std::exp2(x);
}
inline float reciprocal_approximate(float x) {
  return 1.0F / x;
}

#else

template <>
__device__ inline BFloat16 from_float<BFloat16>(float value) {
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
// Rounds two values; `low` goes to the lower half.
__device__ inline unsigned pack_bf16(float low, float high) {
  unsigned result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
// Returns 2^x within two units in the last place; denormal results are zero.
__device__ inline float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// Returns 1 / x within one unit in the last place; denormal results are zero.
__device__ inline float reciprocal_approximate(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#endif

// Returns e^x. The error of the product is relative to x, so the result is as exact as x is small or e^x is.
__device__ inline float exp_approximate(float x) {
  constexpr float log2_e = 1.4426950408889634F;
  return exp2_approximate(x * log2_e);
}

// Returns 1 / (1 + e^-x).
__device__ inline float sigmoid(float x) {
  return reciprocal_approximate(1.0F + exp_approximate(-x));
}

// GELU's (1 + tanh u) / 2 is sigmoid(2 u), with 2 u = scale * (x + cubic x^3).
constexpr float gelu_scale = 1.5957691216057308F;  // 2 sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715F;

__device__ inline float gelu(float x) {
  return x * sigmoid(gelu_scale * x * fmaf(gelu_cubic * x, x, 1.0F));
}

// Returns the derivative of gelu(x).
__device__ inline float gelu_slope(float x) {
  const float u = gelu_scale * x * fmaf(gelu_cubic * x, x, 1.0F);
  // sigmoid(|u|) and sigmoid(-|u|) of one power.
  const float power = exp_approximate(-fabsf(u)), large = reciprocal_approximate(1.0F + power);
  const float small = power * large, of_x = u < 0.0F ? small : large;
  const float slope_of_u = gelu_scale * fmaf(3.0F * gelu_cubic * x, x, 1.0F);
  return fmaf(large * small * x, slope_of_u, of_x);  // zero meets x first: no 0 * infinity
}

}  // namespace holdfast::kernels::cuda
