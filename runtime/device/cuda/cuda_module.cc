// The one symbol of libholdfast_cuda.so that can be seen from outside.
#include <cuda_runtime.h>

#include "kernels/cuda/table.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/nccl_loader.h"
#include "runtime/device/cuda/trial.h"

namespace holdfast::device {

extern "C" const CudaModule* holdfast_cuda_module();

const CudaModule* holdfast_cuda_module() {
  static constexpr CudaModule module = {.built_for = cuda_built_for,
                                        .runtime_version = CUDART_VERSION,
                                        .registry = cuda::registry,
                                        .devices = cuda_devices,
                                        .try_device = try_device,
                                        .try_own_instructions = try_own_instructions,
                                        .make_device = make_cuda_device,
                                        .load_nccl = load_nccl};
  return &module;
}

}  // namespace holdfast::device
