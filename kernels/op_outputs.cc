#include "kernels/op_outputs.h"

#include <algorithm>

#include "kernels/visit_op.h"
#include "runtime/core/block.h"

namespace holdfast::kernels {
namespace {

void add(OpOutputs& outputs, const void* values, std::int64_t count, DType dtype = DType::fp32) {
  outputs.add({.values = values, .dtype = dtype, .count = count});
}

// Adds rows of which the first `columns` of each `stride` elements are written.
void add_rows(OpOutputs& outputs, const OpOutput& first, std::int64_t rows) {
  OpOutput output = first;
  if (rows <= 0 || output.row_columns <= 0) return;
  output.count = (rows - 1) * output.row_stride + output.row_columns;
  outputs.add(output);
}

void add_block_sums(OpOutputs& outputs, const double* sums, std::int64_t count) {
  constexpr auto block = static_cast<std::int64_t>(block_elements);
  add(outputs, sums, (count + block - 1) / block, DType::fp64);
}

void add_statistics(OpOutputs& outputs, const SoftmaxStatistics* statistics, std::int64_t rows) {
  constexpr auto floats = static_cast<std::int64_t>(sizeof(SoftmaxStatistics) / sizeof(float));
  outputs.add({.values = statistics, .count = floats * rows, .may_be_infinite = true});
}

void list(OpOutputs& outputs, const Matmul& op) {
  add_rows(outputs, {.values = op.c, .dtype = op.dtype_c, .row_columns = op.n, .row_stride = op.ldc}, op.m);
}

void list(OpOutputs& outputs, const BiasGradient& op) {
  add(outputs, op.gradient, op.columns);
}

void list(OpOutputs& outputs, const EmbeddingForward& op) {
  add(outputs, op.x, op.rows * op.width, op.dtype);
}

void list(OpOutputs& outputs, const EmbeddingBackward& op) {
  add(outputs, op.table_gradient, op.token_count * op.width);
  add(outputs, op.positions_gradient, std::min(op.rows, op.sequence_length) * op.width);
}

void list(OpOutputs& outputs, const LayerNormForward& op) {
  add(outputs, op.y, op.rows * op.width, op.dtype);
  add(outputs, op.mean, op.rows);
  add(outputs, op.rstd, op.rows);
}

void list(OpOutputs& outputs, const LayerNormBackward& op) {
  add(outputs, op.dx, op.rows * op.width, op.dtype);
  add(outputs, op.weight_gradient, op.width);
  add(outputs, op.bias_gradient, op.width);
}

void list(OpOutputs& outputs, const RmsNormForward& op) {
  add(outputs, op.y, op.rows * op.width, op.dtype);
  add(outputs, op.rstd, op.rows);
}

void list(OpOutputs& outputs, const RmsNormBackward& op) {
  add(outputs, op.dx, op.rows * op.width, op.dtype);
  add(outputs, op.weight_gradient, op.width);
}

void list(OpOutputs& outputs, const Rotary& op) {
  add_rows(outputs,
           {.values = op.x,
            .dtype = op.dtype,
            .row_columns = op.heads * op.head_size,
            .row_stride = op.row_stride},
           op.rows);
}

void list(OpOutputs& outputs, const AttentionForward& op) {
  const std::int64_t rows = op.batch * op.sequence_length * op.heads;
  add(outputs, op.out, rows * op.head_size, op.dtype);
  add(outputs, op.lse, rows);
}

void list(OpOutputs& outputs, const AttentionBackward& op) {
  const std::int64_t heads = op.heads + 2 * op.kv_heads;
  add(outputs, op.dqkv, op.batch * op.sequence_length * heads * op.head_size, op.dtype);
}

void list(OpOutputs& outputs, const GeluForward& op) {
  add(outputs, op.y, op.count, op.dtype);
}

void list(OpOutputs& outputs, const GeluBackward& op) {
  add(outputs, op.dx, op.count, op.dtype);
}

void list(OpOutputs& outputs, const SwigluForward& op) {
  add(outputs, op.y, op.rows * op.feed_forward, op.dtype);
}

void list(OpOutputs& outputs, const SwigluBackward& op) {
  add(outputs, op.dx, 2 * op.rows * op.feed_forward, op.dtype);
}

void list(OpOutputs& outputs, const CrossEntropy& op) {
  add(outputs, op.losses, op.rows);
  const bool with_gradient = op.gradient_scale < 0.0F || op.gradient_scale > 0.0F;
  if (with_gradient) add(outputs, op.logits, op.rows * op.row_stride, op.dtype);
}

void list(OpOutputs& outputs, const CrossEntropySlice& op) {
  add_statistics(outputs, op.statistics, op.rows);
}

void list(OpOutputs& outputs, const CrossEntropyJoin& op) {
  add(outputs, op.losses, op.rows);
  add_statistics(outputs, op.statistics, op.rows);
}

void list(OpOutputs& outputs, const CrossEntropyGradient& op) {
  add(outputs, op.logits, op.rows * op.row_stride, op.dtype);
}

void list(OpOutputs& outputs, const LossSum& op) {
  add(outputs, op.sum, 1, DType::fp64);
}

void list(OpOutputs&, const AdamW&) {}

void list(OpOutputs& outputs, const SquareSum& op) {
  add_block_sums(outputs, op.sums, op.count);
}

void list(OpOutputs& outputs, const Add& op) {
  add(outputs, op.y, op.count, op.dtype);
}

void list(OpOutputs& outputs, const Accumulate& op) {
  add(outputs, op.target, op.count);
  add_block_sums(outputs, op.square_sums, op.count);
}

void list(OpOutputs& outputs, const TreeSum& op) {
  add(outputs, op.y, op.rows * op.columns, op.dtype);
}

void list(OpOutputs& outputs, const Cast& op) {
  add(outputs, op.target, op.count, DType::bf16);
}

void list(OpOutputs&, const FillZero&) {}
void list(OpOutputs&, const Copy&) {}
void list(OpOutputs&, const TensorDigest&) {}
void list(OpOutputs&, const OptimizerDigest&) {}

}  // namespace

OpOutputs outputs_of(OpId id, const void* arguments) {
  return visit_op(id, arguments, [](const auto& op) {
    OpOutputs outputs;
    list(outputs, op);
    return outputs;
  });
}

OpOutputs outputs_of(const AdamWTensor& tensor) {
  OpOutputs outputs;
  for (const float* const values : {tensor.weight, tensor.moment1, tensor.moment2})
    add(outputs, values, tensor.count);
  add(outputs, tensor.copy, tensor.count, DType::bf16);
  return outputs;
}

}  // namespace holdfast::kernels
