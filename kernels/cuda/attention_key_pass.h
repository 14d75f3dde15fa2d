// The part of attention backward in bf16 whose rows are keys and whose columns are queries (attention_mma.h):
// a block goes over the queries of a tile of keys, of every query head that shares them, and each warp holds
// the gradients of its keys and values in registers from begin to end. The queries' tiles arrive in one buffer
// while the other is used. Probabilities and the gradients of scores are rounded to bf16 before their
// products; all sums are fp32.
//
// Kernels that also want the gradients of queries get the gradients of scores on the way (NoQueryGradients has
// the interface).
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/attention_mma.h"

namespace holdfast::kernels::cuda {

// Sizes of the pass, for buffers of `buffer_queries` queries. 255 registers allow no more without spills.
// Gradients of queries are added tile by tile of keys: tile_keys belongs to what a kernel's bits follow from.
template <int head_size, int buffer_queries>
struct KeyPass {
  static constexpr int m_tiles = head_size == 64 ? 2 : 1;  // of 16 keys in a warp
  static constexpr int warp_keys = 16 * m_tiles;
  static constexpr int tile_keys = mma_warps * warp_keys;
  static constexpr int tile_queries = buffer_queries;
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

__device__ inline float score_scale(int head_size) {
  return 1.0F / sqrtf(static_cast<float>(head_size));
}

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

// Leaves the gradients of queries to another kernel.
struct NoQueryGradients {
  // Returns the lane, in a way that leaves registers enough.
  __device__ static int lane() { return MmaThread().lane; }
  // Takes the gradients of scores of the warp's keys, from row warp_row of the tile on, and of the queries of
  // a step, from row `step` of the buffer on.
  template <int m_tiles, int k_tiles>
  __device__ void keep(const MmaLeft<m_tiles, k_tiles>&, int /*warp_row*/, int /*step*/) const {}
  // Is called by every warp when it has kept all that it has of a tile of queries of a query head. `buffer` has
  // the tile, which nobody needs once all warps are here.
  __device__ void add(int /*head*/, int /*first_key*/, int /*first_query*/, std::byte* /*buffer*/) const {}
};

// Keeps sums of gradients of queries in the workspace, in fp32, from tile to tile of keys, the last tile
// first. A part is 32 of them of each lane of one warp: the lane that takes them has kept them itself, or the
// lane of another block that has the same place.
struct QuerySums {
  static constexpr int packs = 8;  // of four floats, of a lane
  float4* sums;                    // (parts, packs, lanes)
  unsigned* counters;              // (parts), of tiles of keys whose products were added
  unsigned* begun;                 // the number of blocks that have begun

  // Goes on with a part to which `added` tiles were added: zeros if none. With `waits` other blocks add them.
  template <bool waits>
  __device__ void take(int part, int added, int lane, float (&part_sums)[packs][4]) const {
    if (added == 0) return set_zero<1, packs>(reinterpret_cast<MmaSums<1, packs>&>(part_sums));
    if constexpr (waits) await_count(counters + part, static_cast<unsigned>(added));
    const float4* kept = place_of_part(part, lane);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const float4 pack = __ldcg(kept + 32 * i);
      part_sums[i][0] = pack.x;
      part_sums[i][1] = pack.y;
      part_sums[i][2] = pack.z;
      part_sums[i][3] = pack.w;
    }
  }
  // Leaves a part to the next tile, which is number `added`.
  template <bool waits>
  __device__ void keep(int part, int added, int lane, const float (&part_sums)[packs][4]) const {
    float4* kept = place_of_part(part, lane);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const float(&pack)[4] = part_sums[i];
      __stcg(kept + 32 * i, make_float4(pack[0], pack[1], pack[2], pack[3]));
    }
    if constexpr (waits) tell_count(counters + part, static_cast<unsigned>(added));
  }

 private:
  __device__ float4* place_of_part(int part, int lane) const {
    return sums + static_cast<std::int64_t>(part) * (32 * packs) + lane;
  }
};

// Says how large the workspace is: sums, then counters, then the number of blocks that have begun. `queries`
// are so many that whole parts are made of them, of a head.
struct QueryWorkspace {
  std::size_t parts, sum_bytes, bytes;
  QueryWorkspace(const AttentionBackward& op, int queries) {
    constexpr int part = 32 * 4 * QuerySums::packs;
    const std::int64_t steps = (op.sequence_length + queries - 1) / queries;
    parts = static_cast<std::size_t>(op.batch * op.heads * steps * (queries * op.head_size / part));
    sum_bytes = parts * part * sizeof(float);
    bytes = sum_bytes + (parts + 1) * sizeof(unsigned);
  }
  // Returns where they are. With `waits`, counters become zero before a kernel that is launched next.
  QuerySums start(Context& context, bool waits) const {
    std::byte* const memory = context.workspace();
    auto* const counters = reinterpret_cast<unsigned*>(memory + sum_bytes);
    if (waits)
      context.note(cudaMemsetAsync(counters, 0, bytes - sum_bytes, context.stream()), "cudaMemsetAsync");
    return {reinterpret_cast<float4*>(memory), counters, counters + parts};
  }
};

// Returns the work of this block where blocks take tiles of keys in the order in which they begin: a block
// may then wait for those that have the tiles after its own, which run or have ended. The tiles of a head
// are neighbours: their queries and sums are in the L2 cache together. All threads call; `shared` is a word
// of shared memory that nobody uses.
__device__ inline TilePlace take_tile(const AttentionBackward& op, unsigned* begun, int tile_keys,
                                      unsigned* shared) {
  if (threadIdx.x == 0) *shared = atomicAdd(begun, 1U);
  __syncthreads();
  const unsigned number = *shared;
  const unsigned last_tile = static_cast<unsigned>((op.sequence_length - 1) / tile_keys);
  TilePlace at(op.batch, op.kv_heads);
  at.tile = static_cast<int>(last_tile - number % (last_tile + 1));
  const unsigned head = number / (last_tile + 1);
  at.b = static_cast<int>(head / static_cast<unsigned>(op.kv_heads));
  at.head = static_cast<int>(head % static_cast<unsigned>(op.kv_heads));
  return at;
}

template <int head_size, typename Pass>
__device__ void copy_queries(std::byte* buffer, const QueryHead& head, int first_query, int length) {
  copy_tile<Pass::tile_queries, head_size>(buffer, head.queries, head.place.qkv_stride, first_query, length);
  copy_tile<Pass::tile_queries, head_size>(buffer + Pass::douts, head.douts, head.place.out_stride,
                                           first_query, length);
  copy_values<Pass::tile_queries>(reinterpret_cast<float*>(buffer + Pass::lse), head.lse, first_query,
                                  length);
  copy_values<Pass::tile_queries>(reinterpret_cast<float*>(buffer + Pass::delta), head.delta, first_query,
                                  length);
}

// Returns whether a query from first_query to first_query + step_queries sees a key of a warp's, from
// warp_first on. `begin` is the first key that the first of them sees.
template <typename Pass>
__device__ bool sees(int first_query, int begin, int warp_first) {
  return first_query + Pass::step_queries > warp_first && begin < warp_first + Pass::warp_keys;
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
template <int head_size, typename Pass, typename Queries>
__device__ void add_key_gradients(std::byte* tiles, int warp_row, std::byte* buffer, int step,
                                  const VisibleKeys& visible, int warp_first, int first_query,
                                  const Queries& queries, MmaSums<Pass::m_tiles, head_size / 8>& dkeys,
                                  MmaSums<Pass::m_tiles, head_size / 8>& dvalues) {
  using Left = LeftReader<head_size>;
  using Right = RightReader<head_size>;
  MmaSums<Pass::m_tiles, Pass::n_tiles> probabilities, gradients;
  MmaLeft<Pass::m_tiles, Pass::n_tiles / 2> weights;
  multiply_rows<head_size>(Left(tiles, warp_row, Queries::lane()), Right(buffer, step), probabilities);
  const bool mixed = first_query < warp_first + Pass::warp_keys - 1 ||
                     visible.first_of(first_query + Pass::step_queries - 1) > warp_first;
  if (mixed) hide_from_queries<Pass::m_tiles, Pass::n_tiles>(probabilities, visible, warp_first, first_query);
  soften<Pass::m_tiles, Pass::n_tiles>(probabilities, score_scale(head_size),
                                       reinterpret_cast<const float*>(buffer + Pass::lse) + step);
  round_to_left<Pass::m_tiles, Pass::n_tiles>(probabilities, weights);
  add_weighted_rows<head_size>(weights, Left(buffer + Pass::douts, step, Queries::lane()), dvalues);
  multiply_rows<head_size>(Left(tiles + Pass::values, warp_row, Queries::lane()),
                           Right(buffer + Pass::douts, step), gradients);
  through_softmax<Pass::m_tiles, Pass::n_tiles>(
      probabilities, reinterpret_cast<const float*>(buffer + Pass::delta) + step, gradients);
  round_to_left<Pass::m_tiles, Pass::n_tiles>(gradients, weights);
  queries.keep(weights, warp_row, step);
  add_weighted_rows<head_size>(weights, Left(buffer, step, Queries::lane()), dkeys);
}

// Computes the gradients of a tile of keys and values; `queries` gets what the gradients of queries are made
// of.
template <int head_size, typename Pass, typename Queries>
__device__ void compute_key_gradients(const AttentionBackward& op, const TilePlace& at, std::byte* tiles,
                                      const Queries& queries) {
  const VisibleKeys visible = visible_keys(op, at.b);
  const int group = static_cast<int>(op.heads / op.kv_heads);
  const int end_head = (at.head + 1) * group;  // of the query heads
  const auto place = [&] { return place_of(op, forgotten(at.b), end_head - 1); };
  const BFloat16* qkv = static_cast<const BFloat16*>(op.qkv);
  const int first_key = at.tile * Pass::tile_keys;
  const int end_key = min(first_key + Pass::tile_keys, visible.length);
  const int warp_row = MmaThread().warp * Pass::warp_keys, warp_first = first_key + warp_row;
  const int begin_tile = first_key / Pass::tile_queries;
  const int end_tile = visible.end_of_tiles(end_key - 1, Pass::tile_queries);
  const auto copy = [&](int head, int tile, int buffer) {
    copy_queries<head_size, Pass>(tiles + Pass::buffers + buffer * Pass::buffer_bytes,
                                  QueryHead(op, forgotten(at.b), head), tile * Pass::tile_queries,
                                  visible.length);
    commit_copies();
  };

  const HeadPlace from = place();
  copy_tile<Pass::tile_keys, head_size>(tiles, qkv + from.key, from.qkv_stride, first_key, end_key);
  copy_tile<Pass::tile_keys, head_size>(tiles + Pass::values, qkv + from.value, from.qkv_stride, first_key,
                                        end_key);
  copy(end_head - group, begin_tile, 0);
  MmaSums<Pass::m_tiles, head_size / 8> dkeys, dvalues;
  set_zero<Pass::m_tiles, head_size / 8>(dkeys);
  set_zero<Pass::m_tiles, head_size / 8>(dvalues);
  int next_head = end_head - group, tile = begin_tile;
  for (int in_use = 0; next_head < end_head; in_use = 1 - in_use) {
    const int head = next_head, first_query = tile * Pass::tile_queries;
    if (++tile == end_tile) {
      tile = begin_tile;
      ++next_head;
    }
    await_copies();
    __syncthreads();  // one buffer is there, the other is free
    if (next_head < end_head) copy(next_head, tile, 1 - in_use);
    std::byte* buffer = tiles + Pass::buffers + in_use * Pass::buffer_bytes;
#pragma unroll 1
    for (int step = 0; step < Pass::tile_queries; step += Pass::step_queries) {
      const int query = first_query + step;
      if (sees<Pass>(query, visible.first_of(query), warp_first)) {
        add_key_gradients<head_size, Pass>(tiles, warp_row, buffer, step, visible, warp_first, query, queries,
                                           dkeys, dvalues);
      }
    }
    queries.add(head, forgotten(at.tile) * Pass::tile_keys, first_query, buffer);
  }
  float scales[Pass::m_tiles][2], ones[Pass::m_tiles][2];
  for (int m = 0; m < Pass::m_tiles; ++m) {
    scales[m][0] = scales[m][1] = score_scale(head_size);
    ones[m][0] = ones[m][1] = 1;
  }
  BFloat16* dqkv = static_cast<BFloat16*>(op.dqkv);
  const HeadPlace to = place();
  // Both go through the tile of values: other warps may still read the keys.
  store_rows<head_size>(dkeys, scales, tiles + Pass::values, warp_row, dqkv + to.key, to.qkv_stride,
                        warp_first, end_key);
  store_rows<head_size>(dvalues, ones, tiles + Pass::values, warp_row, dqkv + to.value, to.qkv_stride,
                        warp_first, end_key);
}

}  // namespace holdfast::kernels::cuda
