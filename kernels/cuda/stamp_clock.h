// When the stream of a GPU gets to a point, on the host's clock: an event there, and the time between events.
// The first event is waited for, so that the two clocks are known to agree at one point (no longer than a
// second: where the stream is busy for longer, they agree when somebody looks); each later one is placed by
// the time since the one before, which is short, so that a float of milliseconds holds it exactly enough.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>

#include "kernels/cuda/context.h"
#include "kernels/cuda/event_pool.h"
#include "runtime/core/span_recorder.h"

namespace holdfast::cuda {

// Used by the launching thread only. Outlived by the stream. Targets that are not told when it goes are left
// as they are.
class StampClock {
 public:
  explicit StampClock(Context& context);
  ~StampClock();
  StampClock(const StampClock&) = delete;
  StampClock& operator=(const StampClock&) = delete;

  void stamp(Context& context, Stamp& target);
  // Writes the targets that the stream has got to. After an error of the device none.
  void tell();

 private:
  bool find_origin();

  struct Pending {
    cudaEvent_t event;
    Stamp* target;
  };

  EventPool events_;
  cudaEvent_t last_ = nullptr;   // told at last, or the first
  double last_ns_ = 0.0;         // its time on the host's clock, counted from origin_ns_
  std::int64_t origin_ns_ = 0;   // 0: not known yet
  std::deque<Pending> pending_;  // in order
};

}  // namespace holdfast::cuda
