// Written by tools/kernel-header: calls visit(name, value) for each field of an op, of a tensor of its table, or of a segment of
// its array, in the order of the struct. Which operands an op has is not asked: see visit_operands of the contracts.
#pragma once

#include "kernels/visit_op.h"

namespace holdfast::kernels {

#define HF_FIELD(field) visit(#field, op.field);
#define HF_FIELDS(contract, fields)                            \
  inline void visit_fields(const contract& op, auto&& visit) { \
    fields                                                     \
  }

HF_FIELDS(BlockSegment, HF_FIELD(first) HF_FIELD(count) HF_FIELD(first_block))
HF_FIELDS(OptimizerTensor,
          HF_FIELD(weight) HF_FIELD(moment1) HF_FIELD(moment2) HF_FIELD(ema) HF_FIELD(gradient) HF_FIELD(copy)
              HF_FIELD(kept_weight) HF_FIELD(kept_moment1) HF_FIELD(kept_moment2) HF_FIELD(kept_ema)
                  HF_FIELD(count) HF_FIELD(first_block) HF_FIELD(weight_decay) HF_FIELD(rounding_block))
HF_FIELDS(Matmul,
          HF_FIELD(a) HF_FIELD(b) HF_FIELD(c) HF_FIELD(bias) HF_FIELD(residual) HF_FIELD(gelu_of) HF_FIELD(m)
              HF_FIELD(n) HF_FIELD(k) HF_FIELD(lda) HF_FIELD(ldb) HF_FIELD(ldc) HF_FIELD(transpose_a)
                  HF_FIELD(transpose_b) HF_FIELD(accumulate) HF_FIELD(dtype) HF_FIELD(dtype_c))
HF_FIELDS(BiasGradient, HF_FIELD(dy) HF_FIELD(gradient) HF_FIELD(rows) HF_FIELD(columns) HF_FIELD(accumulate)
                            HF_FIELD(dtype))
HF_FIELDS(EmbeddingForward,
          HF_FIELD(tokens) HF_FIELD(table) HF_FIELD(positions) HF_FIELD(x) HF_FIELD(rows) HF_FIELD(width)
              HF_FIELD(sequence_length) HF_FIELD(first_token) HF_FIELD(token_count) HF_FIELD(dtype))
HF_FIELDS(EmbeddingBackward,
          HF_FIELD(tokens) HF_FIELD(dx) HF_FIELD(table_gradient) HF_FIELD(positions_gradient) HF_FIELD(rows)
              HF_FIELD(width) HF_FIELD(sequence_length) HF_FIELD(first_token) HF_FIELD(token_count)
                  HF_FIELD(dtype))
HF_FIELDS(LayerNormForward,
          HF_FIELD(x) HF_FIELD(weight) HF_FIELD(bias) HF_FIELD(y) HF_FIELD(mean) HF_FIELD(rstd) HF_FIELD(rows)
              HF_FIELD(width) HF_FIELD(epsilon) HF_FIELD(dtype))
HF_FIELDS(LayerNormBackward,
          HF_FIELD(x) HF_FIELD(weight) HF_FIELD(dy) HF_FIELD(mean) HF_FIELD(rstd) HF_FIELD(dresidual)
              HF_FIELD(dx) HF_FIELD(weight_gradient) HF_FIELD(bias_gradient) HF_FIELD(dresidual_sum)
                  HF_FIELD(rows) HF_FIELD(width) HF_FIELD(accumulate) HF_FIELD(dtype))
HF_FIELDS(RmsNormForward, HF_FIELD(x) HF_FIELD(weight) HF_FIELD(y) HF_FIELD(rstd) HF_FIELD(rows)
                              HF_FIELD(width) HF_FIELD(epsilon) HF_FIELD(dtype))
HF_FIELDS(RmsNormBackward,
          HF_FIELD(x) HF_FIELD(weight) HF_FIELD(dy) HF_FIELD(rstd) HF_FIELD(dresidual) HF_FIELD(dx)
              HF_FIELD(weight_gradient) HF_FIELD(rows) HF_FIELD(width) HF_FIELD(accumulate) HF_FIELD(dtype))
HF_FIELDS(ResidualRmsNorm, HF_FIELD(parts) HF_FIELD(part_count) HF_FIELD(bias) HF_FIELD(residual)
                               HF_FIELD(weight) HF_FIELD(sum) HF_FIELD(y) HF_FIELD(rstd) HF_FIELD(rows)
                                   HF_FIELD(width) HF_FIELD(epsilon) HF_FIELD(dtype))
HF_FIELDS(ResidualLayerNorm,
          HF_FIELD(parts) HF_FIELD(part_count) HF_FIELD(bias) HF_FIELD(residual) HF_FIELD(weight)
              HF_FIELD(norm_bias) HF_FIELD(sum) HF_FIELD(y) HF_FIELD(mean) HF_FIELD(rstd) HF_FIELD(rows)
                  HF_FIELD(width) HF_FIELD(epsilon) HF_FIELD(dtype))
HF_FIELDS(Rotary,
          HF_FIELD(x) HF_FIELD(cosine) HF_FIELD(sine) HF_FIELD(rows) HF_FIELD(row_stride) HF_FIELD(heads)
              HF_FIELD(head_size) HF_FIELD(sequence_length) HF_FIELD(inverse) HF_FIELD(dtype))
HF_FIELDS(AttentionForward,
          HF_FIELD(qkv) HF_FIELD(cache) HF_FIELD(first_key) HF_FIELD(out) HF_FIELD(lse) HF_FIELD(batch)
              HF_FIELD(sequence_length) HF_FIELD(heads) HF_FIELD(kv_heads) HF_FIELD(head_size)
                  HF_FIELD(first_position) HF_FIELD(window) HF_FIELD(sinks) HF_FIELD(dtype))
HF_FIELDS(AttentionBackward,
          HF_FIELD(qkv) HF_FIELD(first_key) HF_FIELD(out) HF_FIELD(dout) HF_FIELD(lse) HF_FIELD(delta)
              HF_FIELD(dqkv) HF_FIELD(batch) HF_FIELD(sequence_length) HF_FIELD(heads) HF_FIELD(kv_heads)
                  HF_FIELD(head_size) HF_FIELD(window) HF_FIELD(sinks) HF_FIELD(dtype))
HF_FIELDS(GeluForward, HF_FIELD(x) HF_FIELD(y) HF_FIELD(count) HF_FIELD(dtype))
HF_FIELDS(SwigluForward, HF_FIELD(x) HF_FIELD(y) HF_FIELD(rows) HF_FIELD(feed_forward) HF_FIELD(dtype))
HF_FIELDS(SwigluBackward,
          HF_FIELD(x) HF_FIELD(dy) HF_FIELD(dx) HF_FIELD(rows) HF_FIELD(feed_forward) HF_FIELD(dtype))
HF_FIELDS(CrossEntropy,
          HF_FIELD(logits) HF_FIELD(targets) HF_FIELD(losses) HF_FIELD(rows) HF_FIELD(row_stride)
              HF_FIELD(vocabulary) HF_FIELD(gradient_scale) HF_FIELD(dtype))
HF_FIELDS(CrossEntropySlice, HF_FIELD(logits) HF_FIELD(targets) HF_FIELD(statistics) HF_FIELD(rows)
                                 HF_FIELD(row_stride) HF_FIELD(columns) HF_FIELD(first_token) HF_FIELD(dtype))
HF_FIELDS(CrossEntropyJoin, HF_FIELD(slices) HF_FIELD(targets) HF_FIELD(losses) HF_FIELD(statistics)
                                HF_FIELD(rows) HF_FIELD(slice_count))
HF_FIELDS(CrossEntropyGradient,
          HF_FIELD(logits) HF_FIELD(targets) HF_FIELD(statistics) HF_FIELD(rows) HF_FIELD(row_stride)
              HF_FIELD(columns) HF_FIELD(first_token) HF_FIELD(gradient_scale) HF_FIELD(dtype))
HF_FIELDS(LossSum, HF_FIELD(values) HF_FIELD(count) HF_FIELD(sum))
HF_FIELDS(AdamW,
          HF_FIELD(tensors) HF_FIELD(tensor_count) HF_FIELD(block_count) HF_FIELD(learning_rate)
              HF_FIELD(beta1) HF_FIELD(beta2) HF_FIELD(epsilon) HF_FIELD(correction1) HF_FIELD(correction2)
                  HF_FIELD(gradient_scale) HF_FIELD(ema_rest) HF_FIELD(moments) HF_FIELD(rounding_key)
                      HF_FIELD(keeps_state) HF_FIELD(block_digests) HF_FIELD(checks_digests) HF_FIELD(damage)
                          HF_FIELD(gradient_digests) HF_FIELD(gradient_damage))
HF_FIELDS(Lion, HF_FIELD(tensors) HF_FIELD(tensor_count) HF_FIELD(block_count) HF_FIELD(learning_rate)
                    HF_FIELD(beta1) HF_FIELD(beta2) HF_FIELD(gradient_scale) HF_FIELD(ema_rest)
                        HF_FIELD(moments) HF_FIELD(rounding_key) HF_FIELD(keeps_state) HF_FIELD(block_digests)
                            HF_FIELD(checks_digests) HF_FIELD(damage) HF_FIELD(gradient_digests)
                                HF_FIELD(gradient_damage))
HF_FIELDS(SquareSum, HF_FIELD(values) HF_FIELD(count) HF_FIELD(sums) HF_FIELD(digests) HF_FIELD(segments)
                         HF_FIELD(segment_count))
HF_FIELDS(Add, HF_FIELD(a) HF_FIELD(b) HF_FIELD(y) HF_FIELD(count) HF_FIELD(dtype))
HF_FIELDS(Accumulate, HF_FIELD(target) HF_FIELD(source) HF_FIELD(count) HF_FIELD(square_sums)
                          HF_FIELD(digests) HF_FIELD(segments) HF_FIELD(segment_count))
HF_FIELDS(TreeSum, HF_FIELD(parts) HF_FIELD(part_count) HF_FIELD(bias) HF_FIELD(residual) HF_FIELD(y)
                       HF_FIELD(rows) HF_FIELD(columns) HF_FIELD(dtype))
HF_FIELDS(Cast, HF_FIELD(source) HF_FIELD(target) HF_FIELD(count))
HF_FIELDS(FillZero, HF_FIELD(target) HF_FIELD(bytes))
HF_FIELDS(Copy, HF_FIELD(source) HF_FIELD(target) HF_FIELD(bytes))
HF_FIELDS(CopyRows, HF_FIELD(source) HF_FIELD(target) HF_FIELD(rows) HF_FIELD(columns) HF_FIELD(source_stride)
                        HF_FIELD(target_stride) HF_FIELD(dtype))
HF_FIELDS(TensorDigest, HF_FIELD(values) HF_FIELD(dtype) HF_FIELD(count) HF_FIELD(result)
                            HF_FIELD(first_index) HF_FIELD(accumulate))
HF_FIELDS(OptimizerDigest,
          HF_FIELD(tensors) HF_FIELD(tensor_count) HF_FIELD(first_block) HF_FIELD(block_count)
              HF_FIELD(block_digests) HF_FIELD(checks_digests) HF_FIELD(moments) HF_FIELD(damage))

#undef HF_FIELDS
#undef HF_FIELD

}  // namespace holdfast::kernels
