// Attention forward in bf16 with matrix instructions. A task packs the keys and values of a (batch, key/value
// head) once and serves with them every n-th tile of queries of all query heads that share them.
//
// Scores of a tile are rows of queries, so that the probabilities, rounded in place, are the left operand of
// the product with the values. The online softmax keeps its reference as long as no score passes it by more
// than a factor of 2^8 (as FlashAttention 4 does): sums seldom have to be scaled.
#include "kernels/attention.h"

#include <limits>

#include "kernels/cpu/ops/attention_tiles.h"
#include "kernels/cpu/ops_bf16/bf16_pack.h"
#include "kernels/cpu/ops_bf16/bf16_product.h"
#include "kernels/cpu/ops_bf16/ops.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t tile_queries = 32;
constexpr std::int64_t block_keys = 512;
constexpr std::int64_t score_stride = block_keys + vector_lanes;  // rows in different sets of the cache
constexpr std::int64_t min_tasks = 16;
constexpr float slack = 8;  // binades by which a score may pass the reference of its row
constexpr float lowest_reference = -std::numeric_limits<float>::max();

struct Plan : AttentionShape {
  explicit Plan(const AttentionForward& op) : AttentionShape(shape_of(op)) {}

  std::int64_t tiles() const { return ceil_divide(length, tile_queries); }
  std::int64_t rows() const { return tiles() * tile_queries; }
  std::int64_t depth() const { return round_up(head_size, depth_step); }
  std::int64_t slices() const {  // tasks of one (batch, key/value head)
    return larger(1, smaller(tiles(), ceil_divide(min_tasks, larger(1, batch * kv_heads))));
  }
};

// Scratch of one thread.
struct Workspace {
  BFloat16* keys = nullptr;     // B: (depth, rows)
  BFloat16* values = nullptr;   // B: (rows, padded)
  BFloat16* queries = nullptr;  // A: (tile_queries, depth)
  float* scores = nullptr;      // (tile_queries, score_stride); probabilities in the first half of each row
  float* out = nullptr;         // (tile_queries, padded)
  float* sums = nullptr;        // (tile_queries, 16)
  float* references = nullptr;  // (tile_queries) in units of log 2
  std::size_t bytes = 0;

  Workspace(const Plan& plan, std::byte* block) {
    Pieces pieces(block);
    keys = pieces.take_bf16(plan.rows() * plan.depth());
    values = pieces.take_bf16(plan.rows() * plan.padded());
    queries = pieces.take_bf16(tile_queries * plan.depth());
    scores = pieces.take(tile_queries * score_stride);
    out = pieces.take(tile_queries * plan.padded());
    sums = pieces.take(tile_queries * vector_lanes);
    references = pieces.take(tile_queries);
    bytes = pieces.bytes();
  }
};

// The keys [begin, end) that a query sees, counted from the first of a block of `count`; may be none. Those between
// sinks and window it does not see.
struct VisibleSpan {
  std::int64_t begin = 0, end = 0, count = 0;
  KeyRange hole = {};  // inside of begin and end; or none
};

// Returns what of the block of keys [key, key + keys) the query sees.
VisibleSpan span_of(const VisibleKeys& visible, std::int64_t query, std::int64_t key, std::int64_t keys) {
  const auto in_block = [&](std::int64_t number) { return smaller(keys, larger(0, number - key)); };
  VisibleSpan span{.begin = in_block(visible.first_of(query)), .end = in_block(query + 1), .count = keys};
  if (visible.sinks == 0) return span;
  const KeyRange gap = visible.gap_of(query, query);
  const KeyRange hole{in_block(gap.begin), in_block(gap.end)};
  if (hole.begin == hole.end) return span;
  if (hole.begin <= span.begin) {
    span.begin = hole.end;
  } else if (hole.end >= span.end) {
    span.end = hole.begin;
  } else {
    span.hole = hole;
  }
  return span;
}

// Scores that the query does not see become -inf, in the steps of the depth that it sees in part.
HF_INLINE void hide_outside(float* scores, const VisibleSpan& span) {
  const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i begin = _mm512_set1_epi32(static_cast<int>(span.begin));
  const __m512i end = _mm512_set1_epi32(static_cast<int>(span.end));
  const auto hide = [&](std::int64_t first) __attribute__((always_inline)) {
    const __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(first)));
    const __mmask16 outside = _mm512_cmplt_epi32_mask(key, begin) | _mm512_cmpge_epi32_mask(key, end);
    _mm512_mask_storeu_ps(scores + first, outside, hidden);
  };
  const __m512i hole_begin = _mm512_set1_epi32(static_cast<int>(span.hole.begin));
  const __m512i hole_end = _mm512_set1_epi32(static_cast<int>(span.hole.end));
  for (std::int64_t i = span.hole.begin / vector_lanes * vector_lanes; i < span.hole.end; i += vector_lanes) {
    const __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(i)));
    const __mmask16 inside =
        _mm512_cmpge_epi32_mask(key, hole_begin) & _mm512_cmplt_epi32_mask(key, hole_end);
    _mm512_mask_storeu_ps(scores + i, inside, hidden);
  }
  const std::int64_t last = span.end / depth_step * depth_step;
  for (std::int64_t i = span.begin / depth_step * depth_step; i < span.begin; i += vector_lanes) hide(i);
  for (std::int64_t i = last; i < round_up(span.end, depth_step); i += vector_lanes) hide(i);
}

// Raises the reference of a row where its scores of a block call for it. Returns by how much earlier sums
// shrink.
HF_INLINE float raise_reference(const float* scores, const VisibleSpan& span, float scale, float* reference) {
  const std::int64_t begin = span.begin / depth_step * depth_step, end = round_up(span.end, depth_step);
  f32x16 largest[2] = {load(scores + begin), load(scores + begin + vector_lanes)};
  for (std::int64_t i = begin + depth_step; i < end; i += depth_step) {
    largest[0] = max(load(scores + i), largest[0]);
    largest[1] = max(load(scores + i + vector_lanes), largest[1]);
  }
  const float now = reduce_max(max(largest[0], largest[1])) * scale;
  const float before = *reference;
  if (!(now > before + slack)) return 1;
  *reference = now;
  return before > lowest_reference ? fast_exp2(broadcast(before - now)).part[0][0] : 0;
}

// Scores of a row become probabilities, 2^(scale * score - reference), and add to its 16 partial sums.
HF_INLINE void soften(float* scores, const VisibleSpan& span, float scale, float reference, float* sum) {
  const std::int64_t begin = span.begin / depth_step * depth_step, end = round_up(span.end, depth_step);
  const f32x16 minus_reference = broadcast(-reference);
  BFloat16* probabilities = reinterpret_cast<BFloat16*>(scores);
  const auto clear = [&](std::int64_t first, std::int64_t last) __attribute__((always_inline)) {
    for (std::int64_t i = first; i < last; i += depth_step) {
      _mm512_storeu_si512(probabilities + i, _mm512_setzero_si512());
    }
  };
  clear(0, begin);
  f32x16 total = load(sum);
  for (std::int64_t i = begin; i < end; i += depth_step) {  // writes only what it has read
    const f32x16 low = fast_exp2(fma(load(scores + i), scale, minus_reference));
    const f32x16 high = fast_exp2(fma(load(scores + i + vector_lanes), scale, minus_reference));
    _mm512_storeu_si512(probabilities + i, to_bf16(low, high));
    total = total + (low + high);
  }
  clear(end, span.count);
  store(sum, total);
}

HF_INLINE void scale_row(float* row, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; i += vector_lanes) store(row + i, load(row + i) * factor);
}

class Task {
 public:
  Task(const AttentionForward& op, std::int64_t b, std::int64_t kv_head, std::int64_t slice,
       std::byte* scratch)
      : op_(op),
        plan_(op),
        space_(plan_, scratch),
        visible_(visible_keys(op, b)),
        b_(b),
        kv_head_(kv_head),
        slice_(slice) {}

  void run() {
    pack_keys();
    // The last tiles see most keys.
    for (std::int64_t tile = plan_.tiles() - 1 - slice_; tile >= 0; tile -= plan_.slices()) {
      for (std::int64_t i = 0; i < plan_.group(); ++i) {
        attend(kv_head_ * plan_.group() + i, tile * tile_queries);
      }
    }
  }

 private:
  // Keys of this task's last tile and before; those of later ones it does not need.
  std::int64_t rows() const { return (plan_.tiles() - slice_) * tile_queries; }
  Bf16Rows rows_at(std::int64_t offset, std::int64_t first, std::int64_t count) const {
    const std::int64_t stride = plan_.qkv_stride();
    return {static_cast<const BFloat16*>(op_.qkv) + offset + first * stride, stride,
            smaller(count, plan_.length - first), plan_.head_size};
  }

  void pack_keys() {
    pack_b_transposed(rows_at(plan_.key_offset(b_, kv_head_), 0, rows()), rows(), plan_.depth(), space_.keys);
    pack_b(rows_at(plan_.value_offset(b_, kv_head_), 0, rows()), rows(), plan_.padded(), space_.values,
           rows() * panel_columns);
  }

  void attend(std::int64_t head, std::int64_t first_query) {
    pack_a(rows_at(plan_.query_offset(b_, head), first_query, tile_queries), tile_queries, plan_.depth(),
           space_.queries);
    for (std::int64_t i = 0; i < tile_queries; ++i) {
      store(space_.sums + i * vector_lanes, zero());
      space_.references[i] = lowest_reference;
    }
    const std::int64_t count = smaller(tile_queries, plan_.length - first_query);
    const std::int64_t begin = visible_.first_of(first_query) / depth_step * depth_step;
    const std::int64_t end = first_query + tile_queries;
    const KeyRange all = visible_.gap_of(first_query, end - 1);
    const KeyRange gap{round_up(all.begin, depth_step), all.end / depth_step * depth_step};
    std::int64_t keys = 0;
    for (std::int64_t key = begin; key < end; key += keys) {
      if (gap.begin <= key && key < gap.end) key = gap.end;
      keys = smaller(block_keys, (key < gap.begin && gap.begin < gap.end ? gap.begin : end) - key);
      score(key, keys, count);
      soften_block(first_query, key, keys, count, key == begin);
      if (key == begin) {
        gather<Sum::start>(key, keys, count);
      } else {
        gather<Sum::add>(key, keys, count);
      }
    }
    finish(head, first_query, count);
  }

  void score(std::int64_t key, std::int64_t keys, std::int64_t count) {
    multiply<Sum::start>({.a = space_.queries,
                          .a_stride = plan_.depth(),
                          .b = space_.keys + key * plan_.depth(),
                          .b_stride = plan_.depth() * panel_columns,
                          .c = space_.scores,
                          .c_stride = score_stride,
                          .rows = round_up(count, panel_columns),
                          .columns = keys,
                          .depth = plan_.depth()});
  }

  void soften_block(std::int64_t first_query, std::int64_t key, std::int64_t keys, std::int64_t count,
                    bool is_first) {
    const float scale = log2_e / __builtin_sqrtf(static_cast<float>(plan_.head_size));
    for (std::int64_t i = 0; i < count; ++i) {
      const VisibleSpan span = span_of(visible_, first_query + i, key, keys);
      float* scores = space_.scores + i * score_stride;
      if (span.begin >= span.end) continue;
      hide_outside(scores, span);
      const float shrink = raise_reference(scores, span, scale, space_.references + i);
      if (shrink < 1 && !is_first) {
        scale_row(space_.out + i * plan_.padded(), plan_.padded(), shrink);
        scale_row(space_.sums + i * vector_lanes, vector_lanes, shrink);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      soften(space_.scores + i * score_stride, span_of(visible_, first_query + i, key, keys), scale,
             space_.references[i], space_.sums + i * vector_lanes);
    }
  }

  template <Sum sum>
  void gather(std::int64_t key, std::int64_t keys, std::int64_t count) {
    multiply<sum>({.a = reinterpret_cast<const BFloat16*>(space_.scores),
                   .a_stride = 2 * score_stride,
                   .b = space_.values + key * panel_columns,
                   .b_stride = rows() * panel_columns,
                   .c = space_.out,
                   .c_stride = plan_.padded(),
                   .rows = round_up(count, panel_columns),
                   .columns = plan_.padded(),
                   .depth = keys});
  }

  void finish(std::int64_t head, std::int64_t first_query, std::int64_t count) {
    BFloat16* out = static_cast<BFloat16*>(op_.out) + plan_.out_offset(b_, head);
    float totals[tile_queries] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      totals[i] = reduce_add(load(space_.sums + i * vector_lanes));
      store_rounded(space_.out + i * plan_.padded(), plan_.head_size, 1.0F / totals[i],
                    out + (first_query + i) * plan_.out_stride());
    }
    float* lse = op_.lse + (b_ * plan_.heads + head) * plan_.length + first_query;
    for_lanes(count, [&](std::int64_t i, auto lanes) {
      store(lse + i, fma(load(space_.references + i), ln_2, log(load(totals + i))), lanes);
    });
  }

  const AttentionForward& op_;
  const Plan plan_;
  const Workspace space_;
  const VisibleKeys visible_;
  const std::int64_t b_;
  const std::int64_t kv_head_;
  const std::int64_t slice_;
};

}  // namespace

void prepare_attention_forward(const Context& context, const void* arguments) {
  const Plan plan(*static_cast<const AttentionForward*>(arguments));
  context.request_scratch(Workspace(plan, nullptr).bytes);
}

void run_attention_forward(const Context& context, const void* arguments) {
  const AttentionForward& op = *static_cast<const AttentionForward*>(arguments);
  const Plan plan(op);
  const std::int64_t kv_heads = plan.batch * plan.kv_heads;
  context.parallel_for(kv_heads * plan.slices(), [&](std::int64_t index, int thread) {
    const std::int64_t kv_head = index % kv_heads;
    [[maybe_unused]] const MatrixUnit unit;
    Task(op, kv_head / plan.kv_heads, kv_head % plan.kv_heads, index / kv_heads, context.scratch(thread))
        .run();
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
