// Sums and maxima over the threads of a warp or a block, in an order that follows from the number of threads
// alone: the same bits in every run. Every thread of the warp or block must call; every thread gets the
// result.
#pragma once

#include <cuda_runtime.h>

namespace holdfast::kernels::cuda {

inline constexpr unsigned all_lanes = 0xffffffffU;

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
  static constexpr float identity = 0.0F;
};
struct Max {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
  static constexpr float identity = -INFINITY;
};

template <typename Combine, typename T>
__device__ T warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int flip = 16; flip > 0; flip /= 2) value = combine(value, __shfl_xor_sync(all_lanes, value, flip));
  return value;
}

// Combines a value over the block. The number of threads is a multiple of 32. Can be called again at once.
template <typename Combine, typename T>
__device__ T block_reduce(T value, Combine combine) {
  __shared__ T of_warps[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = warp_reduce(value, combine);
  __syncthreads();  // the readers of the call before are done
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  value = warp_reduce(lane < warps ? of_warps[lane] : static_cast<T>(Combine::identity), combine);
  return value;
}

// Computes the sums of several values at once over each team of `warps` (a power of two) neighbouring warps.
// All threads of the block call, or, where a team is one warp, all of the warp.
template <int count>
__device__ void team_sum(float (&values)[count], unsigned warps) {
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = warp_reduce(values[i], Sum{});
  if (warps == 1) return;
  __shared__ float of_warps[count][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // the readers of the call before are done
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (lane == 0) of_warps[i][warp] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = warp_reduce(lane < warps ? of_warps[i][(warp & ~(warps - 1)) + lane] : 0.0F, Sum{});
  }
}

}  // namespace holdfast::kernels::cuda
