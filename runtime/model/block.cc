#include "runtime/model/block.h"

#include <array>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/rotary.h"

namespace holdfast::model {
namespace {

// Returns row `row` of what has rows of so many columns.
void* row_at(const BlockRun& run, void* whole, std::int64_t row, std::int64_t columns) {
  return static_cast<std::byte*>(whole) + static_cast<std::size_t>(row * columns) * bytes_of(run.slice.dtype);
}

// Slice `slice` of what is (slices here, rows, columns).
void* of_slice(const BlockRun& run, void* whole, int slice, std::int64_t columns) {
  return row_at(run, whole, slice * run.rows(), columns);
}

// Rotates rows whose sequences have `length` rows each and begin at `position`.
void rotate(const BlockRun& run, void* qkv, std::int64_t rows, std::int64_t length, std::int64_t position,
            bool inverse) {
  const ModelSpec& slice = run.slice;
  if (slice.positions > 0) return;
  const std::int64_t angles = position * slice.head_size / 2;
  run.device.launch(Rotary{.x = qkv,
                           .cosine = run.scratch.cosine + angles,
                           .sine = run.scratch.sine + angles,
                           .rows = rows,
                           .row_stride = slice.qkv_width(),
                           .heads = slice.heads + slice.kv_heads,
                           .head_size = slice.head_size,
                           .sequence_length = length,
                           .inverse = inverse,
                           .dtype = slice.dtype});
}

// Slices are rows below one another.
void activate(const BlockRun& run, const BlockActivations& a) {
  const std::int64_t rows = run.rows() * run.group.share().count;
  if (run.slice.activation == ActivationKind::swiglu) {
    run.device.launch(SwigluForward{.x = a.up,
                                    .y = a.active,
                                    .rows = rows,
                                    .feed_forward = run.slice.feed_forward,
                                    .dtype = run.slice.dtype});
  } else {
    run.device.launch(GeluForward{
        .x = a.up, .y = a.active, .count = rows * run.slice.feed_forward, .dtype = run.slice.dtype});
  }
}

// dout -> dup, before the activation; with SwiGLU by way of scratch.dinner
void down_and_activation_backward(const BlockRun& run, const Block& block, const BlockActivations& a,
                                  const void* dout_NC, void* dup) {
  if (run.slice.activation == ActivationKind::gelu)
    return block.down.input_gradient(run.device, dout_NC, dup, run.rows(), /*gelu_of=*/a.up);
  block.down.input_gradient(run.device, dout_NC, run.scratch.dinner, run.rows());
  run.device.launch(SwigluBackward{.x = a.up,
                                   .dy = run.scratch.dinner,
                                   .dx = dup,
                                   .rows = run.rows() * run.group.share().count,
                                   .feed_forward = run.slice.feed_forward,
                                   .dtype = run.slice.dtype});
}

// Returns the window of attention over `tokens` tokens; one that hides none of them is none, for the sake of kernels that
// compute no windows.
std::int64_t window_over(const BlockRun& run, std::int64_t tokens) {
  const std::int64_t window = run.slice.attention_window;
  return window < tokens ? window : 0;
}
std::int64_t sinks_over(const BlockRun& run, std::int64_t tokens) {
  return window_over(run, tokens) > 0 ? run.slice.attention_sinks : 0;
}

std::int64_t lse_of_slice(const BlockRun& run, int slice) {
  return slice * run.rows() * run.slice.heads;
}

// Heads of queries or of keys: where they are in a row of qkv.
struct HeadColumns {
  std::int64_t first = 0, count = 0;
};

enum class Direction { out_of_qkv, into_qkv };

// Copies the heads of all slices between qkv and memory of their own: (slices, rows x heads, head_size).
void move_heads(const BlockRun& run, HeadColumns columns, void* qkv_of_slices, void* heads_of_slices,
                Direction direction) {
  const std::int64_t stride = run.slice.qkv_width();
  for (int i = 0; i < run.group.share().count; ++i) {
    void* const qkv = static_cast<std::byte*>(of_slice(run, qkv_of_slices, i, stride)) +
                      static_cast<std::size_t>(columns.first) * bytes_of(run.slice.dtype);
    void* const heads = of_slice(run, heads_of_slices, i, columns.count);
    const bool out = direction == Direction::out_of_qkv;
    run.device.launch(CopyRows{.source = out ? qkv : heads,
                               .target = out ? heads : qkv,
                               .rows = run.rows(),
                               .columns = columns.count,
                               .source_stride = out ? stride : columns.count,
                               .target_stride = out ? columns.count : stride,
                               .dtype = run.slice.dtype});
  }
}

// A head norm, with what of a block it is about.
struct HeadNorm {
  const Norm& norm;
  HeadColumns columns;
  void* inputs;  // BlockActivations::queries or keys
  Norm::Statistics statistics;
  float* sums;  // of BlockGradients; null forward
};

std::array<HeadNorm, 2> head_norms(const BlockRun& run, const Block& block, const BlockActivations& a,
                                   const BlockGradients& g) {
  const ModelSpec& slice = run.slice;
  return {HeadNorm{.norm = block.query_norm,
                   .columns = {.first = 0, .count = slice.attention_width()},
                   .inputs = a.queries,
                   .statistics = a.query_norm,
                   .sums = g.query_norm_sums},
          HeadNorm{.norm = block.key_norm,
                   .columns = {.first = slice.attention_width(), .count = slice.kv_width()},
                   .inputs = a.keys,
                   .statistics = a.key_norm,
                   .sums = g.key_norm_sums}};
}

std::int64_t heads_of_rows(const BlockRun& run, const HeadNorm& heads) {
  return run.group.share().count * run.rows() * heads.columns.count / run.slice.head_size;
}

// Replaces queries and keys in qkv by their norms. The attention's output is not made yet: its memory holds them on the
// way.
void normalise_heads(const BlockRun& run, const Block& block, const BlockActivations& a) {
  if (!run.slice.has_head_norms) return;
  for (const HeadNorm& heads : head_norms(run, block, a, {})) {
    move_heads(run, heads.columns, a.qkv, heads.inputs, Direction::out_of_qkv);
    heads.norm.forward(run.device, heads.inputs, a.attention, heads.statistics, heads_of_rows(run, heads));
    move_heads(run, heads.columns, a.qkv, a.attention, Direction::into_qkv);
  }
}

// Replaces the gradients of the norms' outputs in dqkv by those of their inputs, by way of scratch.dinner, which
// attention has read. The backward of weights only adds what the one of inputs has left.
void normalise_heads_backward(const BlockRun& run, const Block& block, const BlockActivations& a,
                              const BlockGradients& g, BackwardPass pass) {
  if (!run.slice.has_head_norms) return;
  for (const HeadNorm& heads : head_norms(run, block, a, g)) {
    if (pass.of_inputs()) move_heads(run, heads.columns, g.dqkv, run.scratch.dheads, Direction::out_of_qkv);
    heads.norm.backward(run.device, run.group.share(), heads.inputs, heads.statistics,
                        {.dy_NC = run.scratch.dheads, .dx_NC = run.scratch.dinner, .sums = heads.sums},
                        heads_of_rows(run, heads), pass);
    if (pass.of_inputs()) move_heads(run, heads.columns, g.dqkv, run.scratch.dinner, Direction::into_qkv);
  }
}

// Puts the keys and values of rows into the cache, and lets the rows attend to all that their sequences have there.
void attend_to_cache(const BlockRun& run, const BlockActivations& a, int index) {
  const ModelSpec& slice = run.slice;
  const BatchShapeBT cache = run.scratch.cache;
  const std::int64_t key_values = 2 * slice.kv_width();
  std::int64_t row = 0;
  for (const ContinuedRows& part : run.sequences.continued) {
    HF_CHECK(part.sequence < cache.batch && part.position + part.rows <= cache.sequence_length);
    const std::int64_t sequence = index * cache.batch + part.sequence;
    void* const qkv = row_at(run, a.qkv, index * run.rows() + row, slice.qkv_width());
    void* const cached = row_at(run, a.cache, sequence * cache.sequence_length, key_values);
    rotate(run, qkv, part.rows, part.rows, part.position, /*inverse=*/false);
    run.device.launch(CopyRows{.source = row_at(run, qkv, 1, slice.attention_width()),
                               .target = row_at(run, cached, part.position, key_values),
                               .rows = part.rows,
                               .columns = key_values,
                               .source_stride = slice.qkv_width(),
                               .target_stride = key_values,
                               .dtype = slice.dtype});
    run.device.launch(
        AttentionForward{.qkv = qkv,
                         .cache = cached,
                         .out = row_at(run, a.attention, index * run.rows() + row, slice.attention_width()),
                         .lse = a.lse + lse_of_slice(run, index) + row * slice.heads,
                         .batch = 1,
                         .sequence_length = part.rows,
                         .heads = slice.heads,
                         .kv_heads = slice.kv_heads,
                         .head_size = slice.head_size,
                         .first_position = part.position,
                         .window = window_over(run, part.position + part.rows),
                         .sinks = sinks_over(run, part.position + part.rows),
                         .dtype = slice.dtype});
    row += part.rows;
  }
}

void attend(const BlockRun& run, const Block& block, const BlockActivations& a) {
  const ModelSpec& slice = run.slice;
  const std::int64_t length = run.sequences.shape.sequence_length;
  normalise_heads(run, block, a);
  for (int i = 0; i < run.group.share().count; ++i) {
    if (!run.sequences.continued.empty()) {
      attend_to_cache(run, a, i);
      continue;
    }
    void* const qkv = of_slice(run, a.qkv, i, slice.qkv_width());
    rotate(run, qkv, run.rows(), length, /*position=*/0, /*inverse=*/false);
    run.device.launch(AttentionForward{.qkv = qkv,
                                       .first_key = run.sequences.first_key,
                                       .out = of_slice(run, a.attention, i, slice.attention_width()),
                                       .lse = a.lse + lse_of_slice(run, i),
                                       .batch = run.sequences.shape.batch,
                                       .sequence_length = run.sequences.shape.sequence_length,
                                       .heads = slice.heads,
                                       .kv_heads = slice.kv_heads,
                                       .head_size = slice.head_size,
                                       .window = window_over(run, length),
                                       .sinks = sinks_over(run, length),
                                       .dtype = slice.dtype});
  }
}

// dattention in scratch.dinner -> dqkv
void attend_backward(const BlockRun& run, const BlockActivations& a, void* dqkv_of_slices) {
  const ModelSpec& slice = run.slice;
  const std::int64_t length = run.sequences.shape.sequence_length;
  for (int i = 0; i < run.group.share().count; ++i) {
    void* const dqkv = of_slice(run, dqkv_of_slices, i, slice.qkv_width());
    run.device.launch(AttentionBackward{.qkv = of_slice(run, a.qkv, i, slice.qkv_width()),
                                        .first_key = run.sequences.first_key,
                                        .out = of_slice(run, a.attention, i, slice.attention_width()),
                                        .dout = of_slice(run, run.scratch.dinner, i, slice.attention_width()),
                                        .lse = a.lse + lse_of_slice(run, i),
                                        .delta = run.scratch.delta,
                                        .dqkv = dqkv,
                                        .batch = run.sequences.shape.batch,
                                        .sequence_length = run.sequences.shape.sequence_length,
                                        .heads = slice.heads,
                                        .kv_heads = slice.kv_heads,
                                        .head_size = slice.head_size,
                                        .window = window_over(run, length),
                                        .sinks = sinks_over(run, length),
                                        .dtype = slice.dtype});
    rotate(run, dqkv, run.rows(), length, /*position=*/0, /*inverse=*/true);
  }
}

// Gathers all rows of what is as wide as the model, of which this rank has computed its own.
Result<void> gather_rows(const BlockRun& run, void* whole_NC) {
  const std::size_t row_bytes = static_cast<std::size_t>(run.slice.width) * bytes_of(run.slice.dtype);
  return run.group.all_gather(
      run.device, {static_cast<std::byte*>(whole_NC), static_cast<std::size_t>(run.rows()) * row_bytes});
}

// Returns whether the sum that makes mid and the norm of it are one op.
bool is_mid_composed(const BlockRun& run, const Block& block) {
  if (run.slice.composed.empty()) return false;
  const CallPlace place{.layer = run.device.scope().layer, .part = OpScope::Part::feed_forward};
  bool is_composed = false;
  block.feed_forward_norm.visit_with_sum(
      run.group.sum_of(run.sums(), run.slice.dtype), nullptr, {},
      [&](const auto& op) { is_composed = run.slice.has_composed(op, place); });
  return is_composed;
}

// Computes mid and its norm in one op, a piece of this rank's rows at a time, and gathers the norm's output.
Result<void> finish_mid(const BlockRun& run, const Block& block, const BlockActivations& a,
                        const TensorGroup::Scatter& begun) {
  const std::int64_t first_row = run.group.first_row(run.rows());
  const TensorGroup::SumTarget target{
      .y = a.mid_NC, .bias = block.output.bias, .residual = a.x_NC, .dtype = run.slice.dtype};
  for (int piece = 0; piece < begun.pieces; ++piece) {
    HF_TRY(const TreeSum sum, run.group.finish_piece(run.device, begun, run.sums(), target, piece));
    const std::int64_t row = piece * sum.rows;  // of this rank's
    const Norm::Statistics& all = a.feed_forward_norm;
    block.feed_forward_norm.visit_with_sum(
        sum, row_at(run, a.normed_mid_NC, first_row + row, run.slice.width),
        {.mean = all.mean == nullptr ? nullptr : all.mean + row, .rstd = all.rstd + row},
        [&](const auto& op) { run.device.launch(op); });
  }
  return gather_rows(run, a.normed_mid_NC);
}

// mid -> active
Result<void> forward_to_active(const BlockRun& run, const Block& block, const BlockActivations& a,
                               const BegunMid& mid) {
  if (mid.has_value()) {
    HF_TRY_VOID(finish_mid(run, block, a, *mid));
  } else {
    HF_TRY_VOID(gathered_norm(run, block.feed_forward_norm, a.mid_NC, a.normed_mid_NC, a.feed_forward_norm));
  }
  block.up.forward(run.device, a.normed_mid_NC, a.up, run.rows());
  activate(run, a);
  return {};
}

}  // namespace

Result<void> gathered_norm(const BlockRun& run, const Norm& norm, const void* x_NC, void* y_NC,
                           Norm::Statistics statistics) {
  norm.forward(run.device, x_NC, row_at(run, y_NC, run.group.first_row(run.rows()), run.slice.width),
               statistics, run.own_rows());
  return gather_rows(run, y_NC);
}

Result<const void*> gather_gradient(const BlockRun& run, const void* d_NC) {
  if (run.group.share().ranks() == 1) return d_NC;
  const std::size_t row_bytes = static_cast<std::size_t>(run.slice.width) * bytes_of(run.slice.dtype);
  auto* const all = static_cast<std::byte*>(run.scratch.dgathered_NC);
  run.device.launch(
      Copy{.source = d_NC,
           .target = all + static_cast<std::size_t>(run.group.first_row(run.rows())) * row_bytes,
           .bytes = run.own_rows() * static_cast<std::int64_t>(row_bytes)});
  HF_TRY_VOID(run.group.all_gather(run.device, {all, static_cast<std::size_t>(run.rows()) * row_bytes}));
  return static_cast<const void*>(all);
}

Result<BegunMid> attention_forward(const BlockRun& run, const Block& block, const BlockActivations& a) {
  HF_TRY_VOID(gathered_norm(run, block.attention_norm, a.x_NC, a.normed_NC, a.attention_norm));
  block.qkv.forward(run.device, a.normed_NC, a.qkv, run.rows());
  attend(run, block, a);
  if (is_mid_composed(run, block)) {
    HF_TRY(const TensorGroup::Scatter begun,
           block.output.begin_forward(run.device, run.group, run.sums(), a.attention));
    return BegunMid(begun);
  }
  HF_TRY_VOID(block.output.forward(run.device, run.group, run.sums(), a.attention, a.x_NC, a.mid_NC));
  return BegunMid();
}

Result<void> feed_forward_forward(const BlockRun& run, const Block& block, const BlockActivations& a,
                                  const BegunMid& mid, void* out_NC) {
  HF_TRY_VOID(forward_to_active(run, block, a, mid));
  return block.down.forward(run.device, run.group, run.sums(), a.active, a.mid_NC, out_NC);
}

Result<void> recompute_for_feed_forward(const BlockRun& run, const Block& block, const BlockActivations& a,
                                        Recompute recompute) {
  if (recompute == Recompute::none) return {};
  if (recompute == Recompute::full) {
    // The kernels of each half are those of its forward.
    OpScope of_attention = run.device.scope();
    of_attention.part = OpScope::Part::attention;
    BegunMid mid;
    {
      const OpScopeGuard guard(run.device.scope(), of_attention);
      HF_TRY(mid, attention_forward(run, block, a));
    }
    return forward_to_active(run, block, a, mid);
  }
  HF_TRY_VOID(gathered_norm(run, block.feed_forward_norm, a.mid_NC, a.normed_mid_NC, a.feed_forward_norm));
  activate(run, a);
  return {};
}

Result<void> recompute_for_attention(const BlockRun& run, const Block& block, const BlockActivations& a,
                                     Recompute recompute) {
  if (recompute != Recompute::selective) return {};
  return gathered_norm(run, block.attention_norm, a.x_NC, a.normed_NC, a.attention_norm);
}

Result<void> feed_forward_backward(const BlockRun& run, const Block& block, const BlockActivations& a,
                                   const BlockGradients& g, BackwardPass pass) {
  const BlockScratch& scratch = run.scratch;
  HF_TRY(const void* const dout_NC, gather_gradient(run, g.dout_NC));
  if (pass.of_inputs()) down_and_activation_backward(run, block, a, dout_NC, g.dup);
  if (pass.of_weights())
    block.down.weight_gradients(run.device, a.active, dout_NC, run.rows(), pass.accumulate);
  TensorGroup::Scatter begun;
  if (pass.of_inputs()) {
    HF_TRY(begun,
           block.up.begin_input_gradient(run.device, run.group, run.sums(), g.dup, scratch.dnormed_NC));
  }
  if (pass.of_weights())
    block.up.weight_gradients(run.device, a.normed_mid_NC, g.dup, run.rows(), pass.accumulate);
  if (pass.of_inputs()) {
    HF_TRY_VOID(block.up.finish_input_gradient(run.device, run.group, begun, run.sums(), scratch.dnormed_NC));
  }
  block.feed_forward_norm.backward(run.device, run.group.share(), a.mid_NC, a.feed_forward_norm,
                                   {.dy_NC = scratch.dnormed_NC,
                                    .dresidual_NC = g.dout_NC,
                                    .dx_NC = g.dmid_NC,
                                    .sums = g.feed_forward_norm_sums},
                                   run.own_rows(), pass);
  return {};
}

Result<void> attention_backward(const BlockRun& run, const Block& block, const BlockActivations& a,
                                const BlockGradients& g, BackwardPass pass) {
  const BlockScratch& scratch = run.scratch;
  HF_TRY(const void* const dmid_NC, gather_gradient(run, g.dmid_NC));
  if (pass.of_inputs()) block.output.input_gradient(run.device, dmid_NC, scratch.dinner, run.rows());
  if (pass.of_weights())
    block.output.weight_gradients(run.device, a.attention, dmid_NC, run.rows(), pass.accumulate);
  TensorGroup::Scatter begun;
  if (pass.of_inputs()) {
    attend_backward(run, a, g.dqkv);
  }
  normalise_heads_backward(run, block, a, g, pass);
  if (pass.of_inputs()) {
    HF_TRY(begun,
           block.qkv.begin_input_gradient(run.device, run.group, run.sums(), g.dqkv, scratch.dnormed_NC));
  }
  if (pass.of_weights())
    block.qkv.weight_gradients(run.device, a.normed_NC, g.dqkv, run.rows(), pass.accumulate);
  if (pass.of_inputs()) {
    HF_TRY_VOID(
        block.qkv.finish_input_gradient(run.device, run.group, begun, run.sums(), scratch.dnormed_NC));
  }
  block.attention_norm.backward(run.device, run.group.share(), a.x_NC, a.attention_norm,
                                {.dy_NC = scratch.dnormed_NC,
                                 .dresidual_NC = g.dmid_NC,
                                 .dx_NC = g.din_NC,
                                 .sums = g.attention_norm_sums},
                                run.own_rows(), pass);
  return {};
}

}  // namespace holdfast::model
