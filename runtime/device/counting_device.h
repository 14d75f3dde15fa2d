// A CPU device for planners: it counts the workspace that a device of these options would allocate, and
// allocates none of it.
//
//   device->begin_planning();             // forgets what was counted before
//   device->launch(...);                  // what a run will launch
//   HF_TRY_VOID(device->end_planning());
//   device->workspace_bytes();            // of these ops
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace holdfast::device {

// Makes the device, which runs no op. The requests must be such that KernelRegistry::choose() accepts them.
std::unique_ptr<Device> make_counting_cpu_device(const CpuDeviceOptions& options);

}  // namespace holdfast::device
