// Attention backward in bf16 for head sizes 64 and 128 by tensor cores (attention_mma.h), in two passes without
// anything between blocks: one over the queries of a tile of keys for the gradients of keys and values
// (attention_key_pass.h), and one over the keys of a tile of queries. So the scores are computed twice (7
// products of tiles; attention_mma5.cu does 5). Each warp holds the gradients of its rows in registers from
// begin to end, and the other side's tiles arrive in one buffer while the other is used. Probabilities and the
// gradients of scores are rounded to bf16 before their products; all sums are fp32.
#include "kernels/attention.h"

#include "kernels/cuda/attention_key_pass.h"
#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

// Sizes of the pass for queries.
template <int head_size>
struct QueryPass {
  static constexpr int m_tiles = 2;  // of 16 queries in a warp
  static constexpr int warp_queries = 16 * m_tiles;
  static constexpr int tile_queries = mma_warps * warp_queries;
  static constexpr int tile_keys = head_size == 64 ? 64 : 32;  // in a buffer
  static constexpr int step_keys = 32;                         // whose scores are held at once
  static constexpr int part_keys = head_size == 64 ? 32 : 16;  // whose gradients are
  static constexpr int n_tiles = step_keys / 8;

  static constexpr int douts = MmaTile<head_size>::bytes_of(tile_queries);  // queries come first
  static constexpr int lse = 2 * douts;
  static constexpr int delta = lse + 4 * tile_queries;
  static constexpr int buffers = delta + 4 * tile_queries;
  static constexpr int values = MmaTile<head_size>::bytes_of(tile_keys);  // in a buffer, keys come first
  static constexpr int buffer_bytes = 2 * values;
  static constexpr int bytes = buffers + 2 * buffer_bytes;
};

template <int head_size>
using Keys = KeyPass<head_size, 64>;

template <int head_size>
__global__ void __launch_bounds__(mma_threads, 2) key_gradients(AttentionBackward op) {
  const TilePlace at(op.batch, op.kv_heads);  // the first keys, which most queries see, first
  compute_key_gradients<head_size, Keys<head_size>>(op, at, dynamic_shared(), NoQueryGradients());
}

// ---- queries: rows are queries, columns are keys ----------------------------------------------------------

// Adds the contribution of `step_keys` keys, from row `step` of the buffer on, to the gradients of the warp's
// queries.
template <int head_size, typename Pass = QueryPass<head_size>>
__device__ void add_query_gradients(std::byte* tiles, int warp_row, std::byte* buffer, int step,
                                    const VisibleKeys& visible, int mixed_end, int warp_first, int first_key,
                                    MmaSums<Pass::m_tiles, head_size / 8>& dqueries) {
  using Left = LeftReader<head_size>;
  using Right = RightReader<head_size>;
  const float scale = score_scale(head_size) * log2_e;
  MmaSums<Pass::m_tiles, Pass::n_tiles> scores;
  multiply_rows<head_size>(Left(tiles, warp_row), Right(buffer, step), scores);
  if (first_key + Pass::step_keys > warp_first + 1 || first_key < mixed_end)
    hide_keys<Pass::m_tiles, Pass::n_tiles>(scores, visible, warp_first, first_key);
#pragma unroll
  for (int part = 0; part < Pass::step_keys; part += Pass::part_keys) {
    constexpr int part_tiles = Pass::part_keys / 8;
    MmaSums<Pass::m_tiles, part_tiles> gradients;
    MmaLeft<Pass::m_tiles, part_tiles / 2> weights;
    multiply_rows<head_size>(Left(tiles + Pass::douts, warp_row), Right(buffer + Pass::values, step + part),
                             gradients);
#pragma unroll
    for (int m = 0; m < Pass::m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = warp_row + 16 * m + 8 * half + MmaThread().row;
        const float lse = reinterpret_cast<const float*>(tiles + Pass::lse)[query] * log2_e;
        const float delta = reinterpret_cast<const float*>(tiles + Pass::delta)[query];
#pragma unroll
        for (int n = 0; n < part_tiles; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            const float p = exp2_approximate(fmaf(scores[m][part / 8 + n][i], scale, -lse));
            gradients[m][n][i] = p * (gradients[m][n][i] - delta);
          }
        }
      }
    }
    round_to_left<Pass::m_tiles, part_tiles>(gradients, weights);
    add_weighted_rows<head_size>(weights, Left(buffer, step + part), dqueries);
  }
}

template <int head_size>
__global__ void __launch_bounds__(mma_threads, 2) query_gradients(AttentionBackward op) {
  using Pass = QueryPass<head_size>;
  std::byte* tiles = dynamic_shared();
  const TilePlace at(op.batch, op.heads);
  const VisibleKeys visible = visible_keys(op, at.b);
  const QueryHead head(op, at.b, at.head);
  const HeadPlace& place = head.place;
  const BFloat16* qkv = static_cast<const BFloat16*>(op.qkv);
  const int last_tile = (visible.length - 1) / Pass::tile_queries;
  const int first_query = (last_tile - at.tile) * Pass::tile_queries;  // the longest first
  const int end = min(visible.length, first_query + Pass::tile_queries);
  const int warp_row = MmaThread().warp * Pass::warp_queries, warp_first = first_query + warp_row;
  const int warp_begin = visible.first_of(warp_first);  // of keys
  const int mixed_end = visible.first_of(warp_first + Pass::warp_queries - 1);
  const int begin = visible.first_of(first_query) / Pass::tile_keys * Pass::tile_keys;
  const auto buffer_of = [&](int key) {
    return tiles + Pass::buffers + key / Pass::tile_keys % 2 * Pass::buffer_bytes;
  };
  const auto copy = [&](int key) {
    std::byte* buffer = buffer_of(key);
    copy_tile<Pass::tile_keys, head_size>(buffer, qkv + place.key, place.qkv_stride, key, end);
    copy_tile<Pass::tile_keys, head_size>(buffer + Pass::values, qkv + place.value, place.qkv_stride, key,
                                          end);
    commit_copies();
  };

  copy_tile<Pass::tile_queries, head_size>(tiles, head.queries, place.qkv_stride, first_query, end);
  copy_tile<Pass::tile_queries, head_size>(tiles + Pass::douts, head.douts, place.out_stride, first_query,
                                           end);
  copy_values<Pass::tile_queries>(reinterpret_cast<float*>(tiles + Pass::lse), head.lse, first_query, end);
  copy_values<Pass::tile_queries>(reinterpret_cast<float*>(tiles + Pass::delta), head.delta, first_query,
                                  end);
  copy(begin);
  MmaSums<Pass::m_tiles, head_size / 8> dqueries;
  set_zero<Pass::m_tiles, head_size / 8>(dqueries);
  for (int first_key = begin; first_key < end; first_key += Pass::tile_keys) {
    await_copies();
    __syncthreads();  // one buffer is there, the other is free
    if (first_key + Pass::tile_keys < end) copy(first_key + Pass::tile_keys);
#pragma unroll 1
    for (int step = 0; step < Pass::tile_keys; step += Pass::step_keys) {
      const int key = first_key + step;
      if (key < warp_first + Pass::warp_queries && key + Pass::step_keys > warp_begin) {
        add_query_gradients<head_size>(tiles, warp_row, buffer_of(first_key), step, visible, mixed_end,
                                       warp_first, key, dqueries);
      }
    }
  }
  float scales[Pass::m_tiles][2];
  for (int m = 0; m < Pass::m_tiles; ++m) scales[m][0] = scales[m][1] = score_scale(head_size);
  store_rows<head_size>(dqueries, scales, tiles, warp_row, static_cast<BFloat16*>(op.dqkv) + place.query,
                        place.qkv_stride, warp_first, end);
}

}  // namespace

bool supports_attention_backward_mma(const void* arguments) {
  return supports_attention_mma<AttentionBackward>(arguments);
}

void run_attention_backward_mma(Context& context, const void* arguments) {
  const AttentionBackward& op = *static_cast<const AttentionBackward*>(arguments);
  HF_CHECK(packs_fit<BFloat16>(op.head_size, op.qkv, op.dout, op.dqkv),
           "attention of rows that are not aligned");
  run_attention_delta(context, op);
  for_mma_head_size(op.head_size, [&](auto head_size) {
    using KeySizes = Keys<head_size>;
    using Queries = QueryPass<head_size>;
    launch(context, key_gradients<head_size>,
           mma_grid(op.batch * op.kv_heads, op.sequence_length, KeySizes::tile_keys, KeySizes::bytes), op);
    launch(context, query_gradients<head_size>,
           mma_grid(op.batch * op.heads, op.sequence_length, Queries::tile_queries, Queries::bytes), op);
  });
}

}  // namespace holdfast::kernels::cuda
