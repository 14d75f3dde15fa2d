// Where everything a microbatch computes lies in memory: planned once, then plain pointers.
//
// In training every block keeps its own activations for backward. A forward-only model shares one set between
// all blocks, and one residual stream.
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
  ActivationMemory(const ModelSpec& spec, BatchShapeBT largest, bool train, MemoryPlan& plan);
  // Also fills the rotary tables.
  Activations bind(const MemoryArena& arena) const;
  // Rows of one chunk of the head. Logits of a chunk stay near 4 Mi elements, so that a large vocabulary does
  // not cost rows x vocabulary of memory. A function of shapes alone: it decides bits.
  std::int64_t head_rows() const { return head_rows_; }

 private:
  struct BlockSlots {
    MemoryPlan::Slot normed, qkv, attention, lse, mid, normed_mid, up, active;
    MemoryPlan::Slot mean[2], rstd[2];
  };
  BlockSlots reserve_block(std::int64_t layer, MemoryPlan& plan) const;
  MemoryPlan::Slot reserve(MemoryPlan& plan, const std::string& name, std::int64_t count,
                           std::size_t element_bytes) const;
  void fill_rotary_tables(const MemoryArena& arena) const;

  ModelSpec spec_;
  BatchShapeBT largest_;
  bool train_;
  std::int64_t head_rows_;
  std::vector<MemoryPlan::Slot> residual_;
  std::vector<BlockSlots> blocks_;
  MemoryPlan::Slot branch_, dwide_, dinner_, delta_, cosine_, sine_, final_, final_mean_, final_rstd_,
      logits_, losses_, d_, dfinal_;
};

}  // namespace holdfast
