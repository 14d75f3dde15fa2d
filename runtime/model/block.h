// One transformer block, forward and backward, written once against the op contracts:
//   mid = x + output(attention(rotary(qkv(attention_norm(x)))))
//   out = mid + down(activation(up(feed_forward_norm(mid))))
// Every named tensor is stored once in the model's dtype, so a fused op has to round it there too.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "runtime/core/memory_plan.h"
#include "runtime/model/layers.h"
#include "runtime/model/spec.h"

namespace holdfast {

struct BatchShapeBT {
  std::int64_t batch = 0;
  std::int64_t sequence_length = 0;
  std::int64_t rows() const { return batch * sequence_length; }
};

// The sequences of one microbatch, and which keys a token sees (first_key in kernels/attention.h; null = all
// before it).
struct SequencesBT {
  BatchShapeBT shape;
  const std::int32_t* first_key = nullptr;
};

struct Block {
  Norm attention_norm, feed_forward_norm;
  Linear qkv, output, up, down;
};

// What backward needs of forward, for one block and one microbatch. What is computed again in backward
// (Recompute) lies in memory that all blocks share. Void pointers are in the model's dtype.
struct BlockActivations {
  void* x_NC = nullptr;  // input of the block: the previous block's output
  Norm::Statistics attention_norm;
  void* normed_NC = nullptr;
  void* qkv = nullptr;        // (rows, qkv_width), queries and keys already rotated
  void* attention = nullptr;  // (rows, attention_width)
  float* lse = nullptr;       // (batch, heads, sequence_length)
  void* mid_NC = nullptr;
  Norm::Statistics feed_forward_norm;
  void* normed_mid_NC = nullptr;
  void* up = nullptr;      // (rows, up_width)
  void* active = nullptr;  // (rows, feed_forward)
};

// Memory that blocks share: nothing in it survives one block's forward or backward.
struct BlockScratch {
  void* branch_NC = nullptr;  // a branch's output before it is added; a norm's incoming gradient in backward
  void* dwide = nullptr;      // (rows, widest of up_width, qkv_width)
  void* dinner = nullptr;     // (rows, widest of feed_forward, attention_width)
  float* delta = nullptr;     // (batch, heads, sequence_length)
  const float* cosine = nullptr;  // rotary tables (sequence_length, head_size / 2), null without rotary
  const float* sine = nullptr;
};

// Reads activations.x_NC, fills the rest, writes the block's output to out_NC.
void block_forward(Device& device, const ModelSpec& spec, const Block& block,
                   const BlockActivations& activations, const BlockScratch& scratch, void* out_NC,
                   const SequencesBT& sequences);

// Before the backward of a half of the block: computes again what that half reads and the blocks share. With
// Recompute::full the first call does it for both halves.
void recompute_for_feed_forward(Device& device, const ModelSpec& spec, const Block& block,
                                const BlockActivations& activations, const BlockScratch& scratch,
                                const SequencesBT& sequences, Recompute recompute);
void recompute_for_attention(Device& device, const Block& block, const BlockActivations& activations,
                             BatchShapeBT shape, Recompute recompute);

// d_NC: in, the gradient of the block's output; out, of its input. The two halves are two calls, because each
// half's gradients leave as soon as they are complete.
void feed_forward_backward(Device& device, const ModelSpec& spec, const Block& block,
                           const BlockActivations& activations, const BlockScratch& scratch, void* d_NC,
                           BatchShapeBT shape, bool accumulate);
void attention_backward(Device& device, const ModelSpec& spec, const Block& block,
                        const BlockActivations& activations, const BlockScratch& scratch, void* d_NC,
                        const SequencesBT& sequences, bool accumulate);

}  // namespace holdfast
