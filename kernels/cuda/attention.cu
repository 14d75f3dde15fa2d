// Attention forward for every head size and type, in fp32 between load and store: online softmax over tiles
// of 64 keys for tiles of 64 queries (attention_tiles.h). bf16 of common head sizes has kernels of its own
// (attention_mma.cu).
#include "kernels/attention.h"

#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

// Softmax state of one tile of queries; scores are in units of log 2.
struct Softmax {
  float largest[4] = {lowest_score, lowest_score, lowest_score, lowest_score};
  float sum[4] = {};  // of 2^(score - largest) over this thread's columns

  // Scores become 2^(score - largest); `shrink` is what sums from before have to be multiplied with.
  __device__ void soften(float (&scores)[4][4], float (&shrink)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float now = largest[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) now = fmaxf(now, scores[i][j]);
      now = reduce_row(now, Max{});
      shrink[i] = exp2f(largest[i] - now);
      largest[i] = now;
      sum[i] *= shrink[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = exp2f(scores[i][j] - now);
        sum[i] += scores[i][j];
      }
    }
  }
};

// Keys and values of one head: of the sequence, or of its cache.
template <typename T>
struct SeenTokens {
  const T* keys;
  const T* values;
  int stride;
};
template <typename T, bool cached>
__device__ SeenTokens<T> seen_tokens(const AttentionForward& op, const HeadPlace& place, int b, int head) {
  if (!cached) {
    const T* qkv = static_cast<const T*>(op.qkv);
    return {qkv + place.key, qkv + place.value, place.qkv_stride};
  }
  const int width = static_cast<int>(op.kv_heads * op.head_size);
  const int kv_head = head / static_cast<int>(op.heads / op.kv_heads);
  const T* keys = static_cast<const T*>(op.cache) + b * (op.first_position + op.sequence_length) * 2 * width +
                  kv_head * op.head_size;
  return {keys, keys + width, 2 * width};
}

// Two kernels, so that the one of training has no registers for the cache.
template <typename T, int columns, bool cached>
__global__ void __launch_bounds__(tile_threads) attend(AttentionForward op) {
  TileMemory& memory = tile_memory();
  const TileThread thread;
  const TilePlace at(op.batch, op.heads);
  const HeadPlace place = place_of(op, at.b, at.head);
  const VisibleKeys visible = visible_keys(op, at.b);
  const int length = visible.length, head_size = static_cast<int>(op.head_size);
  const int before = cached ? static_cast<int>(op.first_position) : 0;
  const int first_column = static_cast<int>(blockIdx.y) * columns;
  const int last_tile = (length - 1) / tile_rows;
  const int first_query = (last_tile - at.tile) * tile_rows;  // the longest first
  const T* qkv = static_cast<const T*>(op.qkv);
  const SeenTokens<T> seen = seen_tokens<T, cached>(op, place, at.b, at.head);
  const HeadRows<T> queries(qkv + place.query, place.qkv_stride, first_query, length);
  const float scale = log2_e / sqrtf(static_cast<float>(head_size));

  const int first = before + first_query;
  int documents[4];
  for (int i = 0; i < 4; ++i) documents[i] = visible.first_of(first + thread.y + 16 * i);
  Softmax softmax;
  float sum[4][columns / 16] = {};
  const int end = before + min(length, first_query + tile_rows);
  for (int first_key = first_tile_of(visible, first); first_key < end; first_key += tile_rows) {
    if (visible.are_in_gap(first, end - 1, first_key, first_key + tile_rows - 1)) continue;
    float scores[4][4], shrink[4];
    multiply_rows(queries, HeadRows<T>(seen.keys, seen.stride, first_key, end), head_size, memory, scores);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = before + first_query + thread.y + 16 * i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = first_key + thread.x + 16 * j;
        const bool sees = visible.sees(query, documents[i], key);
        scores[i][j] = sees ? scores[i][j] * scale : -INFINITY;
      }
    }
    softmax.soften(scores, shrink);
    put_weights(scores, memory);
    for (int i = 0; i < 4; ++i) {
      for (float& value : sum[i]) value *= shrink[i];
    }
    add_weighted_rows<columns>(HeadRows<T>(seen.values, seen.stride, first_key, end), first_column, head_size,
                               memory, sum);
  }
  float inverse[4];
  for (int i = 0; i < 4; ++i) {
    const float total = reduce_row(softmax.sum[i], Sum{});
    const int query = first_query + thread.y + 16 * i;
    inverse[i] = 1.0F / total;
    if (thread.x == 0 && first_column == 0 && query < length)
      op.lse[place.statistics + query] = fmaf(softmax.largest[i], ln_2, logf(total));
  }
  store_rows<columns>(sum, inverse, static_cast<T*>(op.out) + place.out, place.out_stride, first_query,
                      length, first_column, head_size);
}

}  // namespace

void run_attention_forward(Context& context, const void* arguments) {
  const auto op = for_kernel<AttentionForward>(arguments);
  for_tile_kernel(op.dtype, op.head_size, [&](auto element, auto columns) {
    const auto kernel = op.cache == nullptr ? attend<decltype(element), columns, false>
                                            : attend<decltype(element), columns, true>;
    launch(context, kernel, tile_grid(op.batch * op.heads, op.sequence_length, op.head_size, columns), op);
  });
}

}  // namespace holdfast::kernels::cuda
