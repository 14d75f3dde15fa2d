#include "kernels/cost.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/visit_op.h"

namespace holdfast::test {
namespace {

struct Row {
  std::string name;
  OpCost actual;
  double flops;
  std::uint64_t read, written, updated;
};

// Only addresses count: which operands are the same memory.
float memory[4];
BFloat16 half_memory[1];
std::int32_t tokens[1];

std::vector<Row> matmul_rows() {
  const Matmul forward{.bias = memory, .m = 4, .n = 6, .k = 8, .transpose_b = true};
  Matmul half = forward;
  half.dtype = DType::bf16;
  Matmul branch = half;
  branch.residual = half_memory;
  branch.dtype_c = DType::bf16;
  Matmul of_gelu = branch;
  of_gelu.bias = of_gelu.residual = nullptr;
  of_gelu.gelu_of = half_memory;
  const Matmul gradient{
      .m = 4, .n = 6, .k = 8, .transpose_a = true, .accumulate = true, .dtype = DType::bf16};
  return {{"matmul with bias", cost_of(forward), 384, 4 * (32 + 48 + 6), 4 * 24, 0},
          {"matmul bf16 to fp32", cost_of(half), 384, 2 * (32 + 48 + 6), 4 * 24, 0},
          {"matmul with residual", cost_of(branch), 384, 2 * (32 + 48 + 6 + 24), 2 * 24, 0},
          {"matmul times the derivative of GELU", cost_of(of_gelu), 384, 2 * (32 + 48 + 24), 2 * 24, 0},
          {"matmul that accumulates", cost_of(gradient), 384, 2 * (32 + 48) + 96, 96, 96},
          {"bias_gradient", cost_of(BiasGradient{.rows = 3, .columns = 5}), 0, 60, 20, 0},
          {"bias_gradient that accumulates",
           cost_of(BiasGradient{.rows = 3, .columns = 5, .accumulate = true, .dtype = DType::bf16}), 0,
           30 + 20, 20, 20}};
}

std::vector<Row> embedding_rows() {
  const EmbeddingForward forward{.positions = memory, .rows = 6, .width = 10, .sequence_length = 3};
  EmbeddingForward rotary = forward;
  rotary.positions = nullptr;
  rotary.dtype = DType::bf16;
  const EmbeddingBackward backward{
      .positions_gradient = memory, .rows = 6, .width = 10, .sequence_length = 3, .dtype = DType::bf16};
  return {
      {"embedding_forward", cost_of(forward), 0, 24 + 4 * (60 + 30), 240, 0},
      {"embedding_forward without positions", cost_of(rotary), 0, 24 + 120, 120, 0},
      {"embedding_backward", cost_of(backward), 0, 24 + 120 + 4 * (60 + 30), 4 * (60 + 30), 4 * (60 + 30)}};
}

std::vector<Row> norm_rows() {
  const LayerNormBackward in_place{
      .dresidual = memory, .dx = memory, .rows = 2, .width = 8, .accumulate = true};
  LayerNormBackward with_sum = in_place;
  with_sum.dresidual_sum = memory + 2;
  LayerNormBackward apart = in_place;
  apart.dx = memory + 1;
  apart.accumulate = false;
  return {
      {"layernorm_forward", cost_of(LayerNormForward{.rows = 2, .width = 8}), 0, 4 * (16 + 16), 64 + 16, 0},
      {"rmsnorm_forward", cost_of(RmsNormForward{.rows = 2, .width = 8, .dtype = DType::bf16}), 0,
       2 * (16 + 8), 32 + 8, 0},
      {"layernorm_backward in place", cost_of(in_place), 0, 3 * 64 + 32 + 16 + 64, 64 + 64, 64 + 64},
      {"layernorm_backward that sums the residual", cost_of(with_sum), 0, 3 * 64 + 32 + 16 + 64 + 32,
       64 + 64 + 32, 64 + 64 + 32},
      {"layernorm_backward", cost_of(apart), 0, 3 * 64 + 32 + 16, 64 + 64, 0},
      {"rmsnorm_backward", cost_of(RmsNormBackward{.rows = 2, .width = 8, .dtype = DType::bf16}), 0,
       2 * 32 + 16 + 8, 32 + 32, 0}};
}

std::vector<Row> attention_rows() {
  const AttentionForward forward{
      .batch = 2, .sequence_length = 4, .heads = 4, .kv_heads = 2, .head_size = 8, .dtype = DType::bf16};
  AttentionForward documents = forward;
  documents.first_key = tokens;
  AttentionForward cached = forward;
  cached.cache = tokens;
  cached.first_position = 3;
  AttentionForward window = forward;
  window.window = 2;
  AttentionForward far = cached;
  far.first_position = 9;
  far.window = 3;
  far.sinks = 2;
  const AttentionBackward backward{
      .batch = 2, .sequence_length = 4, .heads = 4, .kv_heads = 2, .head_size = 8};
  // 10 pairs in each of 8 heads; a product of a pair is 16 operations; qkv has 8 rows of 8 heads.
  return {
      {"attention_forward", cost_of(forward), 2 * 16 * 80, 2 * 512, 2 * 256 + 4 * 32, 0},
      {"attention_forward of documents", cost_of(documents), 2 * 16 * 80, 2 * 512 + 32, 2 * 256 + 4 * 32, 0},
      // 12 pairs more in each head, and 2 x 7 tokens of 4 heads in the cache.
      {"attention_forward of a cache", cost_of(cached), 2 * 16 * 176, 2 * 512 + 2 * 448, 2 * 256 + 4 * 32, 0},
      // A query sees 1, 2, 2 and 2 keys.
      {"attention_forward in a window", cost_of(window), 2 * 16 * 56, 2 * 512, 2 * 256 + 4 * 32, 0},
      // Each of 4 queries sees 5 keys, all of them 8 tokens of the 13 that are in the cache.
      {"attention_forward of a cache in a window", cost_of(far), 2 * 16 * 160, 2 * 512 + 2 * 512,
       2 * 256 + 4 * 32, 0},
      {"attention_backward", cost_of(backward), 5 * 16 * 80, 4 * (512 + 512 + 32), 4 * (512 + 32), 0},
      {"rotary",
       cost_of(Rotary{.rows = 6, .row_stride = 100, .heads = 3, .head_size = 4, .sequence_length = 3}), 0,
       4 * 12 + 4 * 72, 4 * 72, 4 * 72}};
}

std::vector<Row> activation_rows() {
  return {{"gelu_forward", cost_of(GeluForward{.count = 7, .dtype = DType::bf16}), 0, 14, 14, 0},
          {"swiglu_forward", cost_of(SwigluForward{.rows = 2, .feed_forward = 5}), 0, 80, 40, 0},
          {"swiglu_backward", cost_of(SwigluBackward{.rows = 2, .feed_forward = 5}), 0, 120, 80, 0}};
}

std::vector<Row> head_rows() {
  CrossEntropy loss{.rows = 2, .row_stride = 16, .vocabulary = 10};
  CrossEntropy train = loss;
  train.gradient_scale = 0.5F;
  return {
      {"cross_entropy forward", cost_of(loss), 0, 4 * 20 + 8, 8, 0},
      {"cross_entropy", cost_of(train), 0, 4 * 20 + 8, 8 + 4 * 32, 4 * 20},
      {"cross_entropy_slice", cost_of(CrossEntropySlice{.rows = 2, .row_stride = 16, .columns = 10}), 0,
       4 * 20 + 8, 24, 0},
      {"cross_entropy_join", cost_of(CrossEntropyJoin{.rows = 2, .slice_count = 4}), 0, 96 + 8, 8 + 24, 0},
      {"cross_entropy_gradient",
       cost_of(CrossEntropyGradient{.rows = 2, .row_stride = 16, .columns = 10, .dtype = DType::bf16}), 0,
       2 * 20 + 8 + 24, 2 * 32, 2 * 20},
      {"loss_sum", cost_of(LossSum{.count = 5}), 0, 20, 8, 0}};
}

std::vector<Row> flat_rows() {
  double sums[2];
  std::uint64_t digests[2];
  float moments[1];
  const OptimizerTensor tensors[] = {{.count = 10}, {.copy = half_memory, .count = 3}};
  const OptimizerTensor states[] = {{.moment1 = moments, .moment2 = moments, .count = 4106},
                                    {.count = 10, .first_block = 2}};  // frozen
  return {
      {"adamw", cost_of(AdamW{.tensors = tensors, .tensor_count = 1}), 0, 160, 120, 120},
      {"adamw with a bf16 copy", cost_of(AdamW{.tensors = tensors, .tensor_count = 2}), 0, 208, 162, 156},
      {"adamw that writes digests",
       cost_of(AdamW{.tensors = tensors, .tensor_count = 1, .block_count = 1, .block_digests = digests}), 0,
       160, 128, 120},
      {"adamw that checks digests",
       cost_of(AdamW{.tensors = tensors,
                     .tensor_count = 1,
                     .block_count = 1,
                     .block_digests = digests,
                     .checks_digests = true}),
       0, 168, 128, 128},
      {"adamw with bf16 moments",
       cost_of(AdamW{.tensors = tensors, .tensor_count = 1, .moments = DType::bf16}), 0, 120, 80, 80},
      {"lion", cost_of(Lion{.tensors = tensors, .tensor_count = 1}), 0, 120, 80, 80},
      {"lion with bf16 moments", cost_of(Lion{.tensors = tensors, .tensor_count = 1, .moments = DType::bf16}),
       0, 100, 60, 60},
      {"optimizer_digest of bf16 moments",
       cost_of(OptimizerDigest{.tensors = states,
                               .tensor_count = 2,
                               .block_count = 3,
                               .block_digests = digests,
                               .moments = DType::bf16}),
       0, 8 * 4106 + 4 * 10, 24, 0},
      {"optimizer_digest",
       cost_of(
           OptimizerDigest{.tensors = states, .tensor_count = 2, .block_count = 3, .block_digests = digests}),
       0, 12 * 4106 + 4 * 10, 24, 0},
      {"optimizer_digest that checks a range",
       cost_of(OptimizerDigest{.tensors = states,
                               .tensor_count = 2,
                               .first_block = 1,
                               .block_count = 1,
                               .block_digests = digests,
                               .checks_digests = true}),
       0, 12 * 10 + 8, 0, 0},
      {"adamw that checks gradients",
       cost_of(AdamW{.tensors = tensors,
                     .tensor_count = 1,
                     .block_count = 1,
                     .block_digests = digests,
                     .gradient_digests = digests + 1}),
       0, 168, 128, 120},
      {"square_sum", cost_of(SquareSum{.count = 4097}), 0, 4 * 4097, 16, 0},
      {"square_sum with digests", cost_of(SquareSum{.count = 4097, .digests = digests}), 0, 4 * 4097, 32, 0},
      {"add", cost_of(Add{.count = 3, .dtype = DType::bf16}), 0, 12, 6, 0},
      {"add in place", cost_of(Add{.a = memory, .y = memory, .count = 3}), 0, 24, 12, 12},
      {"accumulate", cost_of(Accumulate{.count = 3}), 0, 24, 12, 12},
      {"accumulate with sums", cost_of(Accumulate{.count = 4097, .square_sums = sums}), 0, 8 * 4097,
       4 * 4097 + 16, 4 * 4097},
      {"accumulate with digests", cost_of(Accumulate{.count = 4097, .square_sums = sums, .digests = digests}),
       0, 8 * 4097, 4 * 4097 + 32, 4 * 4097},
      {"tree_sum",
       cost_of(TreeSum{.part_count = 4, .bias = half_memory, .rows = 3, .columns = 5, .dtype = DType::bf16}),
       0, 4 * 60 + 10, 30, 0},
      {"tree_sum with residual",
       cost_of(
           TreeSum{.part_count = 2, .residual = half_memory, .rows = 3, .columns = 5, .dtype = DType::bf16}),
       0, 4 * 30 + 30, 30, 0},
      {"tree_sum into a part",
       cost_of(TreeSum{.parts = {nullptr, memory}, .part_count = 2, .y = memory, .rows = 3, .columns = 5}), 0,
       2 * 60, 60, 60},
      {"residual_rmsnorm",
       cost_of(ResidualRmsNorm{.part_count = 2, .rows = 3, .width = 5, .dtype = DType::bf16}), 0,
       2 * 60 + 30 + 10, 30 + 30 + 12, 0},
      {"cast", cost_of(Cast{.count = 3}), 0, 12, 6, 0},
      {"fill_zero", cost_of(FillZero{.bytes = 9}), 0, 0, 9, 0},
      {"copy", cost_of(Copy{.bytes = 9}), 0, 9, 9, 0},
      {"copy_rows", cost_of(CopyRows{.rows = 3, .columns = 4, .source_stride = 6, .target_stride = 4}), 0, 48,
       48, 0},
      {"digest", cost_of(TensorDigest{.dtype = DType::bf16, .count = 3}), 0, 6, 32, 0},
      {"digest of a piece", cost_of(TensorDigest{.count = 3, .accumulate = true}), 0, 44, 32, 32}};
}

TEST(OpCost, IsWhatTheArgumentsSay) {
  for (const auto& rows : {matmul_rows(), embedding_rows(), norm_rows(), attention_rows(), activation_rows(),
                           head_rows(), flat_rows()}) {
    for (const Row& row : rows) {
      SCOPED_TRACE(row.name);
      EXPECT_DOUBLE_EQ(row.actual.flops, row.flops);
      EXPECT_EQ(row.actual.bytes_read, row.read);
      EXPECT_EQ(row.actual.bytes_written, row.written);
      EXPECT_EQ(row.actual.bytes_updated, row.updated);
    }
  }
}

TEST(OpCost, MemoryUpdatedInPlaceCountsOnceInTheWorkingSet) {
  const OptimizerTensor tensor{.count = 10};
  const OpCost cost = cost_of(AdamW{.tensors = &tensor, .tensor_count = 1});
  EXPECT_EQ(cost.bytes_moved(), 280U);
  EXPECT_EQ(cost.working_set_bytes(), 160U);
}

TEST(VisitOp, HandsOutTheStructOfEveryOp) {
  alignas(16) const std::byte arguments[op_bytes_max] = {};
  for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(OpId::count); ++i) {
    const auto id = static_cast<OpId>(i);
    const OpId visited = visit_op(id, arguments, []<typename Op>(const Op&) { return Op::id; });
    EXPECT_EQ(visited, id) << name_of(id);
  }
}

}  // namespace
}  // namespace holdfast::test
