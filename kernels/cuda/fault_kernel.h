// The kernels that break a GPU on purpose (Device::launch_fault).
#pragma once

#include <cuda_runtime.h>

#include "runtime/core/injected_fault.h"

namespace holdfast::kernels::cuda {

// Puts the kernel on the stream. The error is returned by whichever call waits for the stream later.
cudaError_t launch_fault_kernel(cudaStream_t stream, DeviceFault fault);

}  // namespace holdfast::kernels::cuda
