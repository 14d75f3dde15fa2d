// Allocates memory of a GPU that others may still hold. The memory of a killed process is free only when the
// driver has torn it down, which takes seconds, or as long as a kernel of it still runs; a start that follows
// a kill finds the GPU full and must not take that for a model that is too large.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

#include "runtime/device/cuda_loader.h"

namespace holdfast::device {

struct MemoryClaim {
  const CudaFacts& gpu;
  MemoryWait wait;
  std::uint64_t bytes = 0;       // that are needed now; 0: a context, whose size is unknown
  std::uint64_t held_bytes = 0;  // that this process has allocated on the GPU already
  const char* purpose = "";      // "memory of the run", "a context"
};

// Calls attempt() until it gets the memory (cudaSuccess). Between attempts it sleeps; the first time it
// prints on the console what it waits for. Errors:
//   does_not_fit   this process needs more than the GPU has, or no other process holds any; after the wait
//                  also where the ranks that share the GPU need more together
//   communication  others still hold it after MemoryWait::timeout_ms (Reach::minute), or the device failed
//                  (Reach::host)
Result<void> claim_memory(const MemoryClaim& claim, const std::function<cudaError_t()>& attempt);

// Does the same for pinned memory of the host, of which nobody says how much there is: does_not_fit if it is still
// refused after the wait.
Result<void> claim_pinned_memory(std::uint64_t bytes, const MemoryWait& wait,
                                 const std::function<cudaError_t()>& attempt);

}  // namespace holdfast::device
