// The one symbol of libholdfast_cuda.so that can be seen from outside.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/table.h"

namespace holdfast {

extern "C" const CudaModule* holdfast_cuda_module();

const CudaModule* holdfast_cuda_module() {
  static constexpr CudaModule module = {
      .registry = cuda::registry, .devices = cuda::devices, .make_device = cuda::make_device};
  return &module;
}

}  // namespace holdfast
