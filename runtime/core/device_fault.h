// DeviceFault: the ways in which a kernel breaks its device, for tests: fault points request them and devices
// perform them.
#pragma once

namespace holdfast::inline core {

enum class DeviceFault {
  trap,             // the kernel is aborted: cudaErrorLaunchFailure
  illegal_address,  // it reads unmapped memory: cudaErrorIllegalAddress
  endless,          // it never ends, and later work in the queue never runs
};

}  // namespace holdfast::inline core
