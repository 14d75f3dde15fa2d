// Text of ops: the name of an op of one shape in tables.
#pragma once

#include <string>

#include "kernels/op.h"

namespace holdfast::measure {

// Shape, types and options, without the op's name: "256x768x3072 NT bias" for a matmul of m x n x k with B
// transposed, "4x64 12/12 heads of 64" for attention. Equal texts are equal work. `arguments` is the struct
// of `id`.
std::string shape_text(OpId id, const void* arguments);

// Calls visit(name, value) with every size, type and option of an op. Of an option that is a pointer only null
// or not null counts.
template <typename Op>
void visit_shape(const Op& op, auto&& visit) {
#define HF_SHAPE(field) \
  if constexpr (requires { op.field; }) visit(#field, op.field);
  // clang-format off
  HF_SHAPE(m) HF_SHAPE(n) HF_SHAPE(k) HF_SHAPE(transpose_a) HF_SHAPE(transpose_b) HF_SHAPE(batch) HF_SHAPE(rows)
  HF_SHAPE(sequence_length) HF_SHAPE(heads) HF_SHAPE(kv_heads) HF_SHAPE(head_size) HF_SHAPE(width) HF_SHAPE(columns)
  HF_SHAPE(feed_forward) HF_SHAPE(vocabulary) HF_SHAPE(row_stride) HF_SHAPE(part_count) HF_SHAPE(slice_count)
  HF_SHAPE(tensor_count) HF_SHAPE(block_count) HF_SHAPE(count) HF_SHAPE(bytes) HF_SHAPE(accumulate) HF_SHAPE(dtype)
  HF_SHAPE(dtype_c) HF_SHAPE(bias) HF_SHAPE(residual) HF_SHAPE(gelu_of) HF_SHAPE(first_key) HF_SHAPE(positions)
  HF_SHAPE(positions_gradient) HF_SHAPE(dresidual) HF_SHAPE(dresidual_sum) HF_SHAPE(square_sums)
  // clang-format on
#undef HF_SHAPE
}

}  // namespace holdfast::measure
