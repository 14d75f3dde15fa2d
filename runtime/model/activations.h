// Where everything a microbatch computes lies in memory: planned once, then plain pointers.
//
// In training every block keeps for backward what Recompute lets it keep; what it does not keep lies in one
// buffer that all blocks write in turn. A forward-only model keeps nothing, and has one residual stream.
//
// A stage of a pipeline holds several microbatches between their forward and their backward, and each has its
// own of what is kept; they take turns in a ring. What arrives from a neighbour stage has one place more, so
// that it can arrive while all others are in use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cross_entropy.h"
#include "runtime/core/memory_plan.h"
#include "runtime/model/block.h"

namespace holdfast {

// What a microbatch keeps from its forward to its backward. Void pointers are in the model's dtype.
struct MicrobatchActivations {
  std::vector<void*> residual_NC;        // [i]: output of the stage's block i
  std::vector<BlockActivations> blocks;  // without their inputs
};

// Of the head, whose logits exist for a chunk of rows only.
struct HeadMemory {
  void* logits = nullptr;     // (slices here, head_rows, padded_vocabulary of a slice)
  float* losses = nullptr;    // (rows)
  void* dfinal_NC = nullptr;  // own rows; null forward-only
  // With tensor lanes: what the slices know of a chunk's rows (slices, head_rows), and all of them
  // (head_rows).
  SoftmaxStatistics* of_slices = nullptr;
  SoftmaxStatistics* of_rows = nullptr;
};

struct Activations {
  std::vector<MicrobatchActivations> microbatches;  // a ring
  std::vector<void*> input_NC;                      // a ring: input of the stage's first block
  std::vector<void*> d_NC;  // a ring: gradient of the residual stream; empty forward-only
  BlockScratch scratch;
  Norm::Statistics final_statistics;
  void* final_NC = nullptr;  // all rows
  HeadMemory head;
  float* norm_slices = nullptr;  // Norm::slice_gradients of the part's norms, in forward order; or null
};

// Rows of one chunk of the head. Logits of a chunk stay near 4 Mi elements, so that a large vocabulary does
// not cost rows x vocabulary of memory. A function of shapes alone: it decides bits.
std::int64_t rows_of_head_chunk(std::int64_t rows, std::int64_t padded_vocabulary);

// What of a model a rank computes in training, and of how many microbatches at once.
struct StageShape {
  ModelPart part;
  int microbatches_in_flight = 1;  // most that are between their forward and the end of their backward
  TensorShare tensor = {};         // slices of ModelSpec::tensor_lanes
};
inline StageShape whole_stage(const ModelSpec& spec) {
  return {.part = whole_model(spec), .tensor = all_slices(spec.tensor_lanes)};
}

class ActivationMemory {
 public:
  ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train, Recompute recompute,
                   MemoryPlan& plan);  // of the whole model, one microbatch at a time
  ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train, Recompute recompute,
                   const StageShape& stage, MemoryPlan& plan);
  // Also fills the rotary tables.
  Activations bind(Device& device, const MemoryArena& arena) const;
  std::int64_t head_rows() const { return head_rows_; }
  std::int64_t norm_slice_elements() const;  // of one norm's slice_gradients; 0 without tensor lanes

 private:
  struct BlockSlots {
    MemoryPlan::Slot attention_mean, attention_rstd, normed, qkv, attention, lse, mid;
    MemoryPlan::Slot feed_forward_mean, feed_forward_rstd, normed_mid, up, active;
  };
  struct MicrobatchSlots {
    std::vector<MemoryPlan::Slot> residual;
    std::vector<BlockSlots> blocks;
  };
  // One rank has all of it, and so one microbatch at a time.
  bool is_whole() const { return stage_.part.has_embedding && stage_.part.has_head; }
  std::string name_in(int microbatch, const std::string& name) const;
  void reserve_microbatch(int microbatch, MemoryPlan& plan);
  void reserve_ends(bool train, MemoryPlan& plan);
  void reserve_slices(bool train, MemoryPlan& plan);
  std::int64_t own_rows() const { return largest_.rows() / stage_.tensor.ranks(); }
  BlockSlots reserve_block(int microbatch, std::int64_t layer, MemoryPlan& plan) const;
  MemoryPlan::Slot reserve(MemoryPlan& plan, const std::string& name, std::int64_t count,
                           std::size_t element_bytes) const;
  void fill_rotary_tables(Device& device, const MemoryArena& arena) const;

  HeadMemory bind_head(const MemoryArena& arena) const;

  ModelSpec spec_, slice_;
  BatchShapeBT largest_;
  StageShape stage_;
  bool keeps_inputs_;  // each block its own input
  bool keeps_cheap_;   // each block its own outputs of norms and activation functions
  bool keeps_costly_;  // each block its own matmul and attention outputs, with the statistics
  std::int64_t head_rows_;
  std::vector<MicrobatchSlots> microbatches_;
  std::vector<MemoryPlan::Slot> input_, d_;  // rings
  MemoryPlan::Slot branch_, dwide_, dinner_, delta_, cosine_, sine_, final_, final_mean_, final_rstd_,
      logits_, losses_, dfinal_, softmax_slices_, softmax_rows_, dgathered_, parts_, arrivals_, norm_slices_;
};

}  // namespace holdfast
