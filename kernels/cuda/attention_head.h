// Locates the rows of a head in the tensors of attention (kernels/attention.h), and the keys that its queries
// see. Shared by all attention kernels; they take the op itself as their argument.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/launch.h"

namespace holdfast::kernels::cuda {

inline constexpr float log2_e = 1.44269504088896F;
inline constexpr float ln_2 = 0.693147180559945F;
// Lower bound of visible scores; only hidden scores (minus infinity) are below it. While a query has seen
// nothing else, 2^(score - largest) is 0 and not NaN.
inline constexpr float lowest_score = -3.40282347e38F;

// Strides and offsets of a head: elements from row to row, and of row 0 of the sequence, in qkv and out; and
// of token 0 in lse and delta. Strides and numbers of tokens and heads fit 32 bits: 64-bit arithmetic takes
// several instructions.
struct HeadPlace {
  int qkv_stride, out_stride;
  std::int64_t query, key, value;  // in qkv
  std::int64_t out;
  std::int64_t statistics;
};

// Returns the offsets of query head `head` of sequence `b`.
template <typename Op>
__device__ HeadPlace place_of(const Op& op, int b, int head) {
  const int heads = static_cast<int>(op.heads), kv_heads = static_cast<int>(op.kv_heads);
  const int kv_head = head / (heads / kv_heads), head_size = static_cast<int>(op.head_size);
  HeadPlace place;
  place.qkv_stride = (heads + 2 * kv_heads) * head_size;
  place.out_stride = heads * head_size;
  const std::int64_t row = b * op.sequence_length;
  place.query = row * place.qkv_stride + head * head_size;
  place.key = row * place.qkv_stride + (heads + kv_head) * head_size;
  place.value = row * place.qkv_stride + (heads + kv_heads + kv_head) * head_size;
  place.out = row * place.out_stride + head * head_size;
  place.statistics = row * heads + head * op.sequence_length;
  return place;
}

// Work item of a block: tile number `tile` of a head of a sequence. Tiles with the same number are
// neighbours, so that blocks that take equally long run together.
struct TilePlace {
  int b, head, tile;
  __device__ TilePlace(std::int64_t batch, std::int64_t heads) {
    const unsigned all = static_cast<unsigned>(batch * heads), each = static_cast<unsigned>(heads);
    tile = static_cast<int>(blockIdx.x / all);
    b = static_cast<int>(blockIdx.x % all / each);
    head = static_cast<int>(blockIdx.x % each);
  }
};
// Returns the number of blocks for all heads of the batch.
inline unsigned blocks_of_heads(std::int64_t heads, std::int64_t length, int tile_rows) {
  return blocks_for(heads * ((length + tile_rows - 1) / tile_rows), 1);
}

// The keys that the queries of one sequence see besides the causal rule.
struct VisibleKeys {
  const std::int32_t* first_key = nullptr;  // of this sequence; null = all
  int length = 0;

  // Returns the first key that a query sees. Queries after the last one see the same keys as the last one.
  __device__ int first_of(int query) const {
    return first_key == nullptr ? 0 : first_key[query < length ? query : length - 1];
  }
  // Returns the number of tiles of `tile` queries, counted from the sequence's beginning, up to the last one
  // that sees `key` or an earlier key. It searches among the first queries of tiles: the first key that a
  // query sees never decreases.
  __device__ int end_of_tiles(int key, int tile) const {
    int inside = key / tile, end = (length + tile - 1) / tile;
    if (first_key == nullptr) return end;
    while (inside + 1 < end) {
      const int middle = (inside + end) / 2;
      (first_key[middle * tile] <= key ? inside : end) = middle;
    }
    return end;
  }
};
template <typename Op>
__device__ VisibleKeys visible_keys(const Op& op, int b) {
  return {op.first_key == nullptr ? nullptr : op.first_key + b * op.sequence_length,
          static_cast<int>(op.sequence_length)};
}

// Computes delta = sum of out * dout over each row (kernels/cuda/attention_backward.cu).
void run_attention_delta(Context& context, const AttentionBackward& op);

}  // namespace holdfast::kernels::cuda
