// Attention backward in bf16 for head sizes 64 and 128 on sm_90a, with five products of tiles: the pass
// over the queries of a tile of keys (attention_key_pass.h) by products of warpgroups, with the gradients
// of queries on the way (attention_mma5.cu; the two ways and the order of their sums are those of that
// file).
//
// One thread brings keys, values, queries and gradients by TMA, and one warp the statistics of the queries;
// two warpgroups have 64 keys of the tile each, and hold the gradients of these and of their values in
// registers over all queries. Scores have keys as rows, 64 queries at a time, so that probabilities and the
// gradients of scores are left operands where they are. The latter go to shared memory, too, by keys: from
// there both warpgroups take those of all 128 keys, transposed, for their half of the gradients of queries:
// 64 queries of 128 where a head has one panel of 64 columns, and else a panel of two. The sums of that
// half come from the workspace into the registers of the product, and go back there: cp.reduce.async.bulk
// would free the threads of both, but then the sum is made in memory, and has to be read again to be
// rounded.
#include "kernels/attention.h"

#include "kernels/cuda/attention_key_pass.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sm_90a/attention_panels.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int tile_keys = groups * group_rows;
constexpr int ring_tiles = 2;  // of queries and gradients
constexpr int registers_to_copy = 40, registers_to_compute = 232;

// Says what a warpgroup computes at once, as in KeyPass.
struct Step {
  static constexpr int step_queries = group_rows, warp_keys = group_rows;
  static constexpr int n_tiles = step_queries / 8;
};

// Names of barriers (sync_threads): the gradients of scores are there; and of the end of a tile, for each
// group.
constexpr int scores_there = 1;
__device__ constexpr int end_of(int group) {
  return 2 + group;
}

// Shared memory of a block.
template <int head_size>
struct Room {
  static constexpr int panels = head_size / panel_columns;
  static constexpr int key_slots = panels == 1 ? 2 : 1;  // of keys and values: what there is memory for
  static constexpr int steps = groups / panels;          // of the queries of a tile
  static constexpr int tile_queries = steps * Step::step_queries;
  static constexpr unsigned key_panel = tile_keys * row_bytes, query_panel = tile_queries * row_bytes;
  static constexpr unsigned key_bytes = panels * key_panel, query_bytes = panels * query_panel;
  static constexpr unsigned score_bytes = steps * key_panel;  // a panel has 64 queries of all keys

  static constexpr unsigned queries_begin = key_slots * 2 * key_bytes;
  static constexpr unsigned scores_begin = queries_begin + ring_tiles * 2 * query_bytes;
  static constexpr unsigned statistics = scores_begin + 2 * score_bytes;
  static constexpr unsigned statistics_bytes = tile_queries * sizeof(float);
  static constexpr unsigned barriers = statistics + ring_tiles * 2 * statistics_bytes;
  static constexpr unsigned number = barriers + 8 * 2 * (key_slots + ring_tiles);  // for take_tile()
  static constexpr unsigned bytes = number + sizeof(unsigned);
  static_assert(bytes <= 225 << 10);

  std::byte* memory;
  __device__ SharedAddress at(unsigned offset) const { return shared_address(memory) + offset; }
  // Tiles: keys, and values after them; queries, and gradients of out after them.
  __device__ static unsigned keys(int slot) { return slot * 2 * key_bytes; }
  __device__ static unsigned values(int slot) { return keys(slot) + key_bytes; }
  __device__ static unsigned queries(int slot) { return queries_begin + slot * 2 * query_bytes; }
  __device__ static unsigned douts(int slot) { return queries(slot) + query_bytes; }
  // Gradients of scores: rows are keys, panels are steps of queries.
  __device__ static unsigned scores(int buffer, int step) {
    return scores_begin + buffer * score_bytes + step * key_panel;
  }
  // The log-sum-exp (0) or delta (1) of the queries.
  __device__ float* statistic(int slot, int number) const {
    return reinterpret_cast<float*>(memory + statistics + (2 * slot + number) * statistics_bytes);
  }
  // Barriers that say that a tile is there, and that both groups are done with it.
  __device__ SharedAddress has_keys(int slot) const { return at(barriers + 8 * slot); }
  __device__ SharedAddress keys_free(int slot) const { return at(barriers + 8 * (key_slots + slot)); }
  __device__ SharedAddress is_full(int slot) const { return at(barriers + 8 * (2 * key_slots + slot)); }
  __device__ SharedAddress is_free(int slot) const {
    return at(barriers + 8 * (2 * key_slots + ring_tiles + slot));
  }
};

// Says what a block computes: tiles of keys from last_key down to first_key, of a key head.
struct Work {
  int b, kv_head, group, last_key, first_key;  // `group`: of query heads
  VisibleKeys visible;
  __device__ Work(const AttentionBackward& op, const TilePlace& at, bool whole_head) {
    b = at.b;
    kv_head = at.head;
    group = static_cast<int>(op.heads / op.kv_heads);
    visible = visible_keys(op, b);
    last_key = whole_head ? (visible.length - 1) / tile_keys * tile_keys : at.tile * tile_keys;
    first_key = whole_head ? 0 : last_key;
  }
  // Calls body(head, first query) for the tiles of queries that see one of the tile of keys from `key` on.
  // All threads take them in this order.
  template <int tile_queries, typename Body>
  __device__ void for_queries(int key, const Body& body) const {
    const int end_key = min(key + tile_keys, visible.length);
    const int end = visible.end_of_tiles(end_key - 1, tile_queries) * tile_queries;
#pragma unroll 1
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
#pragma unroll 1
      for (int query = key; query < end; query += tile_queries) body(head, query);
    }
  }
};

// Brings the tiles of a block. By one thread.
template <int head_size>
__device__ void bring_tiles(const AttentionBackward& op, const CUtensorMap& qkv, const CUtensorMap& dout,
                            const Work& work, const Room<head_size>& room) {
  using R = Room<head_size>;
  const auto copy = [&](unsigned target, unsigned panel_bytes, const CUtensorMap& map, int head, int row,
                        SharedAddress barrier) {
#pragma unroll
    for (int panel = 0; panel < R::panels; ++panel)
      copy_box(room.at(target + panel * panel_bytes), map, head * head_size + panel * panel_columns, row,
               work.b, barrier);
  };
  RingPlace<R::key_slots> keys;
  const auto bring_keys = [&](int key) {
    const int key_head = static_cast<int>(op.heads) + work.kv_head;
    const int value_head = key_head + static_cast<int>(op.kv_heads);
    const SharedAddress barrier = room.has_keys(keys.slot);
    await_phase(room.keys_free(keys.slot), keys.turn ^ 1U);  // at first they are
    arrive_expecting(barrier, 2 * R::key_bytes);
#pragma unroll
    for (int row = 0; row < tile_keys; row += R::tile_queries) {  // of a box
      copy(R::keys(keys.slot) + row * row_bytes, R::key_panel, qkv, key_head, key + row, barrier);
      copy(R::values(keys.slot) + row * row_bytes, R::key_panel, qkv, value_head, key + row, barrier);
    }
    keys.advance();
  };
  RingPlace<ring_tiles> place;
  int next_key = work.last_key;  // that was not brought yet
#pragma unroll 1
  for (int key = work.last_key; key >= work.first_key; key -= tile_keys) {
    work.for_queries<R::tile_queries>(key, [&](int head, int query) {
      // After the first queries the next keys: their memory is free soon.
      const int last_needed = R::key_slots > 1 && query > key ? key - tile_keys : key;
      for (; next_key >= max(last_needed, work.first_key); next_key -= tile_keys) bring_keys(next_key);
      const SharedAddress barrier = room.is_full(place.slot);
      await_phase(room.is_free(place.slot), place.turn ^ 1U);
      arrive_expecting(barrier, 2 * R::query_bytes);
      copy(R::queries(place.slot), R::query_panel, qkv, head, query, barrier);
      copy(R::douts(place.slot), R::query_panel, dout, head, query, barrier);
      place.advance();
    });
  }
}

// Brings a statistic of the queries, number 0 or 1 of Room::statistics; zeros after the sequence's end. By
// one warp.
template <int head_size>
__device__ void bring_statistics(const AttentionBackward& op, const Work& work, const Room<head_size>& room,
                                 int number) {
  constexpr int tile_queries = Room<head_size>::tile_queries;
  const int lane = MmaThread().lane;
  const float* const values = number == 0 ? op.lse : op.delta;
  RingPlace<ring_tiles> place;
#pragma unroll 1
  for (int key = work.last_key; key >= work.first_key; key -= tile_keys) {
    work.for_queries<tile_queries>(key, [&](int head, int first_query) {
      const float* const from = values + (work.b * op.heads + head) * op.sequence_length + first_query;
      float* const to = room.statistic(place.slot, number);
      await_phase(room.is_free(place.slot), place.turn ^ 1U);
#pragma unroll
      for (int i = lane; i < tile_queries; i += 32)
        to[i] = first_query + i < work.visible.length ? from[i] : 0.0F;
      __syncwarp();
      if (lane == 0) arrive(room.is_full(place.slot));
      place.advance();
    });
  }
}

// A warpgroup's part: 64 keys of each tile, and its half of the gradients of queries. With `waits`, other
// blocks have the tiles of keys after its own.
template <int head_size, bool waits>
struct GroupGradients {
  using R = Room<head_size>;
  static constexpr int d_tiles = head_size / 8, n_tiles = Step::n_tiles;
  const AttentionBackward& op;
  const Work& work;
  const R& room;
  QuerySums memory;
  int group;

  // Values that follow from them are computed where they are used: registers are short.
  __device__ static int thread_number() { return forgotten(static_cast<int>(threadIdx.x)); }
  __device__ static int warp() { return thread_number() / 32 % group_warps; }
  __device__ static int lane() { return thread_number() % 32; }

  // Keeps gradients of scores of the warp's keys.
  __device__ void keep(const MmaLeft<1, n_tiles / 2>& gradients, unsigned scores) const {
    const MmaThread thread(thread_number());
#pragma unroll
    for (int k = 0; k < n_tiles / 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = group * group_rows + 16 * warp() + 8 * (i % 2) + thread.row;
        const int place = MmaTile<panel_columns>::offset(row, 2 * k + i / 2) + 2 * thread.column;
        *reinterpret_cast<unsigned*>(room.memory + scores + place) = gradients[0][k][i];
      }
    }
  }

  // Adds the contribution of 64 queries, which are step number `step` of a tile, to the gradients of the
  // group's keys.
  __device__ void add_key_gradients(int key_slot, int slot, int buffer, int step, int group_first, int query,
                                    MmaSums<1, d_tiles>& dkeys, MmaSums<1, d_tiles>& dvalues) const {
    constexpr unsigned group_bytes = group_rows * row_bytes, step_bytes = Step::step_queries * row_bytes;
    const std::uint64_t keys = rows_of(room.at(R::keys(key_slot) + group * group_bytes), R::key_panel);
    const std::uint64_t values = rows_of(room.at(R::values(key_slot) + group * group_bytes), R::key_panel);
    const std::uint64_t queries = rows_of(room.at(R::queries(slot) + step * step_bytes), R::query_panel);
    const std::uint64_t douts = rows_of(room.at(R::douts(slot) + step * step_bytes), R::query_panel);
    MmaSums<1, n_tiles> probabilities, gradients;
    MmaLeft<1, n_tiles / 2> weights, score_gradients;
    multiply_heads<head_size, R::key_panel, R::query_panel>(keys, queries, probabilities[0]);
    multiply_heads<head_size, R::key_panel, R::query_panel>(values, douts, gradients[0]);
    await_products<1>(probabilities[0]);
    const int warp_first = group_first + 16 * warp();
    if (query < warp_first + 15 || work.visible.first_of(query + Step::step_queries - 1) > warp_first)
      hide_from_queries<1, n_tiles>(probabilities, work.visible, warp_first, query);
    soften<1, n_tiles>(probabilities, score_scale(head_size),
                       room.statistic(slot, 0) + step * Step::step_queries);
    round_to_left<1, n_tiles>(probabilities, weights);
    add_rows(weights[0], douts, dvalues[0]);
    if constexpr (R::panels == 1) {
      await_products<1>(gradients[0]);
    } else {
      await_products<0>(gradients[0], dvalues[0]);  // which frees the registers of the weights
    }
    through_softmax<1, n_tiles>(probabilities, room.statistic(slot, 1) + step * Step::step_queries,
                                gradients);
    round_to_left<1, n_tiles>(gradients, score_gradients);
    keep(score_gradients, R::scores(buffer, step));  // before a product has these registers
    add_rows(score_gradients[0], queries, dkeys[0]);
    await_products<0>(dkeys[0], dvalues[0]);
  }

  // Adds the products of the tile's keys, the last ones first, to the sums of 64 queries, which are step
  // number `step` of a tile, and of the columns of a panel.
  __device__ void add_query_gradients(int key_slot, int buffer, int step, int panel,
                                      MmaSums<1, n_tiles>& sums) const {
    const std::uint64_t scores = rows_of(room.at(R::scores(buffer, step)), R::key_panel);
    const std::uint64_t keys = rows_of(room.at(R::keys(key_slot) + panel * R::key_panel), R::key_panel);
    fence_products();
#pragma unroll
    for (int key = tile_keys - 16; key >= 0; key -= 16)
      multiply_shared<true, true>(sums[0], matrix_at(scores, key * row_bytes),
                                  matrix_at(keys, key * row_bytes), true);
    commit_products();
    await_products<0>(sums[0]);
  }

  // Stores the warp's gradients of queries, once for each query: pieces of 16 bytes are good enough.
  __device__ void store_queries(int head, int query, int panel, const MmaSums<1, n_tiles>& sums) const {
    const MmaThread thread(thread_number());
    const float scale = score_scale(head_size);
    const HeadPlace place = place_of(op, work.b, head);
    BFloat16* const target =
        static_cast<BFloat16*>(op.dqkv) + place.query + panel * panel_columns + thread.column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + 16 * warp() + 8 * half + thread.row;
      if (row >= work.visible.length) continue;
      const std::int64_t offset = static_cast<std::int64_t>(row) * place.qkv_stride;
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        const float* pair = &sums[0][n][2 * half];
        *reinterpret_cast<unsigned*>(target + offset + 8 * n) = pack_bf16(pair[0] * scale, pair[1] * scale);
      }
    }
  }

  __device__ static void release(SharedAddress barrier) {
    __syncwarp();
    if (lane() == 0) arrive(barrier);
  }

  // Stores the gradients of the group's keys and values, through the memory of these values.
  __device__ void store_keys(int key_slot, int first_key, const MmaSums<1, d_tiles>& dkeys,
                             const MmaSums<1, d_tiles>& dvalues) const {
    const float scale = score_scale(head_size);
    const float scales[1][2] = {{scale, scale}}, ones[1][2] = {{1, 1}};
    const int warp_row = group * group_rows + 16 * warp(), warp_first = first_key + warp_row;
    const int end_key = min(first_key + tile_keys, work.visible.length);
    const HeadPlace to = place_of(op, work.b, work.kv_head * work.group);
    BFloat16* const dqkv = static_cast<BFloat16*>(op.dqkv);
    std::byte* const tile = room.memory + R::values(key_slot);
    sync_threads(end_of(group), warpgroup_threads);  // products of the other warps may still have read it
    store_panels<R::key_panel>(dkeys, scales, tile, warp_row, dqkv + to.key, to.qkv_stride, warp_first,
                               end_key);
    store_panels<R::key_panel>(dvalues, ones, tile, warp_row, dqkv + to.value, to.qkv_stride, warp_first,
                               end_key);
    fence_async_proxy();  // copies follow there
  }

  __device__ void run() const {
    const int sum_step = R::steps > 1 ? group : 0, sum_panel = R::panels > 1 ? group : 0;
    const int sum_steps = (work.visible.length + Step::step_queries - 1) / Step::step_queries;
    RingPlace<R::key_slots> keys;
    RingPlace<ring_tiles> place;
    int buffer = 0;  // who writes into one has passed a barrier since the other group has read it
#pragma unroll 1
    for (int first_key = work.last_key; first_key >= work.first_key; first_key -= tile_keys) {
      MmaSums<1, d_tiles> dkeys, dvalues;
      set_zero<1, d_tiles>(dkeys);
      set_zero<1, d_tiles>(dvalues);
      await_phase(room.has_keys(keys.slot), keys.turn);
      work.for_queries<R::tile_queries>(first_key, [&](int head, int first_query) {
        const int group_first = first_key + group * group_rows;
        const int sum_query = first_query + sum_step * Step::step_queries;
        const int begin = work.visible.first_of(sum_query);
        const bool adds = sum_query < work.visible.length && begin < first_key + tile_keys;
        const int added = adds ? sum_query / tile_keys - first_key / tile_keys : 0;  // tiles, before this one
        const int step_of_head =
            (work.b * static_cast<int>(op.heads) + head) * sum_steps + sum_query / Step::step_queries;
        const int part = (step_of_head * R::panels + sum_panel) * group_warps + warp();
        MmaSums<1, n_tiles> sums;
        // Registers allow it so early for one panel alone.
        if constexpr (R::panels == 1) memory.take<waits>(part, added, lane(), sums[0]);
        await_phase(room.is_full(place.slot), place.turn);
#pragma unroll 1
        for (int step = 0; step < R::steps; ++step) {
          const int query = first_query + step * Step::step_queries;
          if (sees<Step>(query, work.visible.first_of(query), group_first)) {
            add_key_gradients(keys.slot, place.slot, buffer, step, group_first, query, dkeys, dvalues);
          } else {
            keep(MmaLeft<1, n_tiles / 2>{}, R::scores(buffer, step));
          }
        }
        fence_async_proxy();
        if constexpr (R::panels > 1) memory.take<waits>(part, added, lane(), sums[0]);
        sync_threads(scores_there, groups * warpgroup_threads);
        if (adds) {
          add_query_gradients(keys.slot, buffer, sum_step, sum_panel, sums);
          if (begin >= first_key) {
            store_queries(head, sum_query, sum_panel, sums);
          } else {
            memory.keep<waits>(part, added + 1, lane(), sums[0]);
          }
        }
        release(room.is_free(place.slot));
        place.advance();
        buffer = 1 - buffer;
      });
      store_keys(keys.slot, first_key, dkeys, dvalues);
      release(room.keys_free(keys.slot));
      keys.advance();
    }
  }
};

// With `waits` a block has one tile of keys, else all of a head, the last one first. `qkv`, `dout`: all
// rows of those tensors (map_rows()).
template <int head_size, bool waits>
__global__ void __launch_bounds__(block_threads, 1)
    attend_backward(AttentionBackward op, QuerySums memory, const __grid_constant__ CUtensorMap qkv,
                    const __grid_constant__ CUtensorMap dout) {
  using R = Room<head_size>;
  const R room = {aligned_shared()};
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < R::key_slots; ++slot) {
      set_barrier(room.has_keys(slot), 1);
      set_barrier(room.keys_free(slot), groups * group_warps);
    }
    for (int slot = 0; slot < ring_tiles; ++slot) {
      set_barrier(room.is_full(slot), 3);  // of who brings tiles, and who brings statistics
      set_barrier(room.is_free(slot), groups * group_warps);
    }
    fence_async_proxy();
  }
  __syncthreads();
  TilePlace at(op.batch, op.kv_heads);
  if constexpr (waits)
    at = take_tile(op, memory.begun, tile_keys, reinterpret_cast<unsigned*>(room.memory + R::number));
  const int warpgroup = static_cast<int>(threadIdx.x) / warpgroup_threads;
  if (warpgroup == 0) {
    give_registers<registers_to_copy>();
    const Work work(op, at, !waits);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x == 0) bring_tiles<head_size>(op, qkv, dout, work, room);
    if (warp == 1 || warp == 2) bring_statistics<head_size>(op, work, room, warp - 1);
  } else {
    take_registers<registers_to_compute>();
    const Work work(op, at, !waits);
    GroupGradients<head_size, waits>{op, work, room, memory, warpgroup - 1}.run();
  }
}

QueryWorkspace workspace_of(const AttentionBackward& op) {
  return {op, Step::step_queries};
}

template <bool waits>
void run(Context& context, const AttentionBackward& op) {
  HF_CHECK(packs_fit<BFloat16>(op.head_size, op.qkv, op.dout, op.dqkv),
           "attention of rows that are not aligned");
  if (op.batch == 0 || op.sequence_length == 0) return;
  run_attention_delta(context, op);
  const QuerySums memory = workspace_of(op).start(context, waits);
  for_mma_head_size(op.head_size, [&](auto head_size) {
    using R = Room<head_size>;
    CUtensorMap qkv, dout;
    const auto map = [&](CUtensorMap& of, const void* first, std::int64_t heads) {
      context.note(map_rows(of, first, heads * op.head_size, op.sequence_length, op.batch, R::tile_queries),
                   "cuTensorMapEncodeTiled");
    };
    map(qkv, op.qkv, op.heads + 2 * op.kv_heads);
    map(dout, op.dout, op.heads);
    const std::int64_t heads = op.batch * op.kv_heads;
    launch(context, attend_backward<head_size, waits>,
           {.blocks = waits ? blocks_of_heads(heads, op.sequence_length, tile_keys) : blocks_for(heads, 1),
            .threads = block_threads,
            .shared_bytes = R::bytes},
           op, memory, qkv, dout);
  });
}

}  // namespace

void prepare_attention_backward_wgmma(Context& context, const void* arguments) {
  context.request_workspace(workspace_of(*static_cast<const AttentionBackward*>(arguments)).bytes);
}

void run_attention_backward_wgmma(Context& context, const void* arguments) {
  run<false>(context, *static_cast<const AttentionBackward*>(arguments));
}

void run_attention_backward_wgmma_tiles(Context& context, const void* arguments) {
  run<true>(context, *static_cast<const AttentionBackward*>(arguments));
}

}  // namespace holdfast::kernels::cuda
