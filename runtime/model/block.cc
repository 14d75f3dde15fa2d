#include "runtime/model/block.h"

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/rotary.h"

namespace holdfast {
namespace {

void rotate(Device& device, const ModelSpec& spec, const BlockScratch& scratch, void* qkv, BatchShapeBT shape,
            bool inverse) {
  if (spec.positions > 0) return;
  device.launch(Rotary{.x = qkv,
                       .cosine = scratch.cosine,
                       .sine = scratch.sine,
                       .rows = shape.rows(),
                       .row_stride = spec.qkv_width(),
                       .heads = spec.heads + spec.kv_heads,
                       .head_size = spec.head_size,
                       .sequence_length = shape.sequence_length,
                       .inverse = inverse,
                       .dtype = spec.dtype});
}

void add(Device& device, const ModelSpec& spec, const void* a, const void* b, void* y, std::int64_t rows) {
  device.launch(Add{.a = a, .b = b, .y = y, .count = rows * spec.width, .dtype = spec.dtype});
}

void activate(Device& device, const ModelSpec& spec, const BlockActivations& activations, std::int64_t rows) {
  if (spec.activation == ActivationKind::swiglu) {
    device.launch(SwigluForward{.x = activations.up,
                                .y = activations.active,
                                .rows = rows,
                                .feed_forward = spec.feed_forward,
                                .dtype = spec.dtype});
  } else {
    device.launch(GeluForward{.x = activations.up,
                              .y = activations.active,
                              .count = rows * spec.feed_forward,
                              .dtype = spec.dtype});
  }
}

void activate_backward(Device& device, const ModelSpec& spec, const BlockActivations& activations,
                       const void* dactive, void* dup, std::int64_t rows) {
  if (spec.activation == ActivationKind::swiglu) {
    device.launch(SwigluBackward{.x = activations.up,
                                 .dy = dactive,
                                 .dx = dup,
                                 .rows = rows,
                                 .feed_forward = spec.feed_forward,
                                 .dtype = spec.dtype});
  } else {
    device.launch(GeluBackward{.x = activations.up,
                               .dy = dactive,
                               .dx = dup,
                               .count = rows * spec.feed_forward,
                               .dtype = spec.dtype});
  }
}

// x -> mid
void forward_attention(Device& device, const ModelSpec& spec, const Block& block, const BlockActivations& a,
                       const BlockScratch& scratch, const SequencesBT& sequences) {
  const BatchShapeBT shape = sequences.shape;
  const std::int64_t rows = shape.rows();
  block.attention_norm.forward(device, a.x_NC, a.normed_NC, a.attention_norm, rows);
  block.qkv.forward(device, a.normed_NC, a.qkv, rows);
  rotate(device, spec, scratch, a.qkv, shape, /*inverse=*/false);
  device.launch(AttentionForward{.qkv = a.qkv,
                                 .first_key = sequences.first_key,
                                 .out = a.attention,
                                 .lse = a.lse,
                                 .batch = shape.batch,
                                 .sequence_length = shape.sequence_length,
                                 .heads = spec.heads,
                                 .kv_heads = spec.kv_heads,
                                 .head_size = spec.head_size,
                                 .dtype = spec.dtype});
  block.output.forward(device, a.attention, scratch.branch_NC, rows);
  add(device, spec, a.x_NC, scratch.branch_NC, a.mid_NC, rows);
}

// mid -> active
void forward_to_active(Device& device, const ModelSpec& spec, const Block& block, const BlockActivations& a,
                       std::int64_t rows) {
  block.feed_forward_norm.forward(device, a.mid_NC, a.normed_mid_NC, a.feed_forward_norm, rows);
  block.up.forward(device, a.normed_mid_NC, a.up, rows);
  activate(device, spec, a, rows);
}

}  // namespace

void block_forward(Device& device, const ModelSpec& spec, const Block& block, const BlockActivations& a,
                   const BlockScratch& scratch, void* out_NC, const SequencesBT& sequences) {
  const std::int64_t rows = sequences.shape.rows();
  forward_attention(device, spec, block, a, scratch, sequences);
  forward_to_active(device, spec, block, a, rows);
  block.down.forward(device, a.active, scratch.branch_NC, rows);
  add(device, spec, a.mid_NC, scratch.branch_NC, out_NC, rows);
}

void recompute_for_feed_forward(Device& device, const ModelSpec& spec, const Block& block,
                                const BlockActivations& a, const BlockScratch& scratch,
                                const SequencesBT& sequences, Recompute recompute) {
  const std::int64_t rows = sequences.shape.rows();
  if (recompute == Recompute::none) return;
  if (recompute == Recompute::full) {
    forward_attention(device, spec, block, a, scratch, sequences);
    forward_to_active(device, spec, block, a, rows);
    return;
  }
  block.feed_forward_norm.forward(device, a.mid_NC, a.normed_mid_NC, a.feed_forward_norm, rows);
  activate(device, spec, a, rows);
}

void recompute_for_attention(Device& device, const Block& block, const BlockActivations& a,
                             BatchShapeBT shape, Recompute recompute) {
  if (recompute != Recompute::selective) return;
  block.attention_norm.forward(device, a.x_NC, a.normed_NC, a.attention_norm, shape.rows());
}

void feed_forward_backward(Device& device, const ModelSpec& spec, const Block& block,
                           const BlockActivations& a, const BlockScratch& scratch, void* d_NC,
                           BatchShapeBT shape, bool accumulate) {
  const std::int64_t rows = shape.rows();
  block.down.backward(device, a.active, d_NC, scratch.dinner, rows, accumulate);
  activate_backward(device, spec, a, scratch.dinner, scratch.dwide, rows);
  block.up.backward(device, a.normed_mid_NC, scratch.dwide, scratch.branch_NC, rows, accumulate);
  block.feed_forward_norm.backward(device, a.mid_NC, scratch.branch_NC, a.feed_forward_norm, d_NC, d_NC, rows,
                                   accumulate);
}

void attention_backward(Device& device, const ModelSpec& spec, const Block& block, const BlockActivations& a,
                        const BlockScratch& scratch, void* d_NC, const SequencesBT& sequences,
                        bool accumulate) {
  const BatchShapeBT shape = sequences.shape;
  const std::int64_t rows = shape.rows();
  block.output.backward(device, a.attention, d_NC, scratch.dinner, rows, accumulate);
  device.launch(AttentionBackward{.qkv = a.qkv,
                                  .first_key = sequences.first_key,
                                  .out = a.attention,
                                  .dout = scratch.dinner,
                                  .lse = a.lse,
                                  .delta = scratch.delta,
                                  .dqkv = scratch.dwide,
                                  .batch = shape.batch,
                                  .sequence_length = shape.sequence_length,
                                  .heads = spec.heads,
                                  .kv_heads = spec.kv_heads,
                                  .head_size = spec.head_size,
                                  .dtype = spec.dtype});
  rotate(device, spec, scratch, scratch.dwide, shape, /*inverse=*/true);
  block.qkv.backward(device, a.normed_NC, scratch.dwide, scratch.branch_NC, rows, accumulate);
  block.attention_norm.backward(device, a.x_NC, scratch.branch_NC, a.attention_norm, d_NC, d_NC, rows,
                                accumulate);
}

}  // namespace holdfast
