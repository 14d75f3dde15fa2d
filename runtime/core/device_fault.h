// The ways in which a kernel breaks its device: what fault points ask for and devices do, for tests.
#pragma once

namespace holdfast::inline core {

enum class DeviceFault {
  trap,             // the kernel is aborted: cudaErrorLaunchFailure
  illegal_address,  // it reads memory that is not there: cudaErrorIllegalAddress
  endless,          // it never ends, and what stands behind it in the queue never runs
};

}  // namespace holdfast::inline core
