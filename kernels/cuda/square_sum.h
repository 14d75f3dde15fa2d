// Computes block sums of squares, in double, and digests: of given values (SquareSum) and of sums while they are
// made (Accumulate). A warp has a block of 4,096: element i of each 32 belongs to lane i, and the lanes are added
// in the order of kernels/cpu/ops/square_sum.h. So the sums have the bits of those that the CPU makes.
#pragma once

#include "kernels/cuda/digest_weight.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "runtime/core/block.h"

namespace holdfast::kernels::cuda {

inline constexpr int square_sum_warps = 4;
inline constexpr std::uint32_t digest_step_of_warp = digest_power(32);

// Returns the grid for square_sums of `count` values.
inline Grid square_sums_grid(std::int64_t count) {
  return {.blocks = blocks_for(count, square_sum_warps * static_cast<std::int64_t>(block_elements)),
          .threads = 32 * square_sum_warps};
}

// Sets sums[b] and, with them, digests[b] to those of block b of `count` values. Where the values can be written
// (Values is float*), `source` is added to them first.
template <bool with_digests, typename Values>
__global__ void square_sums(Values values, const float* source, std::int64_t count, double* sums,
                            std::uint64_t* digests) {
  constexpr bool accumulates = std::is_same_v<Values, float*>;
  constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
  constexpr int batch = 16;  // number of reads in flight
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * square_sum_warps + threadIdx.x / 32;
  const std::int64_t end = min((index + 1) * block, count);
  double sum = 0;
  std::uint64_t digest = 0;
  std::uint32_t weight = 1;
  if constexpr (with_digests) weight = digest_weight<32>(threadIdx.x % 32);
  for (std::int64_t first = index * block; first < end; first += batch * 32) {
    const std::int64_t mine = first + threadIdx.x % 32;
    float value[batch], more[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      value[i] = mine + 32 * i < end ? values[mine + 32 * i] : 0.0F;
      if constexpr (accumulates) more[i] = mine + 32 * i < end ? source[mine + 32 * i] : 0.0F;
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if constexpr (accumulates) {
        value[i] += more[i];
        if (mine + 32 * i < end) values[mine + 32 * i] = value[i];
      }
      sum = fma(static_cast<double>(value[i]), static_cast<double>(value[i]), sum);
      if constexpr (with_digests) {
        digest += static_cast<std::uint64_t>(weight) * __float_as_uint(value[i]);
        weight *= digest_step_of_warp;
      }
    }
  }
#pragma unroll
  for (const int flip : {8, 16, 4, 2, 1}) sum += __shfl_xor_sync(all_lanes, sum, flip);
  if constexpr (with_digests) digest = warp_reduce(digest, Sum{});
  if (threadIdx.x % 32 != 0 || index * block >= count) return;
  sums[index] = sum;
  if constexpr (with_digests) digests[index] = digest;
}

// Launches that of an op; `digests` may be null.
template <typename Values>
void launch_square_sums(Context& context, Values values, const float* source, std::int64_t count,
                        double* sums, std::uint64_t* digests) {
  launch(context, digests != nullptr ? square_sums<true, Values> : square_sums<false, Values>,
         square_sums_grid(count), values, source, count, sums, digests);
}

}  // namespace holdfast::kernels::cuda
