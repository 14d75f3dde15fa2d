// CallWatch sees calls of ops on a CPU device right before and right after they run, while nothing else uses their memory: what
// an inspector of launches (runtime/device/op_inspector.h) is too early for.
//
//   if (auto* const watched = dynamic_cast<WatchedCalls*>(&device)) watched->watch_calls(&watch);
#pragma once

#include "kernels/call_filter.h"
#include "kernels/implementation.h"
#include "kernels/op.h"

namespace holdfast::device {

// Both functions are called on the thread of the queue. `arguments` is the struct of the op.
class CallWatch {
 public:
  virtual ~CallWatch() = default;
  // `kernel` is what computes the call.
  virtual void before(OpId id, const CallPlace& place, const void* arguments,
                      const Implementation& kernel) = 0;
  virtual void after(OpId id, const void* arguments) = 0;
};

// WatchedCalls is what a device can do besides whose calls can be watched.
class WatchedCalls {
 public:
  // Makes `watch` see every call from now on; null ends that. It outlives its use. Called while nothing is launched; waits for
  // what was.
  virtual void watch_calls(CallWatch* watch) = 0;

 protected:
  ~WatchedCalls() = default;
};

}  // namespace holdfast::device
