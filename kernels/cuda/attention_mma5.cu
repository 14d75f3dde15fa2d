// Attention backward in bf16 for head sizes 64 and 128 by tensor cores, with five products of tiles: the pass
// over the queries of a tile of keys (attention_key_pass.h) computes the gradients of queries on the way. The
// gradients of scores, which warps have by keys, go through shared memory; there each warp takes the gradients
// of 32 queries and 32 columns, goes on with the sums that the tile of keys after this one has left in fp32 in
// the workspace, and adds the products of this tile to them, in the same registers: from the last key that a
// query sees to the first, 16 at a time, whatever a tile is. The sum that comes to the first key of its queries
// is rounded and stored.
//
// The order of a sum is that of the tiles, last to first, by one of two ways with the same bits:
//   a block for each key head goes through its tiles of keys, and adds in the order of its program;
//   a block for each tile of keys waits, sum by sum, for the block of the tile after its own. Blocks take tiles
//   in the order in which they begin, so they wait only for blocks that run or have ended.
// An element of a sum always belongs to the same lane of the same warp: lanes keep their own in the workspace.
#include "kernels/attention.h"

#include "kernels/cuda/attention_key_pass.h"
#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/ops.h"

namespace holdfast::kernels::cuda {

namespace {

// Sizes, beside those of KeyPass. So many queries are in a buffer that the warps have one part each.
template <int head_size>
struct Sizes : KeyPass<head_size, 4096 / head_size> {
  using Pass = KeyPass<head_size, 4096 / head_size>;
  static constexpr int part = Pass::step_queries;  // queries, and columns, of the sums of a warp
  static constexpr int parts = head_size / part;   // of the columns
  static_assert(part * part * mma_warps == Pass::tile_queries * head_size);

  using ScoreTile = MmaTile<Pass::tile_queries>;  // rows are keys
  static constexpr int scores = Pass::bytes;      // their gradients; offset in shared memory
  static constexpr int bytes = scores + ScoreTile::bytes_of(Pass::tile_keys);
  static_assert(bytes <= 97 << 10, "more than a block of every GPU may have (compute capability 8.6, 8.9)");
};

// The part of a block in the gradients of queries. With `waits`, other blocks have the tiles of keys after its
// own.
template <int head_size, bool waits>
struct QueryGradients {
  using S = Sizes<head_size>;
  const AttentionBackward& op;
  int b;
  std::byte* tiles;
  QuerySums memory;

  __device__ static int lane() { return forgotten(static_cast<int>(threadIdx.x)) % 32; }

  template <int m_tiles, int k_tiles>
  __device__ void keep(const MmaLeft<m_tiles, k_tiles>& weights, int warp_row, int step) const {
    const MmaThread thread(forgotten(static_cast<int>(threadIdx.x)));
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int k = 0; k < k_tiles; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = warp_row + 16 * m + 8 * (i % 2) + thread.row, piece = step / 8 + 2 * k + i / 2;
          std::byte* place = tiles + S::scores + S::ScoreTile::offset(key, piece) + 2 * thread.column;
          *reinterpret_cast<unsigned*>(place) = weights[m][k][i];
        }
      }
    }
  }

  // Adds the products of the tile's keys, the last ones first, to the sums of the queries from `query` on, whose
  // first row is `row`, and of the columns from `column` on.
  __device__ void add_products(int first_key, int query, int begin, int row, int column, int lane,
                               MmaSums<2, 4>& sums) const {
    const RightReader<S::tile_queries> scores(tiles + S::scores, 0, lane);
    const LeftReader<head_size> keys(tiles, 0, lane);
#pragma unroll 1
    for (int warp = mma_warps - 1; warp >= 0; --warp) {
      const int warp_row = warp * S::warp_keys;
      if (!sees<S>(query, begin, first_key + warp_row)) continue;  // that warp has kept nothing
#pragma unroll
      for (int key = S::warp_keys - 16; key >= 0; key -= 16) {
        unsigned a[2][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          scores.template load<true>(a[i], warp_row + key, row + 16 * i);
          keys.template load<true>(b[i], warp_row + key, column + 16 * i);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < 4; ++n)
            multiply_add(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
  }

  __device__ void add(int head, int first_key, int first_query, std::byte* buffer) const {
    __syncthreads();  // the gradients of scores are there
    const MmaThread thread(forgotten(static_cast<int>(threadIdx.x)));
    const int row = thread.warp / S::parts * S::part, part = thread.warp % S::parts;
    const VisibleKeys visible = visible_keys(op, b);
    const int query = first_query + row, begin = visible.first_of(query);
    if (query >= visible.length || begin >= first_key + S::tile_keys) return;
    const int steps = (visible.length + S::part - 1) / S::part;
    const int index =
        ((forgotten(b) * static_cast<int>(op.heads) + head) * steps + query / S::part) * S::parts + part;
    const int added = query / S::tile_keys - first_key / S::tile_keys;  // tiles of keys, before this one
    MmaSums<2, 4> sums;
    auto& packs = reinterpret_cast<float(&)[QuerySums::packs][4]>(sums);
    memory.take<waits>(index, added, thread.lane, packs);
    add_products(first_key, query, begin, row, part * S::part, thread.lane, sums);
    if (begin >= first_key) return store(head, query, row, part * S::part, buffer, sums);
    memory.keep<waits>(index, added + 1, thread.lane, packs);
  }

  __device__ void store(int head, int query, int row, int column, std::byte* buffer,
                        const MmaSums<2, 4>& sums) const {
    const float scale = score_scale(head_size);
    const float scales[2][2] = {{scale, scale}, {scale, scale}};
    const HeadPlace place = place_of(op, forgotten(b), head);
    store_rows<head_size>(sums, scales, buffer, row, static_cast<BFloat16*>(op.dqkv) + place.query,
                          place.qkv_stride, query, static_cast<int>(op.sequence_length), column);
  }
};

// A block for each key head of each sequence.
template <int head_size>
__global__ void __launch_bounds__(mma_threads, 2) head_gradients(AttentionBackward op, QuerySums memory) {
  using S = Sizes<head_size>;
  std::byte* tiles = dynamic_shared();
  TilePlace at(op.batch, op.kv_heads);
  const QueryGradients<head_size, false> queries = {op, at.b, tiles, memory};
#pragma unroll 1
  for (at.tile = static_cast<int>(op.sequence_length - 1) / S::tile_keys; at.tile >= 0; --at.tile) {
    compute_key_gradients<head_size, typename S::Pass>(op, at, tiles, queries);
    __syncthreads();  // the tiles are free
  }
}

template <int head_size>
__global__ void __launch_bounds__(mma_threads, 2) tile_gradients(AttentionBackward op, QuerySums memory) {
  using S = Sizes<head_size>;
  std::byte* tiles = dynamic_shared();
  const TilePlace at =
      take_tile(op, memory.begun, S::tile_keys, reinterpret_cast<unsigned*>(tiles + S::scores));
  compute_key_gradients<head_size, typename S::Pass>(
      op, at, tiles, QueryGradients<head_size, true>{op, at.b, tiles, memory});
}

QueryWorkspace workspace_of(const AttentionBackward& op) {
  return {op, Sizes<64>::part};
}

void check_alignment(const AttentionBackward& op) {
  HF_CHECK(packs_fit<BFloat16>(op.head_size, op.qkv, op.dout, op.dqkv),
           "attention of rows that are not aligned");
}

}  // namespace

void prepare_attention_backward_mma5(Context& context, const void* arguments) {
  context.request_workspace(workspace_of(*static_cast<const AttentionBackward*>(arguments)).bytes);
}

void run_attention_backward_mma5(Context& context, const void* arguments) {
  const AttentionBackward& op = *static_cast<const AttentionBackward*>(arguments);
  check_alignment(op);
  run_attention_delta(context, op);
  const QuerySums memory = workspace_of(op).start(context, false);
  for_mma_head_size(op.head_size, [&](auto head_size) {
    launch(context, head_gradients<head_size>,
           {.blocks = blocks_for(op.batch * op.kv_heads, 1),
            .threads = mma_threads,
            .shared_bytes = Sizes<head_size>::bytes},
           op, memory);
  });
}

void run_attention_backward_mma5_tiles(Context& context, const void* arguments) {
  const AttentionBackward& op = *static_cast<const AttentionBackward*>(arguments);
  check_alignment(op);
  run_attention_delta(context, op);
  const QuerySums memory = workspace_of(op).start(context, true);
  for_mma_head_size(op.head_size, [&](auto head_size) {
    using S = Sizes<head_size>;
    launch(context, tile_gradients<head_size>,
           mma_grid(op.batch * op.kv_heads, op.sequence_length, S::tile_keys, S::bytes), op, memory);
  });
}

}  // namespace holdfast::kernels::cuda
