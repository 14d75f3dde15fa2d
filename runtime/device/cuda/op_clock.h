// OpClock: measures the time of each op on the GPU, by an event before and one after its launches. Events are
// recorded by the stream as it reaches them, so nothing waits for a time; times are reported later. An op
// that finds the stream idle is charged with the time in which the host launches it.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <deque>

#include "kernels/cuda/context.h"
#include "runtime/device/cuda/event_pool.h"
#include "runtime/device/cuda_loader.h"

namespace holdfast::device {

// Used by the launching thread only. The stream outlives the clock.
class OpClock {
 public:
  explicit OpClock(TimedOp reported) : reported_(std::move(reported)) {}
  ~OpClock();
  OpClock(const OpClock&) = delete;
  OpClock& operator=(const OpClock&) = delete;

  void begin(cuda::Context& context);
  void end(cuda::Context& context, OpId id, const void* arguments, std::size_t bytes);
  // Reports the ops that have ended since, in their order. After an error of the device it reports none.
  void tell();

 private:
  struct Timing {
    cudaEvent_t begin, end;
    OpId id;
    alignas(16) std::array<std::byte, op_bytes_max> arguments;
  };

  TimedOp reported_;
  EventPool events_;
  cudaEvent_t begin_ = nullptr;  // of the op that is being launched
  std::deque<Timing> timings_;   // not told yet, in order
};

}  // namespace holdfast::device
