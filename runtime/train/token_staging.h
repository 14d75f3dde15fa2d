// TokenStaging: the token ids, targets and first keys of microbatches, in memory that kernels read at full
// speed. The host writes them to memory that it sees; on a device that has memory of its own one copy in the
// queue moves a microbatch there, because a kernel that reads the host's memory waits for the bus at every
// word, and the GPU caches none of it.
//
// Threads: the launching thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "runtime/core/memory_plan.h"
#include "runtime/model/model.h"

namespace holdfast::inline train {

struct TokenStagingShape {
  BatchShapeBT microbatch;
  bool with_first_keys = false;
  std::size_t slots = 1;  // microbatches that are there at once
};

class TokenStaging {
 public:
  // Reserves in `plan`; bind() comes once, after the memory was allocated. `device` outlives this object.
  TokenStaging(const TokenStagingShape& shape, Device& device, MemoryPlan& plan);
  void bind(const MemoryArena& arena);

  // Writes a microbatch into a slot and launches its copy. Shorter spans leave the rest of the slot as it
  // was; first keys are ignored where the shape has none. The caller waits for the kernels of the slot's last
  // microbatch first.
  TokenBatch stage(std::size_t slot, std::span<const std::int32_t> inputs,
                   std::span<const std::int32_t> targets, std::span<const std::int32_t> first_keys);
  // Returns the memory of a slot that kernels read.
  TokenBatch at(std::size_t slot) const;

 private:
  std::size_t slot_elements() const;

  TokenStagingShape shape_;
  Device* device_;
  MemoryPlan::Slot written_slot_, read_slot_;
  std::int32_t* written_ = nullptr;  // by the host
  std::int32_t* read_ = nullptr;     // by kernels; the same memory where the host sees the device's
};

}  // namespace holdfast::inline train
