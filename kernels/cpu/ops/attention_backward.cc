// Attention backward in one pass over the tiles of a head (five products), with no atomics: a task owns all
// queries of its (batch, key/value head) and every n-th panel of keys, and adds in a fixed order.
#include "kernels/attention.h"
#include "kernels/cpu/ops/attention_tiles.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

constexpr std::int64_t tile_queries = 96;
constexpr std::int64_t delta_rows = 16;  // rows of one index of the delta pass
constexpr std::int64_t min_tasks = 8;

struct Plan : AttentionShape {
  explicit Plan(const AttentionBackward& op) : AttentionShape(shape_of(op)) {}

  std::int64_t rows() const { return round_up(length, vector_lanes); }
  std::int64_t panels() const { return ceil_divide(length, panel_width); }
  // Returns the number of tasks that share the keys of one head when there are few heads; each of them then
  // has its own part of dQ.
  std::int64_t slices() const {
    const std::int64_t heads_with_keys = larger(1, batch * kv_heads);
    return larger(1, smaller(panels(), ceil_divide(min_tasks, heads_with_keys)));
  }
  std::int64_t dq_floats() const { return rows() * padded(); }  // of one head and slice
  std::size_t shared_bytes() const {
    if (slices() == 1) return 0;
    return static_cast<std::size_t>(slices() * batch * heads * dq_floats()) * sizeof(float);
  }
};

// Scratch of one thread.
struct Workspace {
  float* queries = nullptr;    // (rows, padded) of one head, times log2(e) / sqrt(head_size)
  float* dout = nullptr;       // (rows, padded) of one head
  float* dq = nullptr;         // (rows, padded) of one head; in shared scratch if there are several slices
  float* minus_lse = nullptr;  // (rows) in units of log 2
  float* delta = nullptr;      // (rows)
  float* keys = nullptr;       // (panel_width, padded)
  float* rows = nullptr;       // (panel_width, padded)
  float* keys_transposed = nullptr;    // (padded, panel_width)
  float* values_transposed = nullptr;  // (padded, panel_width)
  float* dk = nullptr;                 // (padded, panel_width) of each panel that outlives a query head
  float* dv = nullptr;
  float* p = nullptr;   // (tile_queries, panel_width)
  float* ds = nullptr;  // (tile_queries, panel_width)
  std::size_t bytes = 0;

  Workspace(const Plan& plan, std::byte* block) {
    Pieces pieces(block);
    const std::int64_t panel_floats = plan.padded() * panel_width;
    const std::int64_t kept_panels = plan.group() == 1 ? 1 : ceil_divide(plan.panels(), plan.slices());
    queries = pieces.take(plan.dq_floats());
    dout = pieces.take(plan.dq_floats());
    if (plan.slices() == 1) dq = pieces.take(plan.dq_floats());
    minus_lse = pieces.take(plan.rows());
    delta = pieces.take(plan.rows());
    keys = pieces.take(panel_floats);
    rows = pieces.take(panel_floats);
    keys_transposed = pieces.take(panel_floats);
    values_transposed = pieces.take(panel_floats);
    dk = pieces.take(kept_panels * panel_floats);
    dv = pieces.take(kept_panels * panel_floats);
    p = pieces.take(tile_queries * panel_width);
    ds = pieces.take(tile_queries * panel_width);
    bytes = pieces.bytes();
  }
};

HF_INLINE void fill_zero(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += vector_lanes) store(values + i, zero());
}

struct KeyPanel {
  std::int64_t first = 0;
  VisibleKeys visible;
};

// Consecutive queries that see the first `vectors` vectors of a panel of keys; on the diagonal they see the
// last of them only up to their own key.
struct QuerySpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t vectors = 0;
  bool diagonal = false;

  // Some query does not see some of the keys, because these belong to another document or are outside of the window.
  bool is_mixed(const KeyPanel& keys) const { return keys.visible.window_of(first + count - 1) > keys.first; }
};

void hide_keys(const KeyPanel& keys, const QuerySpan& span, float* scores) {
  const f32x16 hidden = broadcast(-std::numeric_limits<float>::infinity());
  for (std::int64_t row = 0; row < span.count; ++row, scores += panel_width) {
    const std::int64_t query = span.first + row;
    const std::int64_t first = keys.visible.window_of(query) - keys.first;
    const std::int64_t document = keys.visible.document_of(query) - keys.first;
    const std::int64_t sinks_end = document + keys.visible.sinks;
    for (std::int64_t i = 0; i < smaller(first, span.vectors * vector_lanes); i += vector_lanes) {
      const auto less = [&](std::int64_t end, f32x16 then, f32x16 otherwise) __attribute__((always_inline)) {
        return if_less(lane_index(), broadcast(static_cast<float>(end - i)), then, otherwise);
      };
      const f32x16 seen = load(scores + i);
      f32x16 score = less(first, hidden, seen);
      if (keys.visible.sinks > 0)
        score = less(document, hidden, less(smaller(first, sinks_end), seen, score));
      store(scores + i, score);
    }
  }
}

// p = 2^(scores - lse), ds = p * (dp - delta), where `space.p` holds scores and `space.ds` holds dp.
void differentiate_softmax(const Workspace& space, const QuerySpan& span) {
  for (std::int64_t row = 0; row < span.count; ++row) {
    float* p = space.p + row * panel_width;
    float* ds = space.ds + row * panel_width;
    const f32x16 minus_lse = broadcast(space.minus_lse[span.first + row]);
    const f32x16 delta = broadcast(space.delta[span.first + row]);
    for (std::int64_t vector = 0; vector < span.vectors; ++vector) {
      const std::int64_t i = vector * vector_lanes;
      f32x16 p_i = exp2(load(p + i) + minus_lse);
      if (span.diagonal && vector == span.vectors - 1) {
        p_i = if_less(broadcast(static_cast<float>(row)), lane_index(), zero(), p_i);
      }
      store(p + i, p_i);
      store(ds + i, p_i * (load(ds + i) - delta));
    }
  }
}

void differentiate_span(const Workspace& space, const KeyPanel& keys, const QuerySpan& span,
                        std::int64_t head_size, float* dk, float* dv) {
  const std::int64_t padded = round_up(head_size, vector_lanes);
  const float* queries = space.queries + span.first * padded;
  const float* dout = space.dout + span.first * padded;
  const auto by_keys = [&](const float* a, const float* b, float* c) {
    multiply<Start::zero, false>({.a = a,
                                  .a_stride = padded,
                                  .b = b,
                                  .b_stride = panel_width,
                                  .c = c,
                                  .c_stride = panel_width,
                                  .rows = span.count,
                                  .vectors = span.vectors,
                                  .depth = head_size});
  };
  const auto over_queries = [&](const float* a, const float* b, float* c) {
    multiply<Start::add, true>({.a = a,
                                .a_stride = padded,
                                .b = b,
                                .b_stride = panel_width,
                                .c = c,
                                .c_stride = panel_width,
                                .rows = round_up(head_size, 8),
                                .vectors = span.vectors,
                                .depth = span.count});
  };
  by_keys(queries, space.keys_transposed, space.p);
  by_keys(dout, space.values_transposed, space.ds);
  if (span.is_mixed(keys)) hide_keys(keys, span, space.p);
  differentiate_softmax(space, span);
  over_queries(dout, space.p, dv);
  over_queries(queries, space.ds, dk);
  multiply<Start::add, false>({.a = space.ds,
                               .a_stride = panel_width,
                               .b = space.keys,
                               .b_stride = padded,
                               .c = space.dq + span.first * padded,
                               .c_stride = padded,
                               .rows = span.count,
                               .vectors = padded / vector_lanes,
                               .depth = span.vectors * vector_lanes});
}

// The queries of the packed head that see a panel of keys against it.
void differentiate_panel(const Workspace& space, const Plan& plan, const KeyPanel& keys, float* dk,
                         float* dv) {
  const std::int64_t count = smaller(panel_width, plan.length - keys.first);
  for (std::int64_t vector = 0; vector * vector_lanes < count; ++vector) {
    const QuerySpan span{.first = keys.first + vector * vector_lanes,
                         .count = vector_lanes,
                         .vectors = vector + 1,
                         .diagonal = true};
    differentiate_span(space, keys, span, plan.head_size, dk, dv);
  }
  const std::int64_t last_key = keys.first + count - 1;
  const std::int64_t end = round_up(keys.visible.end_of_queries(keys.first, last_key), vector_lanes);
  for (std::int64_t first = keys.first + panel_width; first < end; first += tile_queries) {
    const QuerySpan span{
        .first = first, .count = smaller(tile_queries, end - first), .vectors = panel_vectors};
    if (keys.visible.are_in_gap(first, first + span.count - 1, keys.first, last_key)) continue;
    differentiate_span(space, keys, span, plan.head_size, dk, dv);
  }
}

template <typename T>
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
  void differentiate_head(std::int64_t head) {
    load_head(head);
    const bool is_first = head == kv_head_ * plan_.group();
    const bool is_last = head == (kv_head_ + 1) * plan_.group() - 1;
    const std::int64_t panel_floats = plan_.padded() * panel_width;
    for (std::int64_t panel = slice_; panel < plan_.panels(); panel += plan_.slices()) {
      const std::int64_t kept = plan_.group() == 1 ? 0 : panel / plan_.slices();
      float* dk = space_.dk + kept * panel_floats;
      float* dv = space_.dv + kept * panel_floats;
      if (is_first) {
        fill_zero(dk, panel_floats);
        fill_zero(dv, panel_floats);
      }
      load_keys(panel * panel_width);
      differentiate_panel(space_, plan_, {panel * panel_width, visible_keys(op_, b_)}, dk, dv);
      if (is_last) {
        // Packed queries carry log2(e) / sqrt(head_size).
        write_panel(dk, panel * panel_width, ln_2, plan_.key_offset(b_, kv_head_));
        write_panel(dv, panel * panel_width, 1.0F, plan_.value_offset(b_, kv_head_));
      }
    }
    if (plan_.slices() == 1) {
      unpack_rows(space_.dq, plan_.length, plan_.head_size, 1.0F / root(),
                  static_cast<T*>(op_.dqkv) + plan_.query_offset(b_, head), plan_.qkv_stride());
    }
  }

  float root() const { return __builtin_sqrtf(static_cast<float>(plan_.head_size)); }

  void load_head(std::int64_t head) {
    pack_rows(static_cast<const T*>(op_.qkv) + plan_.query_offset(b_, head), plan_.qkv_stride(), plan_.length,
              plan_.rows(), plan_.head_size, log2_e / root(), space_.queries);
    pack_rows(static_cast<const T*>(op_.dout) + plan_.out_offset(b_, head), plan_.out_stride(), plan_.length,
              plan_.rows(), plan_.head_size, 1.0F, space_.dout);
    const std::int64_t first = (b_ * plan_.heads + head) * plan_.length;
    pack_rows(op_.lse + first, 0, 1, 1, plan_.length, -log2_e, space_.minus_lse);
    pack_rows(op_.delta + first, 0, 1, 1, plan_.length, 1.0F, space_.delta);
    if (plan_.slices() > 1) {
      const std::int64_t part = (slice_ * plan_.batch + b_) * plan_.heads + head;
      space_.dq = reinterpret_cast<float*>(shared_) + part * plan_.dq_floats();
    }
    fill_zero(space_.dq, plan_.dq_floats());
  }

  void load_keys(std::int64_t first_key) {
    const T* qkv = static_cast<const T*>(op_.qkv) + first_key * plan_.qkv_stride();
    const std::int64_t count = smaller(panel_width, plan_.length - first_key);
    const std::int64_t padded = plan_.padded();
    pack_rows(qkv + plan_.value_offset(b_, kv_head_), plan_.qkv_stride(), count, panel_width, plan_.head_size,
              1.0F, space_.rows);
    transpose(space_.rows, padded, panel_width, padded, space_.values_transposed, panel_width);
    pack_rows(qkv + plan_.key_offset(b_, kv_head_), plan_.qkv_stride(), count, panel_width, plan_.head_size,
              1.0F, space_.keys);
    transpose(space_.keys, padded, panel_width, padded, space_.keys_transposed, panel_width);
  }

  void write_panel(const float* gradient, std::int64_t first_key, float scale, std::int64_t offset) {
    const std::int64_t padded = plan_.padded();
    transpose(gradient, panel_width, padded, panel_width, space_.rows, padded);
    unpack_rows(space_.rows, smaller(panel_width, plan_.length - first_key), plan_.head_size, scale,
                static_cast<T*>(op_.dqkv) + offset + first_key * plan_.qkv_stride(), plan_.qkv_stride());
  }

  const AttentionBackward& op_;
  const Plan plan_;
  Workspace space_;
  const std::int64_t b_;
  const std::int64_t kv_head_;
  const std::int64_t slice_;
  std::byte* const shared_;
};

template <typename T>
void compute_delta(const Context& context, const AttentionBackward& op) {
  const AttentionShape shape = shape_of(op);
  for_chunks(context, shape.batch * shape.length, delta_rows, [&](std::int64_t first, std::int64_t size) {
    for (std::int64_t row = first; row < first + size; ++row) {
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const std::int64_t offset = row * shape.out_stride() + head * shape.head_size;
        const T* out = static_cast<const T*>(op.out) + offset;
        const T* dout = static_cast<const T*>(op.dout) + offset;
        f32x16 sum = zero();
        for_lanes(shape.head_size, [&](std::int64_t i, auto lanes) {
          sum = fma(load(out + i, lanes), load(dout + i, lanes), sum);
        });
        const std::int64_t b = row / shape.length;
        op.delta[(b * shape.heads + head) * shape.length + row % shape.length] = reduce_add(sum);
      }
    }
  });
}

// dQ of 48 rows of one head from the slices' parts, added in their order.
template <typename T>
void combine_slices(const AttentionBackward& op, const Plan& plan, std::int64_t b_head,
                    std::int64_t first_row, float* parts) {
  const std::int64_t padded = plan.padded();
  const std::int64_t step = plan.batch * plan.heads * plan.dq_floats();
  const std::int64_t count = smaller(panel_width, plan.length - first_row);
  float* sum = parts + b_head * plan.dq_floats() + first_row * padded;
  for (std::int64_t slice = 1; slice < plan.slices(); ++slice) {
    const float* part = sum + slice * step;
    for (std::int64_t i = 0; i < count * padded; i += vector_lanes)
      store(sum + i, load(sum + i) + load(part + i));
  }
  const std::int64_t offset = plan.query_offset(b_head / plan.heads, b_head % plan.heads);
  unpack_rows(sum, count, plan.head_size, 1.0F / __builtin_sqrtf(static_cast<float>(plan.head_size)),
              static_cast<T*>(op.dqkv) + offset + first_row * plan.qkv_stride(), plan.qkv_stride());
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
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    compute_delta<T>(context, op);
    const std::int64_t kv_heads = plan.batch * plan.kv_heads;
    context.parallel_for(kv_heads * plan.slices(), [&](std::int64_t index, int thread) {
      const std::int64_t kv_head = index % kv_heads;
      Task<T>(op, kv_head / plan.kv_heads, kv_head % plan.kv_heads, index / kv_heads, context.scratch(thread),
              shared)
          .run();
    });
    if (plan.slices() == 1) return;
    context.parallel_for(plan.batch * plan.heads * plan.panels(), [&](std::int64_t index, int) {
      combine_slices<T>(op, plan, index / plan.panels(), index % plan.panels() * panel_width,
                        reinterpret_cast<float*>(shared));
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
