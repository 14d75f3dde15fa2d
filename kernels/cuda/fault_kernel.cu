#include "kernels/cuda/fault_kernel.h"

#include <cstdint>

namespace holdfast::kernels::cuda {
namespace {

__device__ void abort_kernel() {
#ifdef HF_CUDA_EMULATED
  cuda_emulator::break_device(cudaErrorLaunchFailure);
#else
  __trap();
#endif
}

// `address` is on the first page, which is never mapped.
__device__ void read_memory([[maybe_unused]] const volatile int* address) {
#ifdef HF_CUDA_EMULATED
  cuda_emulator::break_device(cudaErrorIllegalAddress);
#else
  static_cast<void>(*address);
#endif
}

__global__ void break_device(DeviceFault fault, const volatile int* nowhere) {
  switch (fault) {
    case DeviceFault::trap:
      return abort_kernel();
    case DeviceFault::illegal_address:
      return read_memory(nowhere);
    case DeviceFault::endless:
      while (true) __nanosleep(1'000'000);
    case DeviceFault::wrong_product:
    case DeviceFault::wrong_products:
      return;  // of the CPU device alone
  }
}

}  // namespace

cudaError_t launch_fault_kernel(cudaStream_t stream, DeviceFault fault) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = stream;
  constexpr std::uintptr_t on_first_page = 64;
  return cudaLaunchKernelEx(&config, break_device, fault,
                            reinterpret_cast<const volatile int*>(on_first_page));
}

}  // namespace holdfast::kernels::cuda
