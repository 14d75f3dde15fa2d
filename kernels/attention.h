// Causal self-attention with grouped queries that never stores a T x T matrix (online softmax over tiles; Dao
// et al. 2022; backward by recomputing probabilities from the log-sum-exp). Softmax and all sums in fp32.
//
// qkv_BT(H+2K)D: per row first H query heads, then K key heads, then K value heads; query head h uses key
// head h / (H / K). scale is 1/sqrt(D).
//
// first_key (batch, sequence_length) keeps documents that share a sequence apart: query t of a sequence sees
// the keys first_key[t] to t of it. 0 <= first_key[t] <= t, never decreasing along a sequence; null = 0
// everywhere. Tiles that no query sees are not computed.
//
// bf16: what is stored is rounded, and so are, where an implementation multiplies in bf16 (avx512_bf16, amx),
// the probabilities and the gradients of the scores before their products, as FlashAttention does; the others
// compute in fp32 between load and store. Their bits differ; each has the same in every run and for any
// number of threads.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct AttentionForward {
  static constexpr OpId id = OpId::attention_forward;
  const void* qkv = nullptr;                // dtype
  const std::int32_t* first_key = nullptr;  // or null
  void* out = nullptr;                      // dtype; (batch, sequence_length, heads * head_size)
  float* lse = nullptr;  // (batch, heads, sequence_length): log of the sum of exp(scale * q.k), for backward
  std::int64_t batch = 0, sequence_length = 0, heads = 0, kv_heads = 0, head_size = 0;
  DType dtype = DType::fp32;
};
void reference(const AttentionForward& op);

struct AttentionBackward {
  static constexpr OpId id = OpId::attention_backward;
  const void* qkv = nullptr;
  const std::int32_t* first_key = nullptr;  // or null
  const void* out = nullptr;
  const void* dout = nullptr;  // dtype; like out
  const float* lse = nullptr;
  float* delta = nullptr;  // (batch, heads, sequence_length) scratch: sum over D of out * dout
  void* dqkv = nullptr;    // dtype; like qkv, overwritten
  std::int64_t batch = 0, sequence_length = 0, heads = 0, kv_heads = 0, head_size = 0;
  DType dtype = DType::fp32;
};
void reference(const AttentionBackward& op);

}  // namespace holdfast::kernels
