// ActivationMemory plans where everything that a microbatch computes lies in memory; Activations holds the
// resulting plain pointers.
//
// In training every block keeps for backward what Recompute lets it keep; the rest lies in one buffer that
// all blocks write in turn. A forward-only model keeps nothing, and has one residual stream.
//
// A stage of a pipeline holds several microbatches between their forward and their backward, each with its
// own copy of what is kept; the copies form a ring. Buffers for what arrives from a neighbour stage have one
// slot more, so that it can arrive while all others are in use.
//
// Where backwards are split, a microbatch keeps from the first part to the second what the weight gradients
// are made of: the gradients of all matmuls' outputs, those of the logits of all rows among them. These
// copies form a ring of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cross_entropy.h"
#include "runtime/core/memory_plan.h"
#include "runtime/model/block.h"

namespace holdfast::model {

// Activations that a microbatch keeps from its forward to its backward. Void pointers are in the model's
// dtype.
struct MicrobatchActivations {
  std::vector<void*> residual_NC;        // [i]: output of the stage's block i
  std::vector<BlockActivations> blocks;  // without their inputs
};

// Gradients that a backward computes for a microbatch and reads again for the weight gradients. Where
// backwards are whole there is one instance, whose blocks share their memory.
struct MicrobatchGradients {
  std::vector<void*> dresidual_NC;     // [i]: of the output of the stage's block i, except the last one
  std::vector<BlockGradients> blocks;  // without dout and din; nor dmid in a whole backward
  void* final_NC = nullptr;            // all rows; the final norm's output
  // Logits for each chunk of the head (slices here, rows of the chunk, padded_vocabulary of a slice), later
  // replaced by their gradient; one chunk only in a whole backward.
  void* logits = nullptr;
  float* final_norm_sums = nullptr;
};

// Memory of the head, which all microbatches use in turn.
struct HeadMemory {
  float* losses = nullptr;    // (rows)
  void* dfinal_NC = nullptr;  // own rows; null when forward-only
  // Tensor lanes only: the statistics of each slice for a chunk's rows (slices, head_rows), and those of all
  // slices together (head_rows).
  SoftmaxStatistics* of_slices = nullptr;
  SoftmaxStatistics* of_rows = nullptr;
};

struct Activations {
  std::vector<MicrobatchActivations> microbatches;  // a ring
  std::vector<void*> input_NC;                      // a ring: input of the stage's first block
  std::vector<MicrobatchGradients> gradients;       // a ring; forward-only: the head's gradients only
  std::vector<void*> doutput_NC;  // a ring: gradient of the stage's output; empty forward-only
  std::vector<void*> dinput_NC;   // a ring: gradient of its input; same memory unless a split backward has
                                  // blocks
  BlockScratch scratch;
  Norm::Statistics final_statistics;
  HeadMemory head;
  float* norm_slices = nullptr;  // Norm::slice_gradients of the part's norms, in forward order; or null
  AdapterMemory adapters;
  float* adapter_slices =
      nullptr;  // SlicedGradient::of_slices of the part's adapters, in forward order; or null
  float* unused_norm_gradients = nullptr;  // Norm::unused_gradients of all frozen norms; null without any
};

// Returns how many of a microbatch's `rows` one chunk of the head has: ModelSpec::head_rows if set, else as
// many as keep the logits near 4 Mi elements (a CPU's cache), at least 256. The logits of a chunk are in
// memory whole, and its weight gradient is added to that of the chunks before, so the number affects the bits
// of the result.
std::int64_t head_chunk_rows(std::int64_t rows, const ModelSpec& spec);

// Part of a model that a rank computes in training, and the number of microbatches that it holds at once.
struct StageShape {
  ModelPart part;
  int microbatches_in_flight = 1;  // maximum between their forward and the end of their backward
  // Maximum number of microbatches between the start of their backward of inputs and the end of that of
  // weights; 0: backwards are whole.
  int weight_gradients_pending = 0;
  TensorShare tensor = {};  // slices of ModelSpec::tensor_lanes
  // Sequences whose keys and values each block keeps, so that they may be continued; of a model that only runs
  // forward.
  int cached_sequences = 0;
  bool splits_backward() const { return weight_gradients_pending > 0; }
};
inline StageShape whole_stage(const ModelSpec& spec) {
  return {.part = whole_model(spec), .tensor = all_slices(spec.tensor_lanes)};
}

class ActivationMemory {
 public:
  ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train, Recompute recompute,
                   MemoryPlan& plan);  // for the whole model, one microbatch at a time
  ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train, Recompute recompute,
                   const StageShape& stage, MemoryPlan& plan);
  // Returns the pointers into the arena, and fills the rotary tables.
  Activations bind(Device& device, const MemoryArena& arena) const;
  std::int64_t head_rows() const { return head_rows_; }
  // Returns the elements of slice_gradients of a norm of `width`; 0 without tensor lanes.
  std::int64_t norm_slice_elements(std::int64_t width) const;

 private:
  struct BlockSlots {
    MemoryPlan::Slot attention_mean, attention_rstd, normed, qkv, cache, attention, lse, mid;
    MemoryPlan::Slot query_rstd, key_rstd, queries, keys;
    MemoryPlan::Slot feed_forward_mean, feed_forward_rstd, normed_mid, up, active;
  };
  struct MicrobatchSlots {
    std::vector<MemoryPlan::Slot> residual;
    std::vector<BlockSlots> blocks;
  };
  struct BlockGradientSlots {
    MemoryPlan::Slot dup, dmid, dqkv, attention_norm_sums, feed_forward_norm_sums, query_norm_sums,
        key_norm_sums;
  };
  struct GradientSlots {
    std::vector<MemoryPlan::Slot> dresidual;
    std::vector<BlockGradientSlots> blocks;
    MemoryPlan::Slot final, logits, final_norm_sums;
  };
  // Returns whether this rank has the whole model, and so runs one microbatch at a time.
  bool is_whole() const { return stage_.part.has_embedding && stage_.part.has_head; }
  // Returns whether a backward runs through the layer; below the lowest that is trained it does not.
  bool has_backward(std::int64_t layer) const { return layer >= lowest_layer_; }
  bool runs_through_frozen_norms() const;
  std::int64_t norm_vectors() const;  // Norm::gradient_vectors(), at most
  std::string name_in(int microbatch, const std::string& name) const;
  void reserve_microbatch(int microbatch, MemoryPlan& plan);
  void reserve_ends(bool train, MemoryPlan& plan);
  void reserve_boundary_gradients(MemoryPlan& plan);
  GradientSlots reserve_whole_backward(bool train, MemoryPlan& plan) const;
  GradientSlots reserve_split_backward(int pending, MemoryPlan& plan) const;
  void reserve_slices(bool train, MemoryPlan& plan);
  void reserve_adapters(bool train, MemoryPlan& plan);
  std::int64_t own_rows() const { return largest_.rows() / stage_.tensor.ranks(); }
  BlockSlots reserve_block(int microbatch, std::int64_t layer, MemoryPlan& plan) const;
  MemoryPlan::Slot reserve(MemoryPlan& plan, const std::string& name, std::int64_t count,
                           std::size_t element_bytes) const;
  void fill_rotary_tables(Device& device, const MemoryArena& arena) const;
  void fill_scale(Device& device, const MemoryArena& arena) const;

  static MicrobatchGradients bind_gradients(const GradientSlots& slots, const MemoryArena& arena);
  HeadMemory bind_head(const MemoryArena& arena) const;

  ModelSpec spec_, slice_;
  BatchShapeBT largest_;
  StageShape stage_;
  std::int64_t lowest_layer_;  // lowest_trained_layer()
  // Each block that has a backward keeps these. The others share memory, as all do where nothing is kept.
  bool keeps_inputs_;  // its own input
  bool keeps_cheap_;   // its outputs of norms and activation functions
  bool keeps_costly_;  // its matmul and attention outputs, with the statistics
  std::int64_t head_rows_;
  std::vector<MicrobatchSlots> microbatches_;
  std::vector<GradientSlots> gradients_;
  std::vector<MemoryPlan::Slot> input_, doutput_, dinput_;  // rings
  MemoryPlan::Slot dnormed_, dinner_, dheads_, delta_, cosine_, sine_, final_mean_, final_rstd_, losses_,
      dfinal_, softmax_slices_, softmax_rows_, dgathered_, parts_, arrivals_, norm_slices_,
      unused_norm_gradients_, adapter_low_, adapter_scaled_, adapter_delta_, adapter_scale_, adapter_slices_;
};

}  // namespace holdfast::model
