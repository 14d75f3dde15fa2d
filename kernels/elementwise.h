// Small memory-bound ops.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct Add {  // y = a + b, rounded once; y may be a or b
  static constexpr OpId id = OpId::add;
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::fp32;
};
void reference(const Add& op);

// Adds source to target: the ordered add of lanes. When given, square_sums are those of SquareSum of the
// result: the add that finishes a gradient saves the norm its own pass over memory.
struct Accumulate {
  static constexpr OpId id = OpId::accumulate;
  float* target = nullptr;
  const float* source = nullptr;
  std::int64_t count = 0;
  double* square_sums = nullptr;  // by block of target, or null
};
void reference(const Accumulate& op);

struct Cast {  // fp32 -> bf16, round to nearest even
  static constexpr OpId id = OpId::cast;
  const float* source = nullptr;
  BFloat16* target = nullptr;
  std::int64_t count = 0;
};
void reference(const Cast& op);

struct FillZero {
  static constexpr OpId id = OpId::fill_zero;
  void* target = nullptr;
  std::int64_t bytes = 0;
};
void reference(const FillZero& op);

struct Copy {
  static constexpr OpId id = OpId::copy;
  const void* source = nullptr;
  void* target = nullptr;
  std::int64_t bytes = 0;
};
void reference(const Copy& op);

}  // namespace holdfast::kernels
