// TokenStaging holds the token ids, targets and first keys of microbatches in memory that kernels read at
// full speed. The host writes them to memory that it sees. On a device with memory of its own, one copy in
// the queue moves a microbatch there, because a kernel that reads the host's memory waits for the bus at
// every word, and the GPU caches none of it.
//
// Threads: the launching thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"
#include "runtime/model/model.h"

namespace holdfast::train {

struct TokenStagingShape {
  BatchShapeBT microbatch;
  bool with_first_keys = false;
  std::size_t slots = 1;  // number of microbatches held at once
};

class TokenStaging {
 public:
  // Reserves its memory in `plan`; bind() is called once, after the memory was allocated. `device` outlives
  // this object.
  TokenStaging(const TokenStagingShape& shape, Device& device, MemoryPlan& plan);
  void bind(const MemoryArena& arena);

  // Writes a microbatch into a slot and launches its copy. Shorter spans leave the rest of the slot
  // unchanged; first keys are ignored where the shape has none. Before the call, the caller waits for the
  // kernels of the microbatch that used the slot last.
  TokenBatch stage(std::size_t slot, std::span<const std::int32_t> inputs,
                   std::span<const std::int32_t> targets, std::span<const std::int32_t> first_keys);
  // Returns the memory of a slot as kernels read it.
  TokenBatch at(std::size_t slot) const;

 private:
  std::size_t slot_elements() const;

  TokenStagingShape shape_;
  Device* device_;
  MemoryPlan::Slot written_slot_, read_slot_;
  std::int32_t* written_ = nullptr;  // memory that the host writes
  // Memory that kernels read; written_ where the host sees the device's memory.
  std::int32_t* read_ = nullptr;
};

}  // namespace holdfast::train
