#include "kernels/attention.h"

#include "kernels/cpu/ops/attention_tiles.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t tile_panels = 4;  // panels of queries that share packed keys and values
constexpr std::int64_t tile_queries = tile_panels * panel_width;
constexpr std::int64_t tile_keys = 2 * panel_width;

// State of one panel of queries; scores are in units of log 2.
struct Panel {
  std::int64_t first_query = 0;
  std::int64_t first_row = 0;  // queries before it are in a cache: nobody asks for them
  std::int64_t end_row = 0;
  std::int64_t first_vector = 0;  // of queries; the one with first_row
  std::int64_t vectors = 0;       // fewer than panel_vectors at the end of the sequence
  std::int64_t begin = 0;         // no query sees the keys before it; a multiple of vector_lanes
  std::int64_t documents_end =
      0;  // some query's document does not have all keys from begin to here; a multiple too
  std::int64_t mixed_end = 0;  // some query sees not all keys from begin to here; a multiple too
  KeyRange gap;                // no query sees these, between sinks and window; multiples too
  float* first_key = nullptr;  // (panel_width) of each query; set if begin < mixed_end
  float* sinks_end = nullptr;  // (panel_width) set with sinks: what is from here on, ...
  float* window = nullptr;     // ... and before this, the query does not see
  float* queries = nullptr;    // (padded, panel_width), scaled
  float* out = nullptr;        // (padded, panel_width), relative to `largest`
  float* largest = nullptr;    // (panel_width) largest score so far
  float* sum = nullptr;        // (panel_width) sum of 2^(score - largest)
};

// Scratch of one thread.
struct Workspace {
  Panel panels[tile_panels];
  float* keys = nullptr;    // (tile_keys, padded)
  float* values = nullptr;  // (tile_keys, padded)
  float* scores = nullptr;  // (tile_keys, panel_width)
  float* alpha = nullptr;   // (panel_width)
  float* rows = nullptr;    // (panel_width, padded)
  std::size_t bytes = 0;

  Workspace(const AttentionShape& shape, std::byte* block) {
    Pieces pieces(block);
    const std::int64_t padded = shape.padded();
    for (Panel& panel : panels) {
      panel.queries = pieces.take(padded * panel_width);
      panel.out = pieces.take(padded * panel_width);
      panel.largest = pieces.take(panel_width);
      panel.sum = pieces.take(panel_width);
      panel.first_key = pieces.take(panel_width);
      panel.sinks_end = pieces.take(panel_width);
      panel.window = pieces.take(panel_width);
    }
    keys = pieces.take(tile_keys * padded);
    values = pieces.take(tile_keys * padded);
    scores = pieces.take(tile_keys * panel_width);
    alpha = pieces.take(panel_width);
    rows = pieces.take(panel_width * padded);
    bytes = pieces.bytes();
  }
};

// Consecutive keys of the packed tile that the vectors of a panel from `first_vector` on see; on the diagonal
// the lanes of the first of them see only the keys up to their own query. In a mixed span some queries do not
// see some keys, because these belong to another document or are outside of the window.
struct KeySpan {
  std::int64_t first = 0;  // in the tile
  std::int64_t count = 0;
  std::int64_t first_vector = 0;
  bool diagonal = false;
  bool mixed = false;
  std::int64_t first_key = 0;  // `first` in the sequence; of a mixed span
};

// Lower bound of visible scores; only hidden scores are below it. While a query has seen nothing else,
// 2^(score - largest) is 0 and not NaN.
constexpr float lowest_score = -std::numeric_limits<float>::max();

// One step of the online softmax for one vector of queries: scores (count, panel_width) become 2^(score -
// largest).
HF_INLINE void soften(float* scores, std::int64_t count, float* largest, float* sum, float* alpha) {
  const f32x16 before = load(largest);
  f32x16 chains[4] = {before, before, before, before};
  for (std::int64_t key = 0; key < count; key += 4) {  // count is a multiple of 8
    const float* score = scores + key * panel_width;
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      chains[i] = max(load(score + i * panel_width), chains[i]);
    });
  }
  const f32x16 now = max(max(chains[0], chains[1]), max(chains[2], chains[3]));
  const f32x16 shrink = exp2(before - now);
  f32x16 total = load(sum) * shrink;
  for (std::int64_t key = 0; key < count; ++key) {
    const f32x16 p = exp2(load(scores + key * panel_width) - now);
    store(scores + key * panel_width, p);
    total = total + p;
  }
  store(alpha, shrink);
  store(largest, now);
  store(sum, total);
}

void hide_keys(const KeySpan& span, const Panel& panel, bool has_sinks, float* scores) {
  const f32x16 hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (std::int64_t i = span.first_vector * vector_lanes; i < panel.vectors * vector_lanes;
       i += vector_lanes) {
    const f32x16 first = load(panel.first_key + i);
    for (std::int64_t key = 0; key < span.count; ++key) {
      float* score = scores + key * panel_width + i;
      store(score, if_less(broadcast(static_cast<float>(span.first_key + key)), first, hidden, load(score)));
    }
    if (!has_sinks) continue;
    const f32x16 sinks_end = load(panel.sinks_end + i), window = load(panel.window + i);
    for (std::int64_t key = 0; key < span.count; ++key) {
      float* score = scores + key * panel_width + i;
      const f32x16 number = broadcast(static_cast<float>(span.first_key + key)), seen = load(score);
      store(score, if_less(number, window, if_less(number, sinks_end, seen, hidden), seen));
    }
  }
}

void attend(const Workspace& space, const Panel& panel, const KeySpan& span, std::int64_t head_size,
            bool has_sinks) {
  const std::int64_t padded = round_up(head_size, vector_lanes);
  const std::int64_t column = span.first_vector * vector_lanes;
  const std::int64_t vectors = panel.vectors - span.first_vector;
  multiply<Start::zero, false>({.a = space.keys + span.first * padded,
                                .a_stride = padded,
                                .b = panel.queries + column,
                                .b_stride = panel_width,
                                .c = space.scores + column,
                                .c_stride = panel_width,
                                .rows = span.count,
                                .vectors = vectors,
                                .depth = head_size});
  if (span.diagonal) {
    const f32x16 hidden = broadcast(-std::numeric_limits<float>::infinity());
    for (std::int64_t key = 0; key < span.count; ++key) {
      float* score = space.scores + key * panel_width + column;
      store(score, if_less(lane_index(), broadcast(static_cast<float>(key)), hidden, load(score)));
    }
  }
  if (span.mixed) hide_keys(span, panel, has_sinks, space.scores);
  for (std::int64_t i = column; i < column + vectors * vector_lanes; i += vector_lanes) {
    soften(space.scores + i, span.count, panel.largest + i, panel.sum + i, space.alpha + i);
  }
  multiply<Start::scale, true>({.a = space.values + span.first * padded,
                                .a_stride = padded,
                                .b = space.scores + column,
                                .b_stride = panel_width,
                                .c = panel.out + column,
                                .c_stride = panel_width,
                                .rows = round_up(head_size, 8),
                                .vectors = vectors,
                                .depth = span.count,
                                .column_scale = space.alpha + column});
}

// All that a panel sees of the packed keys [first_key, end_key).
void attend_tile(const Workspace& space, const Panel& panel, std::int64_t first_key, std::int64_t end_key,
                 std::int64_t head_size, bool has_sinks) {
  const std::int64_t end = smaller(end_key, panel.first_query);  // from there on the diagonal
  std::int64_t begin = larger(first_key, panel.begin);
  const auto attend_to = [&](std::int64_t span_end, bool mixed) {
    if (begin >= span_end) return;
    attend(space, panel,
           {.first = begin - first_key,
            .count = span_end - begin,
            .first_vector = panel.first_vector,
            .mixed = mixed,
            .first_key = begin},
           head_size, has_sinks);
    begin = span_end;
  };
  attend_to(smaller(end, panel.gap.begin), true);
  if (begin >= panel.gap.begin) begin = larger(begin, panel.gap.end);
  attend_to(smaller(end, panel.documents_end), true);
  attend_to(end, begin < panel.mixed_end);
  for (std::int64_t vector = 0; vector < panel.vectors; ++vector) {
    const std::int64_t key = panel.first_query + vector * vector_lanes;
    if (key < first_key || key >= end_key) continue;
    attend(space, panel,
           {.first = key - first_key,
            .count = vector_lanes,
            .first_vector = larger(vector, panel.first_vector),
            .diagonal = vector >= panel.first_vector,
            .mixed = key < panel.mixed_end,
            .first_key = key},
           head_size, has_sinks);
  }
}

// A window does not cut what a row sees of a tile, and where it is cut follows from the row's position and document: so
// its bits do not depend on a window that hides nothing of it, nor on what comes after it.
void begin_visible(const VisibleKeys& visible, Panel& panel) {
  const std::int64_t last_query = panel.first_query + panel_width - 1;
  panel.begin = visible.first_of(panel.first_query) / vector_lanes * vector_lanes;
  panel.documents_end = round_up(visible.document_of(last_query), vector_lanes);
  panel.mixed_end = round_up(visible.window_of(last_query), vector_lanes);
  const KeyRange gap = visible.gap_of(panel.first_query, last_query);
  panel.gap = {round_up(gap.begin, vector_lanes), gap.end / vector_lanes * vector_lanes};
  if (panel.gap.begin >= panel.gap.end) panel.gap = {};
  if (panel.begin >= panel.mixed_end) return;
  for (std::int64_t i = 0; i < panel_width; ++i) {
    const std::int64_t query = panel.first_query + i;
    panel.first_key[i] = static_cast<float>(visible.first_of(query));
    panel.sinks_end[i] = static_cast<float>(visible.document_of(query) + visible.sinks);
    panel.window[i] = static_cast<float>(visible.window_of(query));
  }
}

template <typename T>
void begin_panel(const AttentionForward& op, const T* queries, const VisibleKeys& visible,
                 std::int64_t first_query, const Workspace& space, Panel& panel) {
  const AttentionShape shape = shape_of(op);
  const std::int64_t padded = shape.padded();
  panel.first_query = first_query;
  panel.first_row = larger(first_query, op.first_position);
  panel.end_row = smaller(first_query + panel_width, op.first_position + shape.length);
  panel.first_vector = (panel.first_row - first_query) / vector_lanes;
  panel.vectors = ceil_divide(panel.end_row - first_query, vector_lanes);
  begin_visible(visible, panel);
  const float scale = log2_e / __builtin_sqrtf(static_cast<float>(shape.head_size));
  const std::int64_t skipped = panel.first_row - first_query;
  for (std::int64_t i = 0; i < skipped * padded; i += vector_lanes) store(space.rows + i, zero());
  pack_rows(queries + (panel.first_row - op.first_position) * shape.qkv_stride(), shape.qkv_stride(),
            panel.end_row - panel.first_row, panel_width - skipped, shape.head_size, scale,
            space.rows + skipped * padded);
  transpose(space.rows, padded, panel_width, padded, panel.queries, panel_width);
  for (std::int64_t i = 0; i < padded * panel_width; i += vector_lanes) store(panel.out + i, zero());
  for (std::int64_t i = 0; i < panel_width; i += vector_lanes) {
    store(panel.largest + i, broadcast(lowest_score));
    store(panel.sum + i, zero());
  }
}

template <typename T>
void finish_panel(const AttentionForward& op, const Workspace& space, const Panel& panel, T* out,
                  float* lse) {
  const AttentionShape shape = shape_of(op);
  const std::int64_t padded = shape.padded();
  for (std::int64_t i = panel.first_vector * vector_lanes; i < panel.vectors * vector_lanes;
       i += vector_lanes) {
    const f32x16 sum = load(panel.sum + i);
    store(panel.largest + i, fma(load(panel.largest + i), ln_2, log(sum)));
    const f32x16 inverse = broadcast(1.0F) / sum;
    for (std::int64_t d = 0; d < padded; ++d) {
      float* value = panel.out + d * panel_width + i;
      store(value, load(value) * inverse);
    }
  }
  const std::int64_t skipped = panel.first_row - panel.first_query, count = panel.end_row - panel.first_row;
  const std::int64_t row = panel.first_row - op.first_position;
  for (std::int64_t i = 0; i < count; ++i) lse[row + i] = panel.largest[skipped + i];
  transpose(panel.out, panel_width, padded, panel.vectors * vector_lanes, space.rows, padded);
  unpack_rows(space.rows + skipped * padded, count, shape.head_size, 1.0F, out + row * shape.out_stride(),
              shape.out_stride());
}

// Keys and values of one head: of the sequence, or of its cache.
template <typename T>
struct SeenTokens {
  const T* keys;
  const T* values;
  std::int64_t stride;
};
template <typename T>
SeenTokens<T> seen_tokens(const AttentionForward& op, std::int64_t b, std::int64_t kv_head) {
  const AttentionShape shape = shape_of(op);
  if (op.cache == nullptr) {
    const T* qkv = static_cast<const T*>(op.qkv);
    return {qkv + shape.key_offset(b, kv_head), qkv + shape.value_offset(b, kv_head), shape.qkv_stride()};
  }
  const std::int64_t stride = 2 * op.kv_heads * op.head_size;
  const T* keys = static_cast<const T*>(op.cache) + b * (op.first_position + op.sequence_length) * stride +
                  kv_head * op.head_size;
  return {keys, keys + op.kv_heads * op.head_size, stride};
}

// One tile of queries of one head; of those that are in a cache, whole panels are left out.
template <typename T>
void forward_tile(const AttentionForward& op, std::int64_t b, std::int64_t head, std::int64_t first_query,
                  std::byte* scratch) {
  const AttentionShape shape = shape_of(op);
  Workspace space(shape, scratch);
  const T* qkv = static_cast<const T*>(op.qkv);
  const std::int64_t end_query = smaller(first_query + tile_queries, op.first_position + shape.length);
  const std::int64_t first_panel = larger(0, op.first_position - first_query) / panel_width;
  const std::int64_t panels = ceil_divide(end_query - first_query, panel_width);
  const VisibleKeys visible = visible_keys(op, b);
  for (std::int64_t i = first_panel; i < panels; ++i) {
    begin_panel(op, qkv + shape.query_offset(b, head), visible, first_query + i * panel_width, space,
                space.panels[i]);
  }
  const auto [keys, values, stride] = seen_tokens<T>(op, b, head / shape.group());
  const std::int64_t begin = visible.first_of(first_query) / tile_keys * tile_keys;
  for (std::int64_t first_key = begin; first_key < end_query; first_key += tile_keys) {
    const std::int64_t count = smaller(tile_keys, end_query - first_key);
    if (visible.are_in_gap(first_query, end_query - 1, first_key, first_key + count - 1)) continue;
    const std::int64_t padded_count = round_up(count, vector_lanes);
    pack_rows(keys + first_key * stride, stride, count, padded_count, shape.head_size, 1.0F, space.keys);
    pack_rows(values + first_key * stride, stride, count, padded_count, shape.head_size, 1.0F, space.values);
    for (std::int64_t i = first_panel; i < panels; ++i) {
      attend_tile(space, space.panels[i], first_key, first_key + padded_count, shape.head_size,
                  visible.sinks > 0);
    }
  }
  T* out = static_cast<T*>(op.out) + shape.out_offset(b, head);
  float* lse = op.lse + (b * shape.heads + head) * shape.length;
  for (std::int64_t i = first_panel; i < panels; ++i) finish_panel(op, space, space.panels[i], out, lse);
}

}  // namespace

void prepare_attention_forward(const Context& context, const void* arguments) {
  const AttentionForward& op = *static_cast<const AttentionForward*>(arguments);
  context.request_scratch(Workspace(shape_of(op), nullptr).bytes);
}

void run_attention_forward(const Context& context, const void* arguments) {
  const AttentionForward& op = *static_cast<const AttentionForward*>(arguments);
  const std::int64_t first_tile = op.first_position / tile_queries;
  const std::int64_t end_tile = ceil_divide(op.first_position + op.sequence_length, tile_queries);
  const std::int64_t heads = op.batch * op.heads;
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    context.parallel_for(heads * (end_tile - first_tile), [&](std::int64_t index, int thread) {
      const std::int64_t tile =
          end_tile - 1 - index / heads;  // the last tiles see most keys: first, for balance
      const std::int64_t head = index % heads;
      forward_tile<T>(op, head / op.heads, head % op.heads, tile * tile_queries, context.scratch(thread));
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
