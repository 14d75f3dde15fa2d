// Small memory-bound ops.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/block.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct Add {  // y = a + b, rounded once; y may be a or b
  static constexpr OpId id = OpId::add;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.a, reads("a", op.dtype, op.count));
    visit(op.b, reads("b", op.dtype, op.count));
    visit(op.y, writes("y", op.dtype, op.count));
  }
};
void reference(const Add& op);

// Adds source to target: the ordered add of lanes. When given, square_sums are those of SquareSum of the
// result, and digests, which need them, are its digests: the add that finishes a gradient saves the norm its own
// pass over memory.
struct Accumulate {
  static constexpr OpId id = OpId::accumulate;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  float* target = nullptr;
  const float* source = nullptr;
  std::int64_t count = 0;
  double* square_sums = nullptr;     // by block of target, or null
  std::uint64_t* digests = nullptr;  // by block of target, or null
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.source, reads("source", DType::fp32, op.count));
    visit(op.target, updates("target", DType::fp32, op.count));
    visit(op.square_sums, writes("square_sums", DType::fp64, blocks_of(op.count)).if_given());
    visit(op.digests,
          writes("digests", DType::int32, blocks_of(op.count)).of_bytes(sizeof(std::uint64_t)).if_given());
  }
};
void reference(const Accumulate& op);

struct Cast {  // fp32 -> bf16, round to nearest even
  static constexpr OpId id = OpId::cast;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const float* source = nullptr;
  BFloat16* target = nullptr;
  std::int64_t count = 0;
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.source, reads("source", DType::fp32, op.count));
    visit(op.target, writes("target", DType::bf16, op.count));
  }
};
void reference(const Cast& op);

struct FillZero {
  static constexpr OpId id = OpId::fill_zero;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  void* target = nullptr;
  std::int64_t bytes = 0;
  static constexpr const char* shape = "{bytes} bytes";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.target, writes("target", DType::int32, op.bytes).of_bytes(1));
  }
};
void reference(const FillZero& op);

struct Copy {
  static constexpr OpId id = OpId::copy;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const void* source = nullptr;
  void* target = nullptr;
  std::int64_t bytes = 0;
  static constexpr const char* shape = "{bytes} bytes";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.source, reads("source", DType::int32, op.bytes).of_bytes(1));
    visit(op.target, writes("target", DType::int32, op.bytes).of_bytes(1));
  }
};
void reference(const Copy& op);

}  // namespace holdfast::kernels
