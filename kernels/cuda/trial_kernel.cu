#include "kernels/cuda/trial_kernel.h"

namespace holdfast::kernels::cuda {
namespace {

__global__ void write_answer(int* target) {
  *target = trial_answer;
}

}  // namespace

cudaError_t launch_trial(cudaStream_t stream, int* target) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, write_answer, target);
}

}  // namespace holdfast::kernels::cuda
