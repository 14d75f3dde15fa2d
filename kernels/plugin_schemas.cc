// Written by tools/kernel-header: the C structs of kernels/include/holdfast_kernel.h have the layout of the contracts.
#include <cstddef>

#include "kernels/include/holdfast_kernel.h"
#include "kernels/plugin_loader.h"
#include "kernels/visit_op.h"
#include "runtime/core/block.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {
namespace {

// The offset of a field that both have, and its size.
#define HF_AT(field)                                           \
  static_assert(offsetof(One, field) == offsetof(Two, field)); \
  static_assert(sizeof(One::field) == sizeof(Two::field));
#define HF_TWIN(contract, twin, fields)        \
  namespace of_##twin {                        \
    using One = contract;                      \
    using Two = ::twin;                        \
    static_assert(sizeof(One) == sizeof(Two)); \
    fields                                     \
  }

HF_TWIN(Matmul, hf_matmul,
        HF_AT(a) HF_AT(b) HF_AT(c) HF_AT(bias) HF_AT(residual) HF_AT(gelu_of) HF_AT(m) HF_AT(n) HF_AT(k)
            HF_AT(lda) HF_AT(ldb) HF_AT(ldc) HF_AT(transpose_a) HF_AT(transpose_b) HF_AT(accumulate)
                HF_AT(dtype) HF_AT(dtype_c))
HF_TWIN(BiasGradient, hf_bias_gradient,
        HF_AT(dy) HF_AT(gradient) HF_AT(rows) HF_AT(columns) HF_AT(accumulate) HF_AT(dtype))
HF_TWIN(EmbeddingForward, hf_embedding_forward,
        HF_AT(tokens) HF_AT(table) HF_AT(positions) HF_AT(x) HF_AT(rows) HF_AT(width) HF_AT(sequence_length)
            HF_AT(first_token) HF_AT(token_count) HF_AT(dtype))
HF_TWIN(EmbeddingBackward, hf_embedding_backward,
        HF_AT(tokens) HF_AT(dx) HF_AT(table_gradient) HF_AT(positions_gradient) HF_AT(rows) HF_AT(width)
            HF_AT(sequence_length) HF_AT(first_token) HF_AT(token_count) HF_AT(dtype))
HF_TWIN(LayerNormForward, hf_layernorm_forward,
        HF_AT(x) HF_AT(weight) HF_AT(bias) HF_AT(y) HF_AT(mean) HF_AT(rstd) HF_AT(rows) HF_AT(width)
            HF_AT(epsilon) HF_AT(dtype))
HF_TWIN(LayerNormBackward, hf_layernorm_backward,
        HF_AT(x) HF_AT(weight) HF_AT(dy) HF_AT(mean) HF_AT(rstd) HF_AT(dresidual) HF_AT(dx)
            HF_AT(weight_gradient) HF_AT(bias_gradient) HF_AT(dresidual_sum) HF_AT(rows) HF_AT(width)
                HF_AT(accumulate) HF_AT(dtype))
HF_TWIN(RmsNormForward, hf_rmsnorm_forward,
        HF_AT(x) HF_AT(weight) HF_AT(y) HF_AT(rstd) HF_AT(rows) HF_AT(width) HF_AT(epsilon) HF_AT(dtype))
HF_TWIN(RmsNormBackward, hf_rmsnorm_backward,
        HF_AT(x) HF_AT(weight) HF_AT(dy) HF_AT(rstd) HF_AT(dresidual) HF_AT(dx) HF_AT(weight_gradient)
            HF_AT(rows) HF_AT(width) HF_AT(accumulate) HF_AT(dtype))
HF_TWIN(ResidualRmsNorm, hf_residual_rmsnorm,
        HF_AT(parts) HF_AT(part_count) HF_AT(bias) HF_AT(residual) HF_AT(weight) HF_AT(sum) HF_AT(y)
            HF_AT(rstd) HF_AT(rows) HF_AT(width) HF_AT(epsilon) HF_AT(dtype))
HF_TWIN(ResidualLayerNorm, hf_residual_layernorm,
        HF_AT(parts) HF_AT(part_count) HF_AT(bias) HF_AT(residual) HF_AT(weight) HF_AT(norm_bias) HF_AT(sum)
            HF_AT(y) HF_AT(mean) HF_AT(rstd) HF_AT(rows) HF_AT(width) HF_AT(epsilon) HF_AT(dtype))
HF_TWIN(Rotary, hf_rotary,
        HF_AT(x) HF_AT(cosine) HF_AT(sine) HF_AT(rows) HF_AT(row_stride) HF_AT(heads) HF_AT(head_size)
            HF_AT(sequence_length) HF_AT(inverse) HF_AT(dtype))
HF_TWIN(AttentionForward, hf_attention_forward,
        HF_AT(qkv) HF_AT(cache) HF_AT(first_key) HF_AT(out) HF_AT(lse) HF_AT(batch) HF_AT(sequence_length)
            HF_AT(heads) HF_AT(kv_heads) HF_AT(head_size) HF_AT(first_position) HF_AT(window) HF_AT(sinks)
                HF_AT(dtype))
HF_TWIN(AttentionBackward, hf_attention_backward,
        HF_AT(qkv) HF_AT(first_key) HF_AT(out) HF_AT(dout) HF_AT(lse) HF_AT(delta) HF_AT(dqkv) HF_AT(batch)
            HF_AT(sequence_length) HF_AT(heads) HF_AT(kv_heads) HF_AT(head_size) HF_AT(window) HF_AT(sinks)
                HF_AT(dtype))
HF_TWIN(GeluForward, hf_gelu_forward, HF_AT(x) HF_AT(y) HF_AT(count) HF_AT(dtype))
HF_TWIN(SwigluForward, hf_swiglu_forward, HF_AT(x) HF_AT(y) HF_AT(rows) HF_AT(feed_forward) HF_AT(dtype))
HF_TWIN(SwigluBackward, hf_swiglu_backward,
        HF_AT(x) HF_AT(dy) HF_AT(dx) HF_AT(rows) HF_AT(feed_forward) HF_AT(dtype))
HF_TWIN(CrossEntropy, hf_cross_entropy,
        HF_AT(logits) HF_AT(targets) HF_AT(losses) HF_AT(rows) HF_AT(row_stride) HF_AT(vocabulary)
            HF_AT(gradient_scale) HF_AT(dtype))
HF_TWIN(CrossEntropySlice, hf_cross_entropy_slice,
        HF_AT(logits) HF_AT(targets) HF_AT(statistics) HF_AT(rows) HF_AT(row_stride) HF_AT(columns)
            HF_AT(first_token) HF_AT(dtype))
HF_TWIN(CrossEntropyJoin, hf_cross_entropy_join,
        HF_AT(slices) HF_AT(targets) HF_AT(losses) HF_AT(statistics) HF_AT(rows) HF_AT(slice_count))
HF_TWIN(CrossEntropyGradient, hf_cross_entropy_gradient,
        HF_AT(logits) HF_AT(targets) HF_AT(statistics) HF_AT(rows) HF_AT(row_stride) HF_AT(columns)
            HF_AT(first_token) HF_AT(gradient_scale) HF_AT(dtype))
HF_TWIN(LossSum, hf_loss_sum, HF_AT(values) HF_AT(count) HF_AT(sum))
HF_TWIN(AdamW, hf_adamw,
        HF_AT(tensors) HF_AT(tensor_count) HF_AT(block_count) HF_AT(learning_rate) HF_AT(beta1) HF_AT(beta2)
            HF_AT(epsilon) HF_AT(correction1) HF_AT(correction2) HF_AT(gradient_scale) HF_AT(ema_rest)
                HF_AT(moments) HF_AT(rounding_key) HF_AT(keeps_state) HF_AT(block_digests)
                    HF_AT(checks_digests) HF_AT(damage) HF_AT(gradient_digests) HF_AT(gradient_damage))
HF_TWIN(Lion, hf_lion,
        HF_AT(tensors) HF_AT(tensor_count) HF_AT(block_count) HF_AT(learning_rate) HF_AT(beta1) HF_AT(beta2)
            HF_AT(gradient_scale) HF_AT(ema_rest) HF_AT(moments) HF_AT(rounding_key) HF_AT(keeps_state)
                HF_AT(block_digests) HF_AT(checks_digests) HF_AT(damage) HF_AT(gradient_digests)
                    HF_AT(gradient_damage))
HF_TWIN(SquareSum, hf_square_sum,
        HF_AT(values) HF_AT(count) HF_AT(sums) HF_AT(digests) HF_AT(segments) HF_AT(segment_count))
HF_TWIN(Add, hf_add, HF_AT(a) HF_AT(b) HF_AT(y) HF_AT(count) HF_AT(dtype))
HF_TWIN(Accumulate, hf_accumulate,
        HF_AT(target) HF_AT(source) HF_AT(count) HF_AT(square_sums) HF_AT(digests) HF_AT(segments)
            HF_AT(segment_count))
HF_TWIN(TreeSum, hf_tree_sum,
        HF_AT(parts) HF_AT(part_count) HF_AT(bias) HF_AT(residual) HF_AT(y) HF_AT(rows) HF_AT(columns)
            HF_AT(dtype))
HF_TWIN(Cast, hf_cast, HF_AT(source) HF_AT(target) HF_AT(count))
HF_TWIN(FillZero, hf_fill_zero, HF_AT(target) HF_AT(bytes))
HF_TWIN(Copy, hf_copy, HF_AT(source) HF_AT(target) HF_AT(bytes))
HF_TWIN(CopyRows, hf_copy_rows,
        HF_AT(source) HF_AT(target) HF_AT(rows) HF_AT(columns) HF_AT(source_stride) HF_AT(target_stride)
            HF_AT(dtype))
HF_TWIN(TensorDigest, hf_digest,
        HF_AT(values) HF_AT(dtype) HF_AT(count) HF_AT(result) HF_AT(first_index) HF_AT(accumulate))
HF_TWIN(OptimizerDigest, hf_optimizer_digest,
        HF_AT(tensors) HF_AT(tensor_count) HF_AT(first_block) HF_AT(block_count) HF_AT(block_digests)
            HF_AT(checks_digests) HF_AT(moments) HF_AT(damage))
HF_TWIN(BlockSegment, hf_block_segment, HF_AT(first) HF_AT(count) HF_AT(first_block))
HF_TWIN(OptimizerTensor, hf_adamw_tensor,
        HF_AT(weight) HF_AT(moment1) HF_AT(moment2) HF_AT(ema) HF_AT(gradient) HF_AT(copy) HF_AT(kept_weight)
            HF_AT(kept_moment1) HF_AT(kept_moment2) HF_AT(kept_ema) HF_AT(count) HF_AT(first_block)
                HF_AT(weight_decay) HF_AT(rounding_block))
HF_TWIN(StateDamage, hf_state_damage, HF_AT(block_count) HF_AT(first_block))
HF_TWIN(DigestWords, hf_digest_words,
        HF_AT(sum) HF_AT(weighted) HF_AT(nonfinite) HF_AT(largest) HF_AT(reserved))
HF_TWIN(SoftmaxStatistics, hf_softmax_statistics, HF_AT(largest) HF_AT(sum) HF_AT(target_logit))

// Values that kernels need besides the structs.
static_assert(HF_FP32 == static_cast<int>(DType::fp32));
static_assert(HF_BF16 == static_cast<int>(DType::bf16));
static_assert(HF_INT32 == static_cast<int>(DType::int32));
static_assert(HF_FP64 == static_cast<int>(DType::fp64));
static_assert(HF_BLOCK_ELEMENTS == core::block_elements);

#undef HF_TWIN
#undef HF_AT

constexpr std::uint64_t schemas[op_count] = {
    HF_SCHEMA_MATMUL,
    HF_SCHEMA_BIAS_GRADIENT,
    HF_SCHEMA_EMBEDDING_FORWARD,
    HF_SCHEMA_EMBEDDING_BACKWARD,
    HF_SCHEMA_LAYERNORM_FORWARD,
    HF_SCHEMA_LAYERNORM_BACKWARD,
    HF_SCHEMA_RMSNORM_FORWARD,
    HF_SCHEMA_RMSNORM_BACKWARD,
    HF_SCHEMA_RESIDUAL_RMSNORM,
    HF_SCHEMA_RESIDUAL_LAYERNORM,
    HF_SCHEMA_ROTARY,
    HF_SCHEMA_ATTENTION_FORWARD,
    HF_SCHEMA_ATTENTION_BACKWARD,
    HF_SCHEMA_GELU_FORWARD,
    HF_SCHEMA_SWIGLU_FORWARD,
    HF_SCHEMA_SWIGLU_BACKWARD,
    HF_SCHEMA_CROSS_ENTROPY,
    HF_SCHEMA_CROSS_ENTROPY_SLICE,
    HF_SCHEMA_CROSS_ENTROPY_JOIN,
    HF_SCHEMA_CROSS_ENTROPY_GRADIENT,
    HF_SCHEMA_LOSS_SUM,
    HF_SCHEMA_ADAMW,
    HF_SCHEMA_LION,
    HF_SCHEMA_SQUARE_SUM,
    HF_SCHEMA_ADD,
    HF_SCHEMA_ACCUMULATE,
    HF_SCHEMA_TREE_SUM,
    HF_SCHEMA_CAST,
    HF_SCHEMA_FILL_ZERO,
    HF_SCHEMA_COPY,
    HF_SCHEMA_COPY_ROWS,
    HF_SCHEMA_DIGEST,
    HF_SCHEMA_OPTIMIZER_DIGEST,
};

}  // namespace

std::uint64_t plugin_schema(OpId op) {
  return schemas[static_cast<std::size_t>(op)];
}

}  // namespace holdfast::kernels
