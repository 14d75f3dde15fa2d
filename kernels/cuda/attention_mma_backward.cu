// Attention backward in bf16 for head sizes 64 and 128 by tensor cores (attention_mma.h). Without atomics, so
// the scores are computed twice (7 products of tiles where atomics would allow 5): a pass over the queries of
// a tile of keys, of every query head that shares them, for the gradients of keys and values, and a pass over
// the keys of a tile of queries. Each warp holds the gradients of its rows in registers from begin to end.
// The other side's tiles arrive in one buffer while the other is used. Probabilities and the gradients of
// scores are rounded to bf16 before their products; all sums are fp32.
#include "kernels/attention.h"

#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

// Sizes of the pass for keys and values. Those of both passes are what 255 registers allow without spills.
template <int head_size>
struct KeyPass {
  static constexpr int m_tiles = head_size == 64 ? 2 : 1;  // of 16 keys in a warp
  static constexpr int warp_keys = 16 * m_tiles;
  static constexpr int tile_keys = mma_warps * warp_keys;
  static constexpr int tile_queries = 64;  // in a buffer
  static constexpr int step_queries = 32;  // whose scores are held at once
  static constexpr int n_tiles = step_queries / 8;

  // Offsets and sizes in shared memory.
  static constexpr int values = MmaTile<head_size>::bytes_of(tile_keys);  // keys come first
  static constexpr int buffers = 2 * values;
  static constexpr int douts = MmaTile<head_size>::bytes_of(tile_queries);  // in a buffer, queries come first
  static constexpr int lse = 2 * douts;
  static constexpr int delta = lse + 4 * tile_queries;
  static constexpr int buffer_bytes = delta + 4 * tile_queries;
  static constexpr int bytes = buffers + 2 * buffer_bytes;
};

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

__device__ float score_scale(int head_size) {
  return 1.0F / sqrtf(static_cast<float>(head_size));
}

// ---- keys and values: rows are keys, columns are queries --------------------------------------------------

// The tensors of one query head.
struct QueryHead {
  HeadPlace place;
  const BFloat16 *queries, *douts;
  const float *lse, *delta;

  __device__ QueryHead(const AttentionBackward& op, int b, int head)
      : place(place_of(op, b, head)),
        queries(static_cast<const BFloat16*>(op.qkv) + place.query),
        douts(static_cast<const BFloat16*>(op.dout) + place.out),
        lse(op.lse + place.statistics),
        delta(op.delta + place.statistics) {}
};

template <int head_size>
__device__ void copy_queries(std::byte* buffer, const QueryHead& head, int first_query, int length) {
  using Pass = KeyPass<head_size>;
  copy_tile<Pass::tile_queries, head_size>(buffer, head.queries, head.place.qkv_stride, first_query, length);
  copy_tile<Pass::tile_queries, head_size>(buffer + Pass::douts, head.douts, head.place.out_stride,
                                           first_query, length);
  copy_values<Pass::tile_queries>(reinterpret_cast<float*>(buffer + Pass::lse), head.lse, first_query,
                                  length);
  copy_values<Pass::tile_queries>(reinterpret_cast<float*>(buffer + Pass::delta), head.delta, first_query,
                                  length);
}

template <int m_tiles, int n_tiles>
__device__ void hide_from_queries(MmaSums<m_tiles, n_tiles>& scores, const VisibleKeys& visible,
                                  int warp_first, int first_query) {
  const MmaThread thread;
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first_query + 8 * n + thread.column + i;
      const int begin = visible.first_of(query);
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = warp_first + 16 * m + 8 * half + thread.row;
          if (key > query || key < begin) scores[m][n][2 * half + i] = -INFINITY;
        }
      }
    }
  }
}

// Turns products of query and key into probabilities.
template <int m_tiles, int n_tiles>
__device__ void soften(MmaSums<m_tiles, n_tiles>& scores, float scale, const float* lse) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
    float of_queries[2];
    load<2>(lse + 8 * n + MmaThread().column, of_queries);
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[m][n][i] =
            exp2_approximate(fmaf(scores[m][n][i], scale * log2_e, -of_queries[i % 2] * log2_e));
    }
  }
}

// Turns gradients of probabilities into those of scores.
template <int m_tiles, int n_tiles>
__device__ void through_softmax(const MmaSums<m_tiles, n_tiles>& probabilities, const float* delta,
                                MmaSums<m_tiles, n_tiles>& gradients) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n) {
    float of_queries[2];
    load<2>(delta + 8 * n + MmaThread().column, of_queries);
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        gradients[m][n][i] = probabilities[m][n][i] * (gradients[m][n][i] - of_queries[i % 2]);
    }
  }
}

// Adds the contribution of `step_queries` queries, from row `step` of the buffer on, to the gradients of the
// warp's keys. Queries after the sequence's end are zeros and add zeros.
template <int head_size, typename Pass = KeyPass<head_size>>
__device__ void add_key_gradients(std::byte* tiles, int warp_row, std::byte* buffer, int step,
                                  const VisibleKeys& visible, int warp_first, int first_query,
                                  MmaSums<Pass::m_tiles, head_size / 8>& dkeys,
                                  MmaSums<Pass::m_tiles, head_size / 8>& dvalues) {
  using Left = LeftReader<head_size>;
  using Right = RightReader<head_size>;
  MmaSums<Pass::m_tiles, Pass::n_tiles> probabilities, gradients;
  MmaLeft<Pass::m_tiles, Pass::n_tiles / 2> weights;
  multiply_rows<head_size>(Left(tiles, warp_row), Right(buffer, step), probabilities);
  const bool mixed = first_query < warp_first + Pass::warp_keys - 1 ||
                     visible.first_of(first_query + Pass::step_queries - 1) > warp_first;
  if (mixed) hide_from_queries<Pass::m_tiles, Pass::n_tiles>(probabilities, visible, warp_first, first_query);
  soften<Pass::m_tiles, Pass::n_tiles>(probabilities, score_scale(head_size),
                                       reinterpret_cast<const float*>(buffer + Pass::lse) + step);
  round_to_left<Pass::m_tiles, Pass::n_tiles>(probabilities, weights);
  add_weighted_rows<head_size>(weights, Left(buffer + Pass::douts, step), dvalues);
  multiply_rows<head_size>(Left(tiles + Pass::values, warp_row), Right(buffer + Pass::douts, step),
                           gradients);
  through_softmax<Pass::m_tiles, Pass::n_tiles>(
      probabilities, reinterpret_cast<const float*>(buffer + Pass::delta) + step, gradients);
  round_to_left<Pass::m_tiles, Pass::n_tiles>(gradients, weights);
  add_weighted_rows<head_size>(weights, Left(buffer, step), dkeys);
}

template <int head_size>
__global__ void __launch_bounds__(mma_threads, 2) key_gradients(AttentionBackward op) {
  using Pass = KeyPass<head_size>;
  std::byte* tiles = dynamic_shared();
  const TilePlace at(op.batch, op.kv_heads);
  const VisibleKeys visible = visible_keys(op, at.b);
  const int group = static_cast<int>(op.heads / op.kv_heads);
  const HeadPlace place = place_of(op, at.b, at.head * group);
  const BFloat16* qkv = static_cast<const BFloat16*>(op.qkv);
  const int first_key = at.tile * Pass::tile_keys;  // the first are seen by most
  const int end_key = min(first_key + Pass::tile_keys, visible.length);
  const int warp_row = MmaThread().warp * Pass::warp_keys, warp_first = first_key + warp_row;
  const int begin_tile = first_key / Pass::tile_queries;
  const int end_tile = visible.end_of_tiles(end_key - 1, Pass::tile_queries);
  const auto copy = [&](int member, int tile, int buffer) {
    copy_queries<head_size>(tiles + Pass::buffers + buffer * Pass::buffer_bytes,
                            QueryHead(op, at.b, at.head * group + member), tile * Pass::tile_queries,
                            visible.length);
    commit_copies();
  };

  copy_tile<Pass::tile_keys, head_size>(tiles, qkv + place.key, place.qkv_stride, first_key, end_key);
  copy_tile<Pass::tile_keys, head_size>(tiles + Pass::values, qkv + place.value, place.qkv_stride, first_key,
                                        end_key);
  copy(0, begin_tile, 0);
  MmaSums<Pass::m_tiles, head_size / 8> dkeys, dvalues;
  set_zero<Pass::m_tiles, head_size / 8>(dkeys);
  set_zero<Pass::m_tiles, head_size / 8>(dvalues);
  int member = 0, tile = begin_tile;
  for (int in_use = 0; member < group; in_use = 1 - in_use) {
    const int query_tile = tile;
    if (++tile == end_tile) {
      tile = begin_tile;
      ++member;
    }
    await_copies();
    __syncthreads();  // one buffer is there, the other is free
    if (member < group) copy(member, tile, 1 - in_use);
    std::byte* buffer = tiles + Pass::buffers + in_use * Pass::buffer_bytes;
#pragma unroll 1
    for (int step = 0; step < Pass::tile_queries; step += Pass::step_queries) {
      const int query = query_tile * Pass::tile_queries + step;
      const bool seen =
          query + Pass::step_queries > warp_first && visible.first_of(query) < warp_first + Pass::warp_keys;
      if (seen) {
        add_key_gradients<head_size>(tiles, warp_row, buffer, step, visible, warp_first, query, dkeys,
                                     dvalues);
      }
    }
  }
  float scales[Pass::m_tiles][2], ones[Pass::m_tiles][2];
  for (int m = 0; m < Pass::m_tiles; ++m) {
    scales[m][0] = scales[m][1] = score_scale(head_size);
    ones[m][0] = ones[m][1] = 1;
  }
  BFloat16* dqkv = static_cast<BFloat16*>(op.dqkv);
  store_rows<head_size>(dkeys, scales, tiles, warp_row, dqkv + place.key, place.qkv_stride, warp_first,
                        end_key);
  store_rows<head_size>(dvalues, ones, tiles + Pass::values, warp_row, dqkv + place.value, place.qkv_stride,
                        warp_first, end_key);
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
    using Keys = KeyPass<head_size>;
    using Queries = QueryPass<head_size>;
    launch(context, key_gradients<head_size>,
           mma_grid(op.batch * op.kv_heads, op.sequence_length, Keys::tile_keys, Keys::bytes), op);
    launch(context, query_gradients<head_size>,
           mma_grid(op.batch * op.heads, op.sequence_length, Queries::tile_queries, Queries::bytes), op);
  });
}

}  // namespace holdfast::kernels::cuda
