// One transformer block, forward and backward, written once against the op contracts:
//   mid = x + output(attention(rotary(qkv(attention_norm(x)))))
// (with head norms each head of the queries and keys passes query_norm or key_norm before it is rotated)
//   out = mid + down(activation(up(feed_forward_norm(mid))))
// Every named tensor is stored once in the model's dtype, so a fused op has to round it there too.
//
// With tensor lanes queries, keys, values and the feed-forward width are slices, and this rank has some of
// them, of all rows; x, mid and everything else as wide as the model are of this rank's own rows, or, where a
// slice reads them, gathered (parallel/tensor/tensor_group.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"
#include "runtime/model/layers.h"
#include "runtime/model/spec.h"

namespace holdfast::model {

struct BatchShapeBT {
  std::int64_t batch = 0;
  std::int64_t sequence_length = 0;
  std::int64_t rows() const { return batch * sequence_length; }
};

// Rows of a batch that continue one sequence, whose earlier tokens have their keys and values in the cache.
struct ContinuedRows {
  int sequence = 0;
  std::int64_t position =
      0;  // of the first row in its sequence; what the cache has from there on is replaced
  std::int64_t rows = 0;
};

// The sequences of one microbatch, and which keys a token sees (first_key in kernels/attention.h; null = all
// tokens before it).
struct SequencesBT {
  BatchShapeBT shape;
  const std::int32_t* first_key = nullptr;
  std::span<const ContinuedRows> continued = {};  // all rows, in their order; empty: whole sequences
};

struct Block {
  Norm attention_norm, feed_forward_norm;
  Norm query_norm, key_norm;  // ModelSpec::has_head_norms; as wide as a head
  ColumnLinear qkv, up;
  RowLinear output, down;
};

// Results of forward that backward needs, for one block and one microbatch. Those that are computed again in
// backward (Recompute) lie in memory that all blocks share. Void pointers are in the model's dtype.
struct BlockActivations {
  void* x_NC = nullptr;  // own rows; input of the block: the previous block's output
  Norm::Statistics attention_norm;
  void* normed_NC = nullptr;  // all rows
  // The next three are stored slice after slice; their widths are those of a slice.
  void* qkv = nullptr;  // (slices, rows, qkv_width), queries and keys already rotated
  // With head norms: their inputs, (slices, rows x heads or kv_heads, head_size), and statistics.
  void* queries = nullptr;
  void* keys = nullptr;
  Norm::Statistics query_norm, key_norm;
  // (slices, sequences, longest, 2 kv_width): rotated keys and values of each token, or null; BlockScratch::cache.
  void* cache = nullptr;
  void* attention = nullptr;  // (slices, rows, attention_width)
  float* lse = nullptr;       // (slices, batch, heads, sequence_length)
  void* mid_NC = nullptr;     // own rows
  Norm::Statistics feed_forward_norm;
  void* normed_mid_NC = nullptr;  // all rows
  void* up = nullptr;             // (slices, rows, up_width)
  void* active = nullptr;         // (slices, rows, feed_forward)
};

// Gradients that a block's backward computes for one microbatch and reads again for the weight gradients. A
// whole backward works in place: dout, dmid and din share one buffer, dup and dqkv another, which all blocks
// share. A split backward has separate memory for each and keeps it from its first part to its second. Void
// pointers are in the model's dtype.
struct BlockGradients {
  void* dout_NC = nullptr;               // own rows; input: gradient of the block's output
  void* dup = nullptr;                   // (slices, rows, up_width)
  void* dmid_NC = nullptr;               // own rows
  void* dqkv = nullptr;                  // (slices, rows, qkv_width)
  void* din_NC = nullptr;                // own rows; output: gradient of the block's input
  float* attention_norm_sums = nullptr;  // Norm::Gradients::sums
  float* feed_forward_norm_sums = nullptr;
  float* query_norm_sums = nullptr;
  float* key_norm_sums = nullptr;
};

// Memory that blocks share: nothing in it survives one block's forward or backward.
struct BlockScratch {
  void* dnormed_NC = nullptr;  // own rows; the gradient of a norm's output
  void* dinner = nullptr;  // (slices, rows, attention_width; with SwiGLU the wider of it and feed_forward)
  void* dheads = nullptr;  // (slices, rows, attention_width); gradients of a head norm's outputs
  float* delta = nullptr;  // (batch, heads of a slice, sequence_length)
  void* dgathered_NC = nullptr;   // gradient of all rows; null where the rank has all rows itself
  SliceSums sums;                 // `rows` is set for each call; null without tensor lanes
  const float* cosine = nullptr;  // rotary tables (sequence_length, head_size / 2), null without rotary
  const float* sine = nullptr;
  BatchShapeBT cache = {};  // sequences of each block's cache, and the longest
};

// Arguments that all functions of a block share.
struct BlockRun {
  Device& device;
  const ModelSpec& slice;  // ModelSpec::slice()
  TensorGroup& group;
  const BlockScratch& scratch;
  SequencesBT sequences;
  std::int64_t rows() const { return sequences.shape.rows(); }
  std::int64_t own_rows() const { return group.own_rows(rows()); }
  SliceSums sums() const {
    return {.parts = scratch.sums.parts,
            .arrivals = scratch.sums.arrivals,
            .rows = rows(),
            .columns = slice.width};
  }
};

// Computes a norm of this rank's rows and gathers those of the others: y has all rows.
Result<void> gathered_norm(const BlockRun& run, const Norm& norm, const void* x_NC, void* y_NC,
                           Norm::Statistics statistics);
// Gathers all rows of a gradient of which this rank has its own; returns d_NC itself in a group of one.
Result<const void*> gather_gradient(const BlockRun& run, const void* d_NC);

// Holds the sum that makes mid, begun in the attention half, where the feed-forward half computes it together with its norm
// (ModelSpec::composed); else nothing, and mid is there.
using BegunMid = std::optional<TensorGroup::Scatter>;

// Computes x -> mid -> out. The two halves are two calls, because the parameters of each half may arrive as
// late as its launch. The first reads activations.x_NC, both fill the rest, the second writes the block's
// output.
Result<BegunMid> attention_forward(const BlockRun& run, const Block& block,
                                   const BlockActivations& activations);
Result<void> feed_forward_forward(const BlockRun& run, const Block& block,
                                  const BlockActivations& activations, const BegunMid& mid, void* out_NC);

// Computes again what the backward of a half of the block reads and the blocks share; called before that
// backward. With Recompute::full the first call does it for both halves.
Result<void> recompute_for_feed_forward(const BlockRun& run, const Block& block,
                                        const BlockActivations& activations, Recompute recompute);
Result<void> recompute_for_attention(const BlockRun& run, const Block& block,
                                     const BlockActivations& activations, Recompute recompute);

// Computes dout -> dmid -> din. The two halves are two calls, because each half's gradients leave as soon as
// they are complete. A backward of weights reads what the backward of inputs left in `gradients`, and gathers
// it once more.
Result<void> feed_forward_backward(const BlockRun& run, const Block& block,
                                   const BlockActivations& activations, const BlockGradients& gradients,
                                   BackwardPass pass);
Result<void> attention_backward(const BlockRun& run, const Block& block, const BlockActivations& activations,
                                const BlockGradients& gradients, BackwardPass pass);

}  // namespace holdfast::model
