#include "kernels/cuda/sm_90a/warpgroup_trial.h"

#include <cstdint>

#include "kernels/cuda/trial_kernel.h"

namespace holdfast::kernels::cuda {
namespace {

constexpr int warpgroup = 128;         // threads
constexpr unsigned short one = 0x3f80;  // in bf16

// Describes a matrix in shared memory without swizzling (PTX ISA, "Shared Memory Matrix Layout" of wgmma): core
// matrices of 8 x 16 bytes, 128 bytes apart along the sum and 256 across it.
__device__ std::uint64_t descriptor_of(const void* matrix) {
  const auto address = static_cast<std::uint64_t>(__cvta_generic_to_shared(matrix));
  constexpr std::uint64_t along = 128, across = 256;
  return ((address & 0x3ffff) >> 4) | (along >> 4) << 16 | (across >> 4) << 32;
}

// A product of 64 x 16 ones and 16 x 8 ones: 16 everywhere, however the layouts are read.
__global__ void __launch_bounds__(warpgroup) multiply_ones(int* target) {
  __shared__ alignas(128) unsigned short ones[2 * 64 * 16];
  for (unsigned i = threadIdx.x; i < 2 * 64 * 16; i += warpgroup) ones[i] = one;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before the asynchronous proxy reads
  __syncthreads();
  float sum[4] = {};
  const std::uint64_t matrix = descriptor_of(ones);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "l"(matrix));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               :
               : "memory");
  constexpr float expected = 16.0F;
  const bool right = sum[0] == expected && sum[1] == expected && sum[2] == expected && sum[3] == expected;
  const bool all_right = __syncthreads_and(right ? 1 : 0) != 0;
  if (threadIdx.x == 0) *target = all_right ? trial_answer : 0;
}

}  // namespace

cudaError_t launch_warpgroup_trial(cudaStream_t stream, int* target) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(warpgroup);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, multiply_ones, target);
}

}  // namespace holdfast::kernels::cuda
