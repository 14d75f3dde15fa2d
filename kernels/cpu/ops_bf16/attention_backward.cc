// Attention backward in bf16 with matrix instructions: one pass over the tiles of a head (five products),
// with no atomics. As in kernels/cpu/ops/attention_backward.cc a task owns all queries of its (batch,
// key/value head) and every n-th tile of keys, and adds in a fixed order.
//
// Scores of a tile are rows of keys: probabilities and score gradients, rounded, are then the left operands
// of dV and dK as they stand; for dQ, computed transposed, score gradients are the right operand.
#include "kernels/attention.h"

#include <limits>

#include "kernels/cpu/ops/attention_tiles.h"
#include "kernels/cpu/ops_bf16/bf16_pack.h"
#include "kernels/cpu/ops_bf16/bf16_product.h"
#include "kernels/cpu/ops_bf16/ops.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t tile_keys = 128;
constexpr std::int64_t strip_keys = 32;  // keys of a tile whose scores are in the cache at one time
constexpr std::int64_t block_queries = 256;
constexpr std::int64_t load_queries = 32;
constexpr std::int64_t dq_queries = 32;                              // side by side in the transposed dQ
constexpr std::int64_t score_stride = block_queries + vector_lanes;  // rows in different sets of the cache
constexpr std::int64_t operand_stride = block_queries + depth_step;
constexpr std::int64_t min_tasks = 8;

struct Plan : AttentionShape {
  explicit Plan(const AttentionBackward& op) : AttentionShape(shape_of(op)) {}

  std::int64_t rows() const { return round_up(length, depth_step); }
  std::int64_t depth() const { return round_up(head_size, depth_step); }
  std::int64_t tiles() const { return ceil_divide(length, tile_keys); }
  // Returns the number of tasks that share the keys of one head when there are few heads; each of them then
  // has its own part of dQ.
  std::int64_t slices() const {
    return larger(1, smaller(tiles(), ceil_divide(min_tasks, larger(1, batch * kv_heads))));
  }
  std::int64_t dq_floats() const { return rows() * padded(); }  // of one head and slice
  std::size_t shared_bytes() const {
    if (slices() == 1) return 0;
    return static_cast<std::size_t>(slices() * batch * heads * dq_floats()) * sizeof(float);
  }
  float root() const { return __builtin_sqrtf(static_cast<float>(head_size)); }
};

// Scratch of one thread.
struct Workspace {
  // Operands of one head of queries.
  BFloat16* queries = nullptr;             // B: (rows, padded)
  BFloat16* queries_transposed = nullptr;  // B: (depth, rows)
  BFloat16* dout = nullptr;                // B: (rows, padded)
  BFloat16* dout_transposed = nullptr;     // B: (depth, rows)
  float* minus_lse = nullptr;              // (rows) in units of log 2; -inf after the last query
  float* delta = nullptr;                  // (rows)
  float* dq = nullptr;  // (rows / dq_queries, padded, dq_queries); in shared scratch if there are slices
  // Operands of one tile of keys.
  BFloat16* keys = nullptr;             // A: (tile_keys, depth)
  BFloat16* keys_transposed = nullptr;  // A: (padded, tile_keys)
  BFloat16* values = nullptr;           // A: (tile_keys, depth)
  float* dk = nullptr;                  // (tile_keys, padded) of each tile that outlives a query head
  float* dv = nullptr;
  // Scores and operands of one strip of keys and one block of queries.
  float* scores = nullptr;        // (strip_keys, score_stride)
  float* dp = nullptr;            // (strip_keys, score_stride)
  BFloat16* p = nullptr;          // A: (strip_keys, operand_stride)
  BFloat16* ds = nullptr;         // A: (strip_keys, operand_stride)
  BFloat16* ds_panels = nullptr;  // B: (tile_keys, block_queries)
  std::size_t bytes = 0;

  Workspace(const Plan& plan, std::byte* block) {
    Pieces pieces(block);
    const std::int64_t kept_tiles = plan.group() == 1 ? 1 : ceil_divide(plan.tiles(), plan.slices());
    queries = pieces.take_bf16(plan.rows() * plan.padded());
    queries_transposed = pieces.take_bf16(plan.rows() * plan.depth());
    dout = pieces.take_bf16(plan.rows() * plan.padded());
    dout_transposed = pieces.take_bf16(plan.rows() * plan.depth());
    minus_lse = pieces.take(plan.rows());
    delta = pieces.take(plan.rows());
    if (plan.slices() == 1) dq = pieces.take(plan.dq_floats());
    keys = pieces.take_bf16(tile_keys * plan.depth());
    keys_transposed = pieces.take_bf16(tile_keys * plan.padded());
    values = pieces.take_bf16(tile_keys * plan.depth());
    dk = pieces.take(kept_tiles * tile_keys * plan.padded());
    dv = pieces.take(kept_tiles * tile_keys * plan.padded());
    scores = pieces.take(strip_keys * score_stride);
    dp = pieces.take(strip_keys * score_stride);
    p = pieces.take_bf16(strip_keys * operand_stride);
    ds = pieces.take_bf16(strip_keys * operand_stride);
    ds_panels = pieces.take_bf16(tile_keys * block_queries);
    bytes = pieces.bytes();
  }
};

HF_INLINE void fill_zero(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += vector_lanes) store(values + i, zero());
}

// A tile of keys that outlives a query head, and where its gradients add up.
struct KeyTile {
  std::int64_t first = 0;
  std::int64_t rows = 0;  // whole strips
  float* dk = nullptr;
  float* dv = nullptr;
  VisibleKeys visible;
};

// A strip of keys against consecutive queries, from `first_query` on; both counts are multiples of 32.
struct Block {
  std::int64_t first_key = 0;
  std::int64_t first_query = 0;
  std::int64_t queries = 0;
  std::int64_t key_in_tile = 0;  // of first_key
  std::int64_t column = 0;       // of first_query in space.ds_panels
};

// Computes which of 16 queries see a key, by position, document and window.
struct Visible {
  __m512i query;      // numbers of the queries
  __m512i first_key;  // of each, in its document
  __m512i sinks_end;  // what is from here on, ...
  __m512i window;     // ... and before this, the query does not see
  HF_INLINE Visible(const VisibleKeys& visible, std::int64_t first) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    query = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(first)));
    first_key = _mm512_setzero_si512();
    if (visible.first_key != nullptr) {
      const __m512i last = _mm512_set1_epi32(static_cast<int>(visible.length - 1));
      first_key = _mm512_mask_i32gather_epi32(first_key, 0xffff, _mm512_maskz_min_epi32(0xffff, query, last),
                                              visible.first_key, 4);
    }
    sinks_end = window = first_key;
    if (visible.window == 0) return;
    const auto number = [](std::int64_t value) { return _mm512_set1_epi32(static_cast<int>(value)); };
    window = _mm512_maskz_max_epi32(0xffff, first_key, _mm512_sub_epi32(query, number(visible.window - 1)));
    sinks_end = _mm512_add_epi32(first_key, number(visible.sinks));
  }
  HF_INLINE __mmask16 of(std::int64_t key) const {
    const __m512i number = _mm512_set1_epi32(static_cast<int>(key));
    const __mmask16 in_window = _mm512_cmple_epi32_mask(window, number);
    const __mmask16 in_sinks =
        _mm512_cmple_epi32_mask(first_key, number) & _mm512_cmplt_epi32_mask(number, sinks_end);
    return (in_window | in_sinks) & _mm512_cmple_epi32_mask(number, query);
  }
};

// p = 2^(scale * score - lse) and ds = p * (dp - delta) of one key and 16 queries.
struct Gradients {
  f32x16 p, ds;
};
struct QueryState {
  f32x16 minus_lse, delta;
};
HF_INLINE Gradients differentiate(const float* score, const float* dp, const QueryState& query, float scale,
                                  __mmask16 visible) {
  f32x16 p = fast_exp2(fma(load(score), scale, query.minus_lse));
  p.part[0] = _mm512_maskz_mov_ps(visible, p.part[0]);
  f32x16 ds = p * (load(dp) - query.delta);
  ds.part[0] = _mm512_maskz_mov_ps(visible, ds.part[0]);
  return {p, ds};
}

// Scores and dP of a block become operands. `in_part`: some query does not see some key.
template <bool in_part>
void differentiate_softmax(const Workspace& space, const Block& block, const VisibleKeys& visible,
                           float scale) {
  for (std::int64_t column = 0; column < block.queries; column += 32) {
    const std::int64_t query = block.first_query + column;
    const QueryState low{load(space.minus_lse + query), load(space.delta + query)};
    const QueryState high{load(space.minus_lse + query + 16), load(space.delta + query + 16)};
    const Visible visible_low(visible, query), visible_high(visible, query + 16);
    BFloat16* panel =
        space.ds_panels + (block.column + column) * tile_keys + block.key_in_tile * panel_columns;
    for (std::int64_t row = 0; row < strip_keys; row += 2, panel += 2 * panel_columns) {
      __m512i ds[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const std::int64_t key = block.first_key + row + i;
        const __mmask16 sees_low = in_part ? visible_low.of(key) : static_cast<__mmask16>(0xffff);
        const __mmask16 sees_high = in_part ? visible_high.of(key) : static_cast<__mmask16>(0xffff);
        const std::int64_t at = (row + i) * score_stride + column;
        const Gradients l = differentiate(space.scores + at, space.dp + at, low, scale, sees_low);
        const Gradients h = differentiate(space.scores + at + 16, space.dp + at + 16, high, scale, sees_high);
        ds[i] = to_bf16(l.ds, h.ds);
        _mm512_storeu_si512(space.p + (row + i) * operand_stride + column, to_bf16(l.p, h.p));
        _mm512_storeu_si512(space.ds + (row + i) * operand_stride + column, ds[i]);
      }
      _mm512_storeu_si512(panel, interleave<false>(ds[0], ds[1]));
      _mm512_storeu_si512(panel + tile_keys * panel_columns, interleave<true>(ds[0], ds[1]));
    }
  }
}

// One strip of keys and one block of queries: dV and dK, and the operand of dQ.
void differentiate_block(const Workspace& space, const Plan& plan, const Block& block, const KeyTile& tile) {
  const std::int64_t depth = plan.depth(), padded = plan.padded();
  const auto by_queries = [&](const BFloat16* a, const BFloat16* b, float* c) {
    multiply<Sum::start>({.a = a + block.key_in_tile * depth,
                          .a_stride = depth,
                          .b = b + block.first_query * depth,
                          .b_stride = depth * panel_columns,
                          .c = c,
                          .c_stride = score_stride,
                          .rows = strip_keys,
                          .columns = block.queries,
                          .depth = depth});
  };
  const auto over_queries = [&](const BFloat16* a, const BFloat16* b, float* c) {
    multiply<Sum::add>({.a = a,
                        .a_stride = operand_stride,
                        .b = b + block.first_query * panel_columns,
                        .b_stride = plan.rows() * panel_columns,
                        .c = c + block.key_in_tile * padded,
                        .c_stride = padded,
                        .rows = strip_keys,
                        .columns = padded,
                        .depth = block.queries});
  };
  by_queries(space.keys, space.queries_transposed, space.scores);
  by_queries(space.values, space.dout_transposed, space.dp);
  const float scale = log2_e / plan.root();
  const std::int64_t last_query = block.first_query + block.queries - 1;
  if (block.first_query < block.first_key + strip_keys - 1 ||
      tile.visible.window_of(last_query) > block.first_key) {
    differentiate_softmax<true>(space, block, tile.visible, scale);
  } else {
    differentiate_softmax<false>(space, block, tile.visible, scale);
  }
  over_queries(space.p, space.dout, tile.dv);
  over_queries(space.ds, space.queries, tile.dk);
}

// The queries before `end` have their dQ of the tiles so far; later ones have none yet.
struct DqProgress {
  std::int64_t end = 0;
};

// Zeroes the dQ of queries before `end` that have none yet: no key so far was for them.
void pass_queries(const Workspace& space, const Plan& plan, std::int64_t end, DqProgress& progress) {
  if (end <= progress.end) return;
  fill_zero(space.dq + progress.end * plan.padded(), (end - progress.end) * plan.padded());
  progress.end = end;
}

// dQ of the block's queries from the tile's keys; those on the diagonal see only the strips before them.
void add_dq(const Workspace& space, const Plan& plan, const KeyTile& tile, std::int64_t first_query,
            std::int64_t queries, const DqProgress& progress) {
  for (std::int64_t column = 0; column < queries; column += dq_queries) {
    const std::int64_t query = first_query + column;
    const Bf16Product product{.a = space.keys_transposed,
                              .a_stride = tile.rows,
                              .b = space.ds_panels + column * tile_keys,
                              .b_stride = tile_keys * panel_columns,
                              .c = space.dq + query * plan.padded(),
                              .c_stride = dq_queries,
                              .rows = plan.padded(),
                              .columns = dq_queries,
                              .depth = smaller(tile.rows, query + dq_queries - tile.first)};
    if (query < progress.end) {
      multiply<Sum::add>(product);
    } else {
      multiply<Sum::start>(product);
    }
  }
}

// The queries of the packed head that see a tile of keys against it.
void differentiate_tile(const Workspace& space, const Plan& plan, const KeyTile& tile, DqProgress& progress) {
  const std::int64_t last_key = smaller(tile.first + tile.rows, plan.length) - 1;
  const std::int64_t end = round_up(tile.visible.end_of_queries(tile.first, last_key), depth_step);
  pass_queries(space, plan, tile.first, progress);  // those of other slices' tiles
  for (std::int64_t first = tile.first; first < end; first += block_queries) {
    const std::int64_t last = smaller(first + block_queries, end);
    if (tile.visible.are_in_gap(first, last - 1, tile.first, last_key)) {
      pass_queries(space, plan, last, progress);
      continue;
    }
    for (std::int64_t key = 0; key < tile.rows; key += strip_keys) {
      const std::int64_t first_key = tile.first + key;
      const std::int64_t query = larger(first, first_key);
      if (query >= last) break;
      differentiate_block(space, plan,
                          {.first_key = first_key,
                           .first_query = query,
                           .queries = last - query,
                           .key_in_tile = key,
                           .column = query - first},
                          tile);
    }
    add_dq(space, plan, tile, first, last - first, progress);
    progress.end = larger(progress.end, last);
  }
}

// dQ of dq_queries queries, of which the first `count` exist.
void write_dq(const Plan& plan, const float* dq, std::int64_t count, BFloat16* target) {
  const float scale = 1.0F / plan.root();
  for (std::int64_t first = 0; first < count; first += vector_lanes) {
    for (std::int64_t d = 0; d < plan.head_size; d += vector_lanes) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(dq + (d + i) * dq_queries + first);
      transpose_dwords(rows);
      const std::int64_t columns = smaller(vector_lanes, plan.head_size - d);
      for (std::int64_t i = 0; i < smaller(vector_lanes, count - first); ++i) {
        float row[vector_lanes];
        _mm512_storeu_si512(row, rows[i]);
        store_rounded(row, columns, scale, target + (first + i) * plan.qkv_stride() + d);
      }
    }
  }
}

class Task {
 public:
  Task(const AttentionBackward& op, std::int64_t b, std::int64_t kv_head, std::int64_t slice,
       std::byte* scratch, std::byte* shared)
      : op_(op),
        plan_(op),
        space_(plan_, scratch),
        b_(b),
        kv_head_(kv_head),
        slice_(slice),
        shared_(shared) {}

  void run() {
    for (std::int64_t i = 0; i < plan_.group(); ++i) differentiate_head(kv_head_ * plan_.group() + i);
  }

 private:
  Bf16Rows rows_at(const void* tensor, std::int64_t offset, std::int64_t stride, std::int64_t first) const {
    return {static_cast<const BFloat16*>(tensor) + offset + first * stride, stride, plan_.length - first,
            plan_.head_size};
  }

  void differentiate_head(std::int64_t head) {
    load_head(head);
    const bool is_first = head == kv_head_ * plan_.group();
    const bool is_last = head == (kv_head_ + 1) * plan_.group() - 1;
    const std::int64_t tile_floats = tile_keys * plan_.padded();
    DqProgress progress;
    for (std::int64_t index = slice_; index < plan_.tiles(); index += plan_.slices()) {
      const std::int64_t kept = plan_.group() == 1 ? 0 : index / plan_.slices();
      const std::int64_t first = index * tile_keys;
      const KeyTile tile{.first = first,
                         .rows = smaller(tile_keys, plan_.rows() - first),
                         .dk = space_.dk + kept * tile_floats,
                         .dv = space_.dv + kept * tile_floats,
                         .visible = visible_keys(op_, b_)};
      if (is_first) {
        fill_zero(tile.dk, tile.rows * plan_.padded());
        fill_zero(tile.dv, tile.rows * plan_.padded());
      }
      load_keys(tile);
      differentiate_tile(space_, plan_, tile, progress);
      if (is_last) {
        write_rows(tile.dk, tile.first, 1.0F / plan_.root(), plan_.key_offset(b_, kv_head_));
        write_rows(tile.dv, tile.first, 1.0F, plan_.value_offset(b_, kv_head_));
      }
    }
    pass_queries(space_, plan_, plan_.rows(), progress);
    if (plan_.slices() > 1) return;
    for (std::int64_t first = 0; first < plan_.length; first += dq_queries) {
      write_dq(plan_, space_.dq + first * plan_.padded(), smaller(dq_queries, plan_.length - first),
               gradient(plan_.query_offset(b_, head), first));
    }
  }

  BFloat16* gradient(std::int64_t offset, std::int64_t row) const {
    return static_cast<BFloat16*>(op_.dqkv) + offset + row * plan_.qkv_stride();
  }

  void load_head(std::int64_t head) {
    for (std::int64_t first = 0; first < plan_.length; first += load_queries) load_rows(head, first);
    if (slice_ == 0) {
      for_lanes(plan_.length, [&](std::int64_t i, auto lanes) {
        store(op_.delta + (b_ * plan_.heads + head) * plan_.length + i, load(space_.delta + i), lanes);
      });
    }
    if (plan_.slices() > 1) {
      const std::int64_t part = (slice_ * plan_.batch + b_) * plan_.heads + head;
      space_.dq = reinterpret_cast<float*>(shared_) + part * plan_.dq_floats();
    }
  }

  // The operands of load_queries rows, and what there is once for each.
  void load_rows(std::int64_t head, std::int64_t first) {
    const std::int64_t offset = plan_.out_offset(b_, head), panel = plan_.rows() * panel_columns;
    const Bf16Rows queries = rows_at(op_.qkv, plan_.query_offset(b_, head), plan_.qkv_stride(), first);
    const Bf16Rows dout = rows_at(op_.dout, offset, plan_.out_stride(), first);
    const Bf16Rows out = rows_at(op_.out, offset, plan_.out_stride(), first);
    const auto pack = [&](const Bf16Rows& rows, BFloat16* b, BFloat16* b_transposed) {
      pack_b(rows, load_queries, plan_.padded(), b + first * panel_columns, panel);
      pack_b_transposed(rows, load_queries, plan_.depth(), b_transposed + first * plan_.depth());
    };
    pack(queries, space_.queries, space_.queries_transposed);
    pack(dout, space_.dout, space_.dout_transposed);
    const float* lse = op_.lse + (b_ * plan_.heads + head) * plan_.length;
    for (std::int64_t row = 0; row < load_queries; ++row) {
      __m512 sum = _mm512_setzero_ps();
      for (std::int64_t d = 0; d < plan_.head_size; d += depth_step) {
        sum = _mm512_dpbf16_ps(sum, __builtin_bit_cast(__m512bh, out.load(row, d)),
                               __builtin_bit_cast(__m512bh, dout.load(row, d)));
      }
      space_.delta[first + row] = reduce_add(f32x16{{sum}});
      space_.minus_lse[first + row] =
          first + row < plan_.length ? lse[first + row] * -log2_e : -std::numeric_limits<float>::infinity();
    }
  }

  void load_keys(const KeyTile& tile) {
    const auto rows_of = [&](std::int64_t offset) {
      return rows_at(op_.qkv, offset, plan_.qkv_stride(), tile.first);
    };
    const Bf16Rows keys = rows_of(plan_.key_offset(b_, kv_head_));
    pack_a(keys, tile.rows, plan_.depth(), space_.keys);
    pack_a_transposed(keys, tile.rows, plan_.padded(), space_.keys_transposed);
    pack_a(rows_of(plan_.value_offset(b_, kv_head_)), tile.rows, plan_.depth(), space_.values);
  }

  void write_rows(const float* rows, std::int64_t first, float scale, std::int64_t offset) {
    for (std::int64_t row = 0; row < smaller(tile_keys, plan_.length - first); ++row) {
      store_rounded(rows + row * plan_.padded(), plan_.head_size, scale, gradient(offset, first + row));
    }
  }

  const AttentionBackward& op_;
  const Plan plan_;
  Workspace space_;
  const std::int64_t b_;
  const std::int64_t kv_head_;
  const std::int64_t slice_;
  std::byte* const shared_;
};

// dQ of dq_queries queries of one head from the slices' parts, added in their order.
void combine_slices(const AttentionBackward& op, const Plan& plan, std::int64_t b_head, std::int64_t first,
                    float* parts) {
  const std::int64_t step = plan.batch * plan.heads * plan.dq_floats();
  float* sum = parts + b_head * plan.dq_floats() + first * plan.padded();
  for (std::int64_t slice = 1; slice < plan.slices(); ++slice) {
    const float* part = sum + slice * step;
    for (std::int64_t i = 0; i < dq_queries * plan.padded(); i += vector_lanes) {
      store(sum + i, load(sum + i) + load(part + i));
    }
  }
  const std::int64_t offset = plan.query_offset(b_head / plan.heads, b_head % plan.heads);
  write_dq(plan, sum, smaller(dq_queries, plan.length - first),
           static_cast<BFloat16*>(op.dqkv) + offset + first * plan.qkv_stride());
}

}  // namespace

void prepare_attention_backward(const Context& context, const void* arguments) {
  const Plan plan(*static_cast<const AttentionBackward*>(arguments));
  context.request_scratch(Workspace(plan, nullptr).bytes);
  if (plan.slices() > 1) context.request_shared_scratch(plan.shared_bytes());
}

void run_attention_backward(const Context& context, const void* arguments) {
  const AttentionBackward& op = *static_cast<const AttentionBackward*>(arguments);
  const Plan plan(op);
  std::byte* const shared = context.shared_scratch();
  const std::int64_t kv_heads = plan.batch * plan.kv_heads;
  context.parallel_for(kv_heads * plan.slices(), [&](std::int64_t index, int thread) {
    const std::int64_t kv_head = index % kv_heads;
    [[maybe_unused]] const MatrixUnit unit;
    Task(op, kv_head / plan.kv_heads, kv_head % plan.kv_heads, index / kv_heads, context.scratch(thread),
         shared)
        .run();
  });
  if (plan.slices() == 1) return;
  const std::int64_t blocks = ceil_divide(plan.length, dq_queries);
  context.parallel_for(plan.batch * plan.heads * blocks, [&](std::int64_t index, int) {
    combine_slices(op, plan, index / blocks, index % blocks * dq_queries, reinterpret_cast<float*>(shared));
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
