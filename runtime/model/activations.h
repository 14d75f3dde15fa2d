// Where everything a microbatch computes lies in memory: planned once, then plain pointers.
//
// In training every block keeps for backward what Recompute lets it keep; what it does not keep lies in one
// buffer that all blocks write in turn. A forward-only model keeps nothing, and has one residual stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/memory_plan.h"
#include "runtime/model/block.h"

namespace holdfast {

// Void pointers are in the model's dtype.
struct Activations {
  std::vector<void*> residual_NC;  // [i]: input of block i; [layers]: input of the final norm
  std::vector<BlockActivations> blocks;
  BlockScratch scratch;
  Norm::Statistics final_statistics;
  void* final_NC = nullptr;
  void* logits = nullptr;   // (head_rows, padded_vocabulary)
  float* losses = nullptr;  // (rows)
  void* d_NC = nullptr;     // gradient of the residual stream; null forward-only, as the next
  void* dfinal_NC = nullptr;
};

class ActivationMemory {
 public:
  ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train, Recompute recompute,
                   MemoryPlan& plan);
  // Also fills the rotary tables.
  Activations bind(Device& device, const MemoryArena& arena) const;
  // Rows of one chunk of the head. Logits of a chunk stay near 4 Mi elements, so that a large vocabulary does
  // not cost rows x vocabulary of memory. A function of shapes alone: it decides bits.
  std::int64_t head_rows() const { return head_rows_; }

 private:
  struct BlockSlots {
    MemoryPlan::Slot attention_mean, attention_rstd, normed, qkv, attention, lse, mid;
    MemoryPlan::Slot feed_forward_mean, feed_forward_rstd, normed_mid, up, active;
  };
  BlockSlots reserve_block(std::int64_t layer, MemoryPlan& plan) const;
  MemoryPlan::Slot reserve(MemoryPlan& plan, const std::string& name, std::int64_t count,
                           std::size_t element_bytes) const;
  void fill_rotary_tables(Device& device, const MemoryArena& arena) const;

  ModelSpec spec_;
  BatchShapeBT largest_;
  bool keeps_cheap_;   // each block its own outputs of norms and activation functions
  bool keeps_costly_;  // each block its own matmul and attention outputs, with the statistics
  std::int64_t head_rows_;
  std::vector<MemoryPlan::Slot> residual_;
  std::vector<BlockSlots> blocks_;
  MemoryPlan::Slot branch_, dwide_, dinner_, delta_, cosine_, sine_, final_, final_mean_, final_rstd_,
      logits_, losses_, d_, dfinal_;
};

}  // namespace holdfast
