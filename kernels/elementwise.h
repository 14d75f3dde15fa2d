// Small memory-bound ops, and the segments of arrays over which some of them work.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/block.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// BlockSegment is a part of an array whose blocks (runtime/core/block.h) are counted from its own first element on, as
// those of each tensor of a bucket of gradients are. The segments of a list lie in the order of the array, perhaps with
// padding between them, and are numbered through by block: an op has results for the blocks of the first one, then for
// those of the second.
struct BlockSegment {
  std::int64_t first = 0, count = 0;  // elements of the array
  std::int64_t first_block = 0;       // number of blocks of the segments before
};

// Returns the blocks of a list of segments; without one, those of `elements` elements.
constexpr std::int64_t blocks_of(const BlockSegment* segments, std::int64_t segment_count,
                                 std::int64_t elements) {
  if (segment_count == 0) return core::blocks_of(elements);
  const BlockSegment& last = segments[segment_count - 1];
  return last.first_block + core::blocks_of(last.count);
}

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
  // These are as SquareSum has them. Without sums of squares there are none.
  const BlockSegment* segments = nullptr;
  std::int64_t segment_count = 0;
  std::int64_t block_count() const { return blocks_of(segments, segment_count, count); }
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.source, reads("source", DType::fp32, op.count));
    visit(op.target, updates("target", DType::fp32, op.count));
    visit(op.square_sums, writes("square_sums", DType::fp64, op.block_count()).if_given());
    visit(op.digests,
          writes("digests", DType::int32, op.block_count()).of_bytes(sizeof(std::uint64_t)).if_given());
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

// Copies the first `columns` of each row between matrices whose rows may lie further apart; they do not overlap.
struct CopyRows {
  static constexpr OpId id = OpId::copy_rows;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  const void* source = nullptr;                  // dtype; (rows, source_stride)
  void* target = nullptr;                        // dtype; (rows, target_stride)
  std::int64_t rows = 0, columns = 0, source_stride = 0, target_stride = 0;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{columns}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.source, reads("source", op.dtype, op.rows * op.columns).in_rows(op.rows, op.source_stride));
    visit(op.target, writes("target", op.dtype, op.rows * op.columns).in_rows(op.rows, op.target_stride));
  }
};
void reference(const CopyRows& op);

}  // namespace holdfast::kernels
