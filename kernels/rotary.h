// Rotary position embedding (Su et al. 2021), in place on the first `heads` heads of each row; rotates halves
// (i, i + D/2) as Hugging Face's Llama does. inverse = true is the backward pass.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct Rotary {
  static constexpr OpId id = OpId::rotary;
  static constexpr bool has_bits_of_cpu = true;  // of its CUDA kernel
  void* x = nullptr;              // dtype; (rows, row_stride), the rotated heads come first in a row
  const float* cosine = nullptr;  // (sequence_length, head_size / 2)
  const float* sine = nullptr;
  std::int64_t rows = 0, row_stride = 0, heads = 0, head_size = 0, sequence_length = 0;
  bool inverse = false;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{heads} heads of {head_size}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.cosine, reads("cosine", DType::fp32, op.sequence_length * op.head_size / 2));
    visit(op.sine, reads("sine", DType::fp32, op.sequence_length * op.head_size / 2));
    visit(op.x, updates("x", op.dtype, op.rows * op.heads * op.head_size).in_rows(op.rows, op.row_stride));
  }
};
void reference(const Rotary& op);

}  // namespace holdfast::kernels
