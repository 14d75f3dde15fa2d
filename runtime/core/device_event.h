// DeviceEvent: a point in a queue of a device (cudaEvent_t), by which two queues of one device wait for each other
// without the host: that of the kernels (Device) and that of a transport (parallel/comm/transport.h).
//
//   queue.record(event);     // reached when the device has run everything that is in this queue now
//   other.wait_for(event);   // what is put into that queue from now on runs after this
//
// wait_for() means the latest record() before it; the event may be recorded again at once. An event that was never
// recorded counts as reached.
#pragma once

namespace holdfast::core {

using DeviceEvent = struct DeviceEventHandle*;

// Queue of a device, as seen by a transport of that device's memory. One thread calls it; neither call waits.
// Errors are those of the device, which its owner looks at.
class DeviceQueue {
 public:
  virtual void record(DeviceEvent event) = 0;
  virtual void wait_for(DeviceEvent event) = 0;

 protected:
  ~DeviceQueue() = default;
};

}  // namespace holdfast::core
