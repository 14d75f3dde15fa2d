#include "kernels/cuda/sm_90a/warpgroup_trial.h"

#include "kernels/cuda/sm_90a/warpgroup.h"
#include "kernels/cuda/trial_kernel.h"

namespace holdfast::kernels::cuda {
namespace {

constexpr unsigned short one = 0x3f80;  // in bf16
constexpr int elements = 2 * 64 * 16;

// A product of 64 x 16 ones and 16 x 8 ones: 16 everywhere, however the layouts are read.
__global__ void __launch_bounds__(warpgroup_threads) multiply_ones(int* target) {
  auto* const ones = reinterpret_cast<unsigned short*>(aligned_shared());
  for (unsigned i = threadIdx.x; i < elements; i += warpgroup_threads) ones[i] = one;
  fence_async_proxy();
  __syncthreads();
  float sums[1][4] = {};
  const std::uint64_t matrix = matrix_of(shared_address(aligned_shared()), 128, 256, Swizzle::none);
  fence_products();
  multiply_shared<false>(sums, matrix, matrix, true);
  commit_products();
  await_products<0>(sums);
  constexpr float expected = 16.0F;
  bool right = true;
  for (const float sum : sums[0]) right = right && __float_as_uint(sum) == __float_as_uint(expected);
  const bool all_right = __syncthreads_and(right ? 1 : 0) != 0;
  if (threadIdx.x == 0) *target = all_right ? trial_answer : 0;
}

}  // namespace

cudaError_t launch_warpgroup_trial(cudaStream_t stream, int* target) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(warpgroup_threads);
  config.dynamicSmemBytes = elements * sizeof(one);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, multiply_ones, target);
}

}  // namespace holdfast::kernels::cuda
