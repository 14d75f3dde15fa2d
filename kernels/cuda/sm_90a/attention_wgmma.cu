// Attention forward in bf16 for head sizes 64 and 128 on sm_90a: tiles of 128 queries against tiles of 128
// keys. One thread brings tiles by TMA into a ring in shared memory; two warpgroups have 64 queries each,
// with scores and results in registers (FlashAttention-3, Shah et al. 2024). A warpgroup starts the scores
// of the next tile together with the weighted sum of this one, and softens while those products run; the two
// take turns at starting them, so that one softens while the other multiplies. Rounding and softmax are
// those of attention_mma.cu, with other tiles of keys.
#include "kernels/attention.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/sm_90a/attention_panels.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int tile = groups * group_rows;  // queries of a block, and keys
constexpr int ring_tiles = 6;              // of keys or values
constexpr int n_tiles = tile / 8;
constexpr int registers_to_copy = 24, registers_to_compute = 240;
constexpr unsigned panel_bytes = tile * row_bytes;

// Names of barriers (sync_threads): of turns and of the end, for each group.
__device__ constexpr int turn_of(int group) {
  return 1 + group;
}
__device__ constexpr int end_of(int group) {
  return 3 + group;
}

// Shared memory of a block.
template <int head_size>
struct Room {
  static constexpr int panels = head_size / panel_columns;
  static constexpr unsigned tile_bytes = panels * panel_bytes;
  static constexpr unsigned barriers = (1 + ring_tiles) * tile_bytes;  // queries, then the ring
  static constexpr unsigned bytes = barriers + 8 * (1 + 2 * ring_tiles);

  SharedAddress queries;
  __device__ explicit Room(std::byte* memory) : queries(shared_address(memory)) {}
  __device__ SharedAddress tile_at(int slot) const { return queries + (1 + slot) * tile_bytes; }
  // Barriers that say that queries are there, that a tile is there, and that both groups are done with it.
  __device__ SharedAddress has_queries() const { return queries + barriers; }
  __device__ SharedAddress is_full(int slot) const { return queries + barriers + 8 * (1 + slot); }
  __device__ SharedAddress is_free(int slot) const {
    return queries + barriers + 8 * (1 + ring_tiles + slot);
  }
};

// All take tiles in one order: keys 0, keys 1, values 0, keys 2, values 1, ... values of the last.
using Place = RingPlace<ring_tiles>;

// Holds what a block computes: queries from first_query on, against the tiles of keys from begin to that of these
// queries.
struct Work {
  int b, head, first_query, begin;
  VisibleKeys visible;
  __device__ explicit Work(const AttentionForward& op) {
    const TilePlace at(op.batch, op.heads);
    b = at.b;
    head = at.head;
    visible = visible_keys(op, b);
    first_query = ((visible.length - 1) / tile - at.tile) * tile;  // the longest first
    begin = visible.first_of(first_query) / tile * tile;
  }
};

// Brings the tiles of a block. By one thread.
template <int head_size>
__device__ void bring_tiles(const AttentionForward& op, const CUtensorMap& qkv, const Work& work,
                            const Room<head_size>& room) {
  using Sizes = Room<head_size>;
  const HeadPlace columns = place_of(op, 0, work.head);
  const auto copy = [&](SharedAddress target, std::int64_t column, int row, SharedAddress barrier) {
    arrive_expecting(barrier, Sizes::tile_bytes);
#pragma unroll
    for (int panel = 0; panel < Sizes::panels; ++panel)
      copy_box(target + panel * panel_bytes, qkv, static_cast<int>(column) + panel * panel_columns, row,
               work.b, barrier);
  };
  Place place;
  const auto bring = [&](std::int64_t column, int row) {
    await_phase(room.is_free(place.slot), place.turn ^ 1U);  // at first they are
    copy(room.tile_at(place.slot), column, row, room.is_full(place.slot));
    place.advance();
  };
  copy(room.queries, columns.query, work.first_query, room.has_queries());
  bring(columns.key, work.begin);
  for (int key = work.begin + tile; key <= work.first_query; key += tile) {
    bring(columns.key, key);
    bring(columns.value, key - tile);
  }
  bring(columns.value, work.first_query);
}

// Computes a warpgroup's 64 queries.
template <int head_size>
__device__ void attend_group(const AttentionForward& op, const Work& work, const Room<head_size>& room,
                             std::byte* memory, int group) {
  constexpr int d_tiles = head_size / 8;
  const int lane = MmaThread().lane, warp = static_cast<int>(threadIdx.x) / 32 % group_warps;
  const int warp_row = group * group_rows + 16 * warp, warp_first = work.first_query + warp_row;
  const int mixed_end = work.visible.first_of(warp_first + 15);
  const std::uint64_t queries = rows_of(room.queries + group * group_rows * row_bytes, panel_bytes);
  const auto multiply_keys = [&](int slot, MmaSums<1, n_tiles>& scores) {
    multiply_heads<head_size, panel_bytes, panel_bytes>(queries, rows_of(room.tile_at(slot), panel_bytes),
                                                        scores[0]);
  };
  const auto add_values = [&](int slot, const MmaLeft<1, n_tiles / 2>& weights, MmaSums<1, d_tiles>& out) {
    add_rows(weights[0], rows_of(room.tile_at(slot), panel_bytes), out[0]);
  };
  const auto release = [&](int slot) {
    __syncwarp();
    if (lane == 0) arrive(room.is_free(slot));
  };
  const auto hide = [&](MmaSums<1, n_tiles>& scores, int key) {
    if (key + tile > warp_first + 1 || key < mixed_end)
      hide_keys<1, n_tiles>(scores, work.visible, warp_first, key);
  };

  MmaSoftmax<1> softmax(head_size);
  MmaSums<1, n_tiles> scores;
  MmaSums<1, d_tiles> out;
  MmaLeft<1, n_tiles / 2> weights;
  float shrink[1][2];
  set_zero<1, d_tiles>(out);
  Place place;
  await_phase(room.has_queries(), 0);
  await_phase(room.is_full(place.slot), place.turn);
  multiply_keys(place.slot, scores);
  await_products<0>(scores[0]);
  release(place.slot);
  place.advance();
  hide(scores, work.begin);
  softmax.template raise_references<n_tiles>(scores, shrink);
  softmax.template soften<n_tiles>(scores);
  round_to_left<1, n_tiles>(scores, weights);

  if (group == 1 && work.begin < work.first_query) arrive_threads(turn_of(0), groups * warpgroup_threads);
  for (int key = work.begin + tile; key <= work.first_query; key += tile) {
    const int keys_slot = place.slot;
    await_phase(room.is_full(place.slot), place.turn);
    place.advance();
    sync_threads(turn_of(group), groups * warpgroup_threads);
    multiply_keys(keys_slot, scores);
    await_phase(room.is_full(place.slot), place.turn);
    add_values(place.slot, weights, out);
    if (group == 0 || key < work.first_query) arrive_threads(turn_of(1 - group), groups * warpgroup_threads);
    await_products<1>(scores[0]);
    release(keys_slot);
    hide(scores, key);
    const bool raised = softmax.template raise_references<n_tiles>(scores, shrink);
    softmax.template soften<n_tiles>(scores);
    await_products<0>(out[0]);
    release(place.slot);
    place.advance();
    if (raised) scale_rows<1, d_tiles>(shrink, out);
    round_to_left<1, n_tiles>(scores, weights);
  }
  await_phase(room.is_full(place.slot), place.turn);
  add_values(place.slot, weights, out);
  await_products<0>(out[0]);

  const HeadPlace place_of_head = place_of(op, work.b, work.head);
  const int end = min(work.visible.length, work.first_query + tile);
  float inverse[1][2];
  softmax.finish(op.lse + place_of_head.statistics, warp_first, work.visible.length, inverse);
  sync_threads(end_of(group),
               warpgroup_threads);  // the group's queries are no longer needed: results pass there
  store_panels<panel_bytes>(out, inverse, memory, warp_row,
                            static_cast<BFloat16*>(op.out) + place_of_head.out, place_of_head.out_stride,
                            warp_first, end);
}

// `qkv`: all rows of op.qkv (map_rows()).
template <int head_size>
__global__ void __launch_bounds__(block_threads, 1)
    attend(AttentionForward op, const __grid_constant__ CUtensorMap qkv) {
  std::byte* const memory = aligned_shared();
  const Room<head_size> room(memory);
  if (threadIdx.x == 0) {
    set_barrier(room.has_queries(), 1);
    for (int slot = 0; slot < ring_tiles; ++slot) {
      set_barrier(room.is_full(slot), 1);
      set_barrier(room.is_free(slot), groups * group_warps);
    }
    fence_async_proxy();
  }
  __syncthreads();
  const Work work(op);
  const int warpgroup = static_cast<int>(threadIdx.x) / warpgroup_threads;
  if (warpgroup == 0) {
    give_registers<registers_to_copy>();
    if (threadIdx.x == 0) bring_tiles<head_size>(op, qkv, work, room);
  } else {
    take_registers<registers_to_compute>();
    attend_group<head_size>(op, work, room, memory, warpgroup - 1);
  }
}

}  // namespace

void run_attention_forward_wgmma(Context& context, const void* arguments) {
  const AttentionForward& op = *static_cast<const AttentionForward*>(arguments);
  HF_CHECK(packs_fit<BFloat16>(op.head_size, op.qkv, op.out), "attention of rows that are not aligned");
  if (op.batch == 0 || op.sequence_length == 0) return;
  CUtensorMap qkv;
  context.note(
      map_rows(qkv, op.qkv, (op.heads + 2 * op.kv_heads) * op.head_size, op.sequence_length, op.batch, tile),
      "cuTensorMapEncodeTiled");
  for_mma_head_size(op.head_size, [&](auto head_size) {
    launch(context, attend<head_size>,
           {.blocks = blocks_of_heads(op.batch * op.heads, op.sequence_length, tile),
            .threads = block_threads,
            .shared_bytes = Room<head_size>::bytes},
           op, qkv);
  });
}

}  // namespace holdfast::kernels::cuda
