// Causal self-attention with grouped queries that never stores a T x T matrix (online softmax over tiles; Dao
// et al. 2022; backward by recomputing probabilities from the log-sum-exp). Softmax and all sums in fp32.
//
// qkv_BT(H+2K)D: per row first H query heads, then K key heads, then K value heads; query head h uses key
// head h / (H / K). scale is 1/sqrt(D).
//
// first_key (batch, sequence_length) keeps documents that share a sequence apart: query t of a sequence sees
// the keys first_key[t] to t of it. 0 <= first_key[t] <= t, never decreasing along a sequence; null = 0
// everywhere.
//
// window (0 = all) keeps attention local: of the keys that a query may see it sees the last `window`, itself among
// them, and the first `sinks` (attention sinks; Xiao et al. 2023): query t the keys s with first_key[t] <= s <= t
// and s > t - window or s < first_key[t] + sinks. sinks is 0 without a window; both are at most 2^30. A window of all keys gives the bits
// of none. Tiles that no query sees are not computed.
//
// Forward also continues sequences whose earlier tokens are in a cache, as text is made: row t is then token
// first_position + t of its sequence and sees all tokens up to itself. Their keys and values, those of the rows
// among them, are in cache_BS(2K)D with S = first_position + sequence_length, per token first K key heads, then
// K value heads; those in qkv are not read, and first_key is null. The kernels of this tree give a row the same
// bits with a cache as without.
//
// bf16: what is stored is rounded, and so are, where an implementation multiplies in bf16 (avx512_bf16, amx),
// the probabilities and the gradients of the scores before their products, as FlashAttention does; the others
// compute in fp32 between load and store. Their bits differ; each has the same in every run and for any
// number of threads.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// Returns the number of pairs of a query and a key that a window hides, where `cached` keys are before the first query.
double hidden_pairs(const auto& op, std::int64_t cached) {
  const auto below = [](std::int64_t end) {
    return end > 0 ? static_cast<double>(end) * static_cast<double>(end + 1) / 2.0 : 0.0;
  };
  if (op.window <= 0) return 0.0;
  const std::int64_t first =
      cached - op.window - op.sinks;  // keys that are hidden from the query before the first
  return below(first + op.sequence_length) - below(first);
}
// Multiplications and additions of `products` products over the pairs of a query and a key that it sees, where
// `cached` keys are before the first query; documents do not count.
double causal_flops(const auto& op, double products, std::int64_t cached = 0) {
  const auto length = static_cast<double>(op.sequence_length);
  const double pairs =
      length * ((length + 1.0) / 2.0 + static_cast<double>(cached)) - hidden_pairs(op, cached);
  return products * 2.0 * pairs * static_cast<double>(op.head_size) *
         static_cast<double>(op.batch * op.heads);
}
// Returns the operand of a cache, of whose `tokens` the rows see some.
constexpr Operand reads_cache(const auto& op, std::int64_t tokens) {
  const std::int64_t seen = op.window > 0 && op.window + op.sinks < tokens - op.sequence_length + 1
                                ? op.window + op.sinks + op.sequence_length - 1
                                : tokens;
  const std::int64_t width = op.batch * 2 * op.kv_heads * op.head_size;
  return reads("cache", op.dtype, seen * width).out_of(tokens * width).if_given();
}
constexpr Operand reads_first_keys(std::int64_t rows) {
  return reads("first_key", DType::int32, rows).holding(Operand::Content::first_keys).if_given();
}

struct AttentionForward {
  static constexpr OpId id = OpId::attention_forward;
  const void* qkv = nullptr;                // dtype
  const void* cache = nullptr;              // dtype; (batch, S, 2 kv_heads, head_size), or null
  const std::int32_t* first_key = nullptr;  // or null
  void* out = nullptr;                      // dtype; (batch, sequence_length, heads * head_size)
  float* lse = nullptr;  // (batch, heads, sequence_length): log of the sum of exp(scale * q.k), for backward
  std::int64_t batch = 0, sequence_length = 0, heads = 0, kv_heads = 0, head_size = 0;
  std::int64_t first_position = 0;  // tokens of the cache before the first row; 0 without a cache
  std::int64_t window = 0;          // last keys that a query sees; 0 = all
  std::int64_t sinks = 0;           // first keys that it sees besides; 0 without a window
  DType dtype = DType::fp32;
  static constexpr const char* shape =
      "{batch}x{sequence_length} {heads}/{kv_heads} heads of {head_size}{cache}{window}";
  double flops() const { return causal_flops(*this, 2.0, first_position); }
  static void visit_operands(auto& op, auto&& visit) {
    const std::int64_t rows = op.batch * op.sequence_length;
    visit(op.qkv, reads("qkv", op.dtype, rows * (op.heads + 2 * op.kv_heads) * op.head_size));
    visit(op.cache, reads_cache(op, op.first_position + op.sequence_length));
    visit(op.first_key, reads_first_keys(rows));
    visit(op.out, writes("out", op.dtype, rows * op.heads * op.head_size));
    visit(op.lse, writes("lse", DType::fp32, rows * op.heads));
  }
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
  std::int64_t window = 0;  // as forward has them
  std::int64_t sinks = 0;
  DType dtype = DType::fp32;
  static constexpr const char* shape =
      "{batch}x{sequence_length} {heads}/{kv_heads} heads of {head_size}{window}";
  // The two of the forward pass are computed again for the probabilities and their gradients.
  double flops() const { return causal_flops(*this, 5.0); }
  static void visit_operands(auto& op, auto&& visit) {
    const std::int64_t rows = op.batch * op.sequence_length;
    const std::int64_t qkv = rows * (op.heads + 2 * op.kv_heads) * op.head_size;
    visit(op.qkv, reads("qkv", op.dtype, qkv));
    visit(op.first_key, reads_first_keys(rows));
    visit(op.out, reads("out", op.dtype, rows * op.heads * op.head_size));
    visit(op.dout, reads("dout", op.dtype, rows * op.heads * op.head_size));
    visit(op.lse, reads("lse", DType::fp32, rows * op.heads).positive());
    visit(op.delta, scratch("delta", DType::fp32, rows * op.heads));  // some implementations do not use it
    visit(op.dqkv, writes("dqkv", op.dtype, qkv));
  }
};
void reference(const AttentionBackward& op);

}  // namespace holdfast::kernels
