// EventPool: events that measure time and are reused, because making one costs more than recording it.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/context.h"

namespace holdfast::device {

// Used by the launching thread only. The stream outlives the pool; the pool outlives its recorded events,
// which their owner gives back or destroys.
class EventPool {
 public:
  EventPool() = default;
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // Records an event at the stream's present position. An error is noted in the context.
  cudaEvent_t record(cuda::Context& context);
  void give_back(cudaEvent_t event) { spare_.push_back(event); }

 private:
  std::vector<cudaEvent_t> spare_;
};

}  // namespace holdfast::device
