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

// A window that no sequence reaches, so that kernels need not ask whether there is one.
inline constexpr int no_window = 1 << 30;
// Returns the op as kernels that compute windows get it.
template <typename Op>
Op for_kernel(const void* arguments) {
  Op op = *static_cast<const Op*>(arguments);
  if (op.window == 0) op.window = no_window;
  return op;
}

// The keys that the queries of one sequence see besides the causal rule (first_key, window and sinks in
// kernels/attention.h). Queries are counted from the first token of the sequence, which may be in a cache.
struct VisibleKeys {
  const std::int32_t* first_key = nullptr;  // of this sequence; null = all
  int length = 0;                           // rows
  int window = no_window, sinks = 0;

  // Returns the first key of a query's document: what it sees first, without a window or with sinks. Queries after the
  // last one are of the same document as that.
  __device__ int first_of(int query) const {
    return first_key == nullptr ? 0 : first_key[query < length ? query : length - 1];
  }
  // Returns the key from which on a query sees all up to itself; of those before it the sinks alone.
  __device__ int window_of(int query) const { return max(first_of(query), query + 1 - window); }
  // Returns whether a query sees a key. `document` is first_of(query).
  __device__ bool sees(int query, int document, int key) const {
    return key <= query && key >= document && (query - key < window || key - document < sinks);
  }
  // Returns whether the keys [first, last] are all between the sinks and the window of each of the queries.
  __device__ bool are_in_gap(int first_query, int last_query, int first, int last) const {
    return sinks > 0 && first_of(last_query) + sinks <= first && last < window_of(first_query);
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
  // Returns the same with the window, where there are no sinks: those are seen to the end.
  __device__ int end_of_windows(int key, int tile) const {
    const int end = end_of_tiles(key, tile);
    return sinks > 0 ? end : min(end, (key + window - 1) / tile + 1);
  }
};
template <typename Op>
__device__ VisibleKeys visible_keys(const Op& op, int b) {
  return {.first_key = op.first_key == nullptr ? nullptr : op.first_key + b * op.sequence_length,
          .length = static_cast<int>(op.sequence_length),
          .window = static_cast<int>(op.window),
          .sinks = static_cast<int>(op.sinks)};
}

// Computes delta = sum of out * dout over each row (kernels/cuda/attention_backward.cu).
void run_attention_delta(Context& context, const AttentionBackward& op);

}  // namespace holdfast::kernels::cuda
