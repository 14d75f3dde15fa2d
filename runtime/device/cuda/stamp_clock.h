// StampClock: measures when the stream of a GPU reaches a point, on the host's clock, by an event there and
// the time between events. The first events are waited for, so that the two clocks are known to agree at one
// point (no longer than a second: where the stream is busy for longer, they agree at the next poll); each
// later one is placed by the time since the one before, which is short, so that a float of milliseconds holds
// it exactly enough.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>

#include "kernels/cuda/context.h"
#include "runtime/device/cuda/event_pool.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::device {

// Used by the launching thread only. The stream outlives the clock. Targets without a time when the clock is
// destroyed are left unchanged.
class StampClock {
 public:
  explicit StampClock(cuda::Context& context);
  ~StampClock();
  StampClock(const StampClock&) = delete;
  StampClock& operator=(const StampClock&) = delete;

  void stamp(cuda::Context& context, Stamp& target);
  // Writes the targets that the stream has reached. After an error of the device it writes none.
  void tell();

 private:
  // An event, and the time when the stream reached it on the host's clock, plus or minus half of the doubt.
  struct Origin {
    cudaEvent_t event = nullptr;
    bool known = false;
    std::int64_t time_ns = 0;
    std::int64_t doubt_ns = 0;
  };
  Origin look_at_event(cuda::Context& context, std::int64_t end_ns);
  bool find_origin();

  struct Pending {
    cudaEvent_t event;
    Stamp* target;
  };

  EventPool events_;
  Origin origin_;                // its event may have been recorded again since
  cudaEvent_t last_ = nullptr;   // told at last, or that of the origin
  double last_ns_ = 0.0;         // its time on the host's clock, counted from the origin's
  std::deque<Pending> pending_;  // in order
};

}  // namespace holdfast::device
