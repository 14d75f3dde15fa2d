// Attention forward in bf16 for head sizes 64 and 128 by tensor cores (attention_mma.h): tiles of 128
// queries, 32 in each warp, against tiles of keys and values that arrive in one buffer while the other is
// used. Probabilities are rounded to bf16; softmax and all sums are fp32.
#include "kernels/attention.h"

#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int m_tiles = 2;  // of 16 queries in a warp
constexpr int warp_queries = 16 * m_tiles;
constexpr int tile_queries = mma_warps * warp_queries;

template <int head_size>
struct Pass {
  static constexpr int tile_keys = head_size == 64 ? 64 : 32;  // what 255 registers allow without spills
  static constexpr int n_tiles = tile_keys / 8;

  // Offsets and sizes in shared memory.
  static constexpr int buffers = MmaTile<head_size>::bytes_of(tile_queries);  // queries come first
  static constexpr int values = MmaTile<head_size>::bytes_of(tile_keys);      // in a buffer, keys come first
  static constexpr int buffer_bytes = 2 * values;
  static constexpr int bytes = buffers + 2 * buffer_bytes;
};

template <int head_size>
__global__ void __launch_bounds__(mma_threads, 2) attend(AttentionForward op) {
  using Sizes = Pass<head_size>;
  std::byte* queries = dynamic_shared();
  const TilePlace at(op.batch, op.heads);
  const HeadPlace place = place_of(op, at.b, at.head);
  const VisibleKeys visible = visible_keys(op, at.b);
  const BFloat16* qkv = static_cast<const BFloat16*>(op.qkv);
  const int last_tile = (visible.length - 1) / tile_queries;
  const int first_query = (last_tile - at.tile) * tile_queries;  // the longest first
  const int end = min(visible.length, first_query + tile_queries);
  const int warp_row = MmaThread().warp * warp_queries, warp_first = first_query + warp_row;
  const int warp_begin = visible.first_of(warp_first);  // of keys
  const int mixed_end = visible.first_of(warp_first + warp_queries - 1);
  const int begin = visible.first_of(first_query) / Sizes::tile_keys * Sizes::tile_keys;
  const auto buffer_of = [&](int key) {
    return queries + Sizes::buffers + key / Sizes::tile_keys % 2 * Sizes::buffer_bytes;
  };
  const auto copy = [&](int key) {
    std::byte* buffer = buffer_of(key);
    copy_tile<Sizes::tile_keys, head_size>(buffer, qkv + place.key, place.qkv_stride, key, end);
    copy_tile<Sizes::tile_keys, head_size>(buffer + Sizes::values, qkv + place.value, place.qkv_stride, key,
                                           end);
    commit_copies();
  };

  copy_tile<tile_queries, head_size>(queries, qkv + place.query, place.qkv_stride, first_query, end);
  copy(begin);
  MmaSoftmax<m_tiles> softmax(head_size);
  MmaSums<m_tiles, head_size / 8> out;
  set_zero<m_tiles, head_size / 8>(out);
  for (int key = begin; key < end; key += Sizes::tile_keys) {
    await_copies();
    __syncthreads();  // one buffer is there, the other is free
    if (key + Sizes::tile_keys < end) copy(key + Sizes::tile_keys);
    // Keys that the warp does not see would add zeros.
    if (key >= warp_first + warp_queries || key + Sizes::tile_keys <= warp_begin) continue;
    std::byte* buffer = buffer_of(key);
    MmaSums<m_tiles, Sizes::n_tiles> scores;
    multiply_rows<head_size>(LeftReader<head_size>(queries, warp_row), RightReader<head_size>(buffer),
                             scores);
    if (key + Sizes::tile_keys > warp_first + 1 || key < mixed_end)
      hide_keys<m_tiles, Sizes::n_tiles>(scores, visible, warp_first, key);
    float shrink[m_tiles][2];
    if (softmax.template raise_references<Sizes::n_tiles>(scores, shrink))
      scale_rows<m_tiles, head_size / 8>(shrink, out);
    softmax.template soften<Sizes::n_tiles>(scores);
    MmaLeft<m_tiles, Sizes::n_tiles / 2> weights;
    round_to_left<m_tiles, Sizes::n_tiles>(scores, weights);
    add_weighted_rows<head_size>(weights, LeftReader<head_size>(buffer + Sizes::values), out);
  }
  float inverse[m_tiles][2];
  softmax.finish(op.lse + place.statistics, warp_first, visible.length, inverse);
  store_rows<head_size>(out, inverse, queries, warp_row, static_cast<BFloat16*>(op.out) + place.out,
                        place.out_stride, warp_first, end);
}

}  // namespace

bool supports_attention_forward_mma(const void* arguments) {
  return static_cast<const AttentionForward*>(arguments)->cache == nullptr &&
         supports_attention_mma<AttentionForward>(arguments);
}

void run_attention_forward_mma(Context& context, const void* arguments) {
  const AttentionForward& op = *static_cast<const AttentionForward*>(arguments);
  HF_CHECK(packs_fit<BFloat16>(op.head_size, op.qkv, op.out), "attention of rows that are not aligned");
  for_mma_head_size(op.head_size, [&](auto head_size) {
    launch(context, attend<head_size>,
           mma_grid(op.batch * op.heads, op.sequence_length, tile_queries, Pass<head_size>::bytes), op);
  });
}

}  // namespace holdfast::kernels::cuda
