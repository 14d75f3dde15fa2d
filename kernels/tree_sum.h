// Adds partial results that belong to the slices of a split tensor: one binary tree over neighbours, ((p0 +
// p1) + (p2 + p3)) + ..., in fp32. A rank that holds several consecutive slices may add its own subtree
// first, and the roots of such subtrees later: the bits are those of one tree.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// Computes y = tree (+ bias) (+ residual), rounded to fp32 after every addition and to dtype once, at the end.
struct TreeSum {
  static constexpr OpId id = OpId::tree_sum;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  static constexpr int parts_max = 16;
  const float* parts[parts_max] = {};  // each (rows, columns)
  int part_count = 0;                  // a power of two
  const void* bias = nullptr;          // dtype; (columns), or null
  const void* residual = nullptr;      // dtype; (rows, columns), or null; apart from y
  void* y = nullptr;                   // dtype; (rows, columns); may be a part when dtype is fp32
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{part_count} parts of {rows}x{columns}{bias}{residual}";
  static void visit_operands(auto& op, auto&& visit) {
    for (int i = 0; i < op.part_count; ++i)
      visit(op.parts[i], reads("parts", DType::fp32, op.rows * op.columns));
    visit(op.bias, reads("bias", op.dtype, op.columns).if_given());
    visit(op.residual, reads("residual", op.dtype, op.rows * op.columns).if_given());
    visit(op.y, writes("y", op.dtype, op.rows * op.columns));
  }
};
static_assert(sizeof(TreeSum) <= op_bytes_max);
void reference(const TreeSum& op);

}  // namespace holdfast::kernels
