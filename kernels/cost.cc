#include "kernels/cost.h"

#include <algorithm>

#include "kernels/visit_op.h"
#include "runtime/core/shard_spec.h"

namespace holdfast::kernels {
namespace {

std::uint64_t bytes(std::int64_t count, DType dtype) {
  return static_cast<std::uint64_t>(count) * bytes_of(dtype);
}
std::uint64_t floats(std::int64_t count) {
  return bytes(count, DType::fp32);
}

// Counts memory that is added to or written over, by `added`.
OpCost& add_output(OpCost& cost, std::uint64_t output_bytes, bool added) {
  cost.bytes_written += output_bytes;
  if (added) {
    cost.bytes_read += output_bytes;
    cost.bytes_updated += output_bytes;
  }
  return cost;
}

bool same_memory(const void* a, const void* b) {
  return a != nullptr && a == b;
}

OpCost cost(const Matmul& op) {
  OpCost result{
      .flops = 2.0 * static_cast<double>(op.m) * static_cast<double>(op.n) * static_cast<double>(op.k),
      .bytes_read = bytes(op.m * op.k + op.k * op.n + (op.bias != nullptr ? op.n : 0), op.dtype)};
  return add_output(result, bytes(op.m * op.n, op.dtype_c), op.accumulate);
}

OpCost cost(const BiasGradient& op) {
  OpCost result{.bytes_read = bytes(op.rows * op.columns, op.dtype)};
  return add_output(result, floats(op.columns), op.accumulate);
}

OpCost cost(const EmbeddingForward& op) {
  const std::int64_t position_rows =
      op.positions == nullptr ? 0 : (op.rows < op.sequence_length ? op.rows : op.sequence_length);
  return {.bytes_read = bytes(op.rows, DType::int32) + bytes((op.rows + position_rows) * op.width, op.dtype),
          .bytes_written = bytes(op.rows * op.width, op.dtype)};
}

OpCost cost(const EmbeddingBackward& op) {
  const std::int64_t position_rows =
      op.positions_gradient == nullptr ? 0 : (op.rows < op.sequence_length ? op.rows : op.sequence_length);
  OpCost result{.bytes_read = bytes(op.rows, DType::int32) + bytes(op.rows * op.width, op.dtype)};
  return add_output(result, floats((op.rows + position_rows) * op.width), true);
}

OpCost cost(const LayerNormForward& op) {
  return {.bytes_read = bytes((op.rows + 2) * op.width, op.dtype),
          .bytes_written = bytes(op.rows * op.width, op.dtype) + floats(2 * op.rows)};
}

OpCost cost(const RmsNormForward& op) {
  return {.bytes_read = bytes((op.rows + 1) * op.width, op.dtype),
          .bytes_written = bytes(op.rows * op.width, op.dtype) + floats(op.rows)};
}

// Both norms' backward; they differ in the vectors beside the rows.
template <typename Norm>
OpCost norm_backward(const Norm& op, std::int64_t statistics, std::int64_t gradients) {
  const std::uint64_t tensor = bytes(op.rows * op.width, op.dtype);
  const bool in_place = same_memory(op.dx, op.dresidual) || same_memory(op.dx, op.dy);
  OpCost result{.bytes_read = (op.dresidual != nullptr ? 3 : 2) * tensor + bytes(op.width, op.dtype) +
                              floats(statistics * op.rows),
                .bytes_written = tensor,
                .bytes_updated = in_place ? tensor : 0};
  return add_output(result, floats(gradients * op.width), op.accumulate);
}

OpCost cost(const LayerNormBackward& op) {
  return norm_backward(op, 2, 2);
}
OpCost cost(const RmsNormBackward& op) {
  return norm_backward(op, 1, 1);
}

OpCost cost(const Rotary& op) {
  OpCost result{.bytes_read = floats(op.sequence_length * op.head_size)};  // cosines and sines of half a head
  return add_output(result, bytes(op.rows * op.heads * op.head_size, op.dtype), true);
}

// Multiplications and additions of `products` products over the pairs of a query and a key not after it.
template <typename Attention>
double causal_flops(const Attention& op, double products) {
  const auto length = static_cast<double>(op.sequence_length);
  const double pairs = length * (length + 1.0) / 2.0;
  return products * 2.0 * pairs * static_cast<double>(op.head_size) *
         static_cast<double>(op.batch * op.heads);
}
template <typename Attention>
std::int64_t qkv_elements(const Attention& op) {
  return op.batch * op.sequence_length * (op.heads + 2 * op.kv_heads) * op.head_size;
}

template <typename Attention>
std::uint64_t first_key_bytes(const Attention& op) {
  return op.first_key == nullptr ? 0 : bytes(op.batch * op.sequence_length, DType::int32);
}

OpCost cost(const AttentionForward& op) {
  const std::int64_t rows = op.batch * op.sequence_length;
  return {.flops = causal_flops(op, 2.0),
          .bytes_read = bytes(qkv_elements(op), op.dtype) + first_key_bytes(op),
          .bytes_written = bytes(rows * op.heads * op.head_size, op.dtype) + floats(rows * op.heads)};
}

OpCost cost(const AttentionBackward& op) {
  const std::int64_t rows = op.batch * op.sequence_length;
  return {.flops = causal_flops(op, 5.0),
          .bytes_read = bytes(qkv_elements(op) + 2 * rows * op.heads * op.head_size, op.dtype) +
                        floats(rows * op.heads) + first_key_bytes(op),
          .bytes_written = bytes(qkv_elements(op), op.dtype) + floats(rows * op.heads)};
}

OpCost cost(const GeluForward& op) {
  return {.bytes_read = bytes(op.count, op.dtype), .bytes_written = bytes(op.count, op.dtype)};
}

OpCost cost(const GeluBackward& op) {
  return {.bytes_read = bytes(2 * op.count, op.dtype),
          .bytes_written = bytes(op.count, op.dtype),
          .bytes_updated = same_memory(op.dx, op.dy) ? bytes(op.count, op.dtype) : 0};
}

OpCost cost(const SwigluForward& op) {
  const std::int64_t count = op.rows * op.feed_forward;
  return {.bytes_read = bytes(2 * count, op.dtype), .bytes_written = bytes(count, op.dtype)};
}

OpCost cost(const SwigluBackward& op) {
  const std::int64_t count = op.rows * op.feed_forward;
  return {.bytes_read = bytes(3 * count, op.dtype),
          .bytes_written = bytes(2 * count, op.dtype),
          .bytes_updated = same_memory(op.dx, op.x) ? bytes(2 * count, op.dtype) : 0};
}

OpCost cost(const CrossEntropy& op) {
  const std::uint64_t logits = bytes(op.rows * op.vocabulary, op.dtype);
  OpCost result{.bytes_read = logits + bytes(op.rows, DType::int32), .bytes_written = floats(op.rows)};
  const bool forward_only = !(op.gradient_scale < 0.0F || op.gradient_scale > 0.0F);
  if (forward_only) return result;
  result.bytes_written += bytes(op.rows * op.row_stride, op.dtype);
  result.bytes_updated += logits;
  return result;
}

std::uint64_t statistics(std::int64_t count) {
  return static_cast<std::uint64_t>(count) * sizeof(SoftmaxStatistics);
}

OpCost cost(const CrossEntropySlice& op) {
  return {.bytes_read = bytes(op.rows * op.columns, op.dtype) + bytes(op.rows, DType::int32),
          .bytes_written = statistics(op.rows)};
}

OpCost cost(const CrossEntropyJoin& op) {
  return {.bytes_read = statistics(op.slice_count * op.rows) + bytes(op.rows, DType::int32),
          .bytes_written = floats(op.rows) + statistics(op.rows)};
}

OpCost cost(const CrossEntropyGradient& op) {
  const std::uint64_t logits = bytes(op.rows * op.columns, op.dtype);
  return {.bytes_read = logits + bytes(op.rows, DType::int32) + statistics(op.rows),
          .bytes_written = bytes(op.rows * op.row_stride, op.dtype),
          .bytes_updated = logits};
}

OpCost cost(const LossSum& op) {
  return {.bytes_read = floats(op.count), .bytes_written = bytes(1, DType::fp64)};
}

OpCost cost(const AdamW& op) {
  OpCost result;
  for (std::int64_t i = 0; i < op.tensor_count; ++i) {
    const AdamWTensor& tensor = op.tensors[i];
    result.bytes_read += floats(tensor.count);  // the gradient
    add_output(result, floats(3 * tensor.count), true);
    if (tensor.copy != nullptr) result.bytes_written += bytes(tensor.count, DType::bf16);
  }
  if (op.block_digests == nullptr) return result;
  return add_output(result, static_cast<std::uint64_t>(op.block_count) * sizeof(std::uint64_t),
                    op.checks_digests);
}

// Counts the blocks of the range alone: a table has more.
OpCost cost(const OptimizerDigest& op) {
  OpCost result;
  for (std::int64_t i = 0; i < op.tensor_count; ++i) {
    const AdamWTensor& tensor = op.tensors[i];
    constexpr auto block = static_cast<std::int64_t>(block_elements);
    const std::int64_t begin =
        std::clamp((op.first_block - tensor.first_block) * block, std::int64_t{0}, tensor.count);
    const std::int64_t end = std::clamp((op.first_block + op.block_count - tensor.first_block) * block,
                                        std::int64_t{0}, tensor.count);
    result.bytes_read += floats((tensor.moment1 == nullptr ? 1 : 3) * (end - begin));
  }
  const std::uint64_t digest_bytes = static_cast<std::uint64_t>(op.block_count) * sizeof(std::uint64_t);
  (op.checks_digests ? result.bytes_read : result.bytes_written) += digest_bytes;
  return result;
}

std::int64_t blocks(std::int64_t count) {
  constexpr auto block = static_cast<std::int64_t>(block_elements);
  return (count + block - 1) / block;
}

OpCost cost(const SquareSum& op) {
  return {.bytes_read = floats(op.count), .bytes_written = bytes(blocks(op.count), DType::fp64)};
}

OpCost cost(const Add& op) {
  const bool in_place = same_memory(op.y, op.a) || same_memory(op.y, op.b);
  return {.bytes_read = bytes(2 * op.count, op.dtype),
          .bytes_written = bytes(op.count, op.dtype),
          .bytes_updated = in_place ? bytes(op.count, op.dtype) : 0};
}

OpCost cost(const Accumulate& op) {
  OpCost result{.bytes_read = floats(op.count)};
  if (op.square_sums != nullptr) result.bytes_written += bytes(blocks(op.count), DType::fp64);
  return add_output(result, floats(op.count), true);
}

OpCost cost(const TreeSum& op) {
  const std::int64_t count = op.rows * op.columns;
  OpCost result{
      .bytes_read = floats(op.part_count * count) + (op.bias != nullptr ? bytes(op.columns, op.dtype) : 0),
      .bytes_written = bytes(count, op.dtype)};
  for (int i = 0; i < op.part_count; ++i) {
    if (same_memory(op.y, op.parts[i])) result.bytes_updated = floats(count);
  }
  return result;
}

OpCost cost(const Cast& op) {
  return {.bytes_read = floats(op.count), .bytes_written = bytes(op.count, DType::bf16)};
}

OpCost cost(const FillZero& op) {
  return {.bytes_written = static_cast<std::uint64_t>(op.bytes)};
}

OpCost cost(const Copy& op) {
  return {.bytes_read = static_cast<std::uint64_t>(op.bytes),
          .bytes_written = static_cast<std::uint64_t>(op.bytes)};
}

OpCost cost(const TensorDigest& op) {
  OpCost result{.bytes_read = bytes(op.count, op.dtype)};
  return add_output(result, sizeof(DigestWords), op.accumulate);
}

}  // namespace

OpCost cost_of(OpId id, const void* arguments) {
  return visit_op(id, arguments, [](const auto& op) { return cost(op); });
}

}  // namespace holdfast::kernels
