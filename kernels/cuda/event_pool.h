// Events that measure time, used again and again: making one costs more than recording it.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/context.h"

namespace holdfast::inline kernels::cuda {

// Used by the launching thread only. Outlived by the stream; outlives what it has recorded, which its owner
// gives back or destroys.
class EventPool {
 public:
  EventPool() = default;
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // Where the stream is now. What goes wrong is noted in the context.
  cudaEvent_t record(Context& context);
  void give_back(cudaEvent_t event) { spare_.push_back(event); }

 private:
  std::vector<cudaEvent_t> spare_;
};

}  // namespace holdfast::inline kernels::cuda
