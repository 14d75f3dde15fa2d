// Computes block sums of squares, in double, and digests: of given values (SquareSum) and of sums while they are
// made (Accumulate). A warp has a block of 4,096: element i of each 32 belongs to lane i, and the lanes are added
// in the order of kernels/cpu/ops/square_sum.h. So the sums have the bits of those that the CPU makes.
#pragma once

#include <algorithm>

#include "kernels/cuda/digest_weight.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/elementwise.h"
#include "runtime/core/block.h"

namespace holdfast::kernels::cuda {

inline constexpr int square_sum_warps = 4;
inline constexpr std::uint32_t digest_step_of_warp = digest_power(32);

// Holds the segments that one launch takes: they travel as an argument of the kernel.
struct SegmentBatch {
  static constexpr int capacity = 64;
  BlockSegment segments[capacity] = {};
  int count = 0;
  std::int64_t begin = 0, end = 0;  // their blocks
};

// Sets sums[b] and, with them, digests[b] to those of the blocks of the batch. Where the values can be written (Values is
// float*), `source` is added to them first.
template <bool with_digests, typename Values>
__global__ void square_sums(Values values, const float* source, const __grid_constant__ SegmentBatch segments,
                            double* sums, std::uint64_t* digests) {
  constexpr bool accumulates = std::is_same_v<Values, float*>;
  constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);
  constexpr int batch = 16;  // number of reads in flight
  const std::int64_t index =
      segments.begin + static_cast<std::int64_t>(blockIdx.x) * square_sum_warps + threadIdx.x / 32;
  if (index >= segments.end) return;
  int at = 0;
  while (at + 1 < segments.count && segments.segments[at + 1].first_block <= index) ++at;
  const std::int64_t begin =
      segments.segments[at].first + (index - segments.segments[at].first_block) * block;
  const std::int64_t end = min(begin + block, segments.segments[at].first + segments.segments[at].count);
  double sum = 0;
  std::uint64_t digest = 0;
  std::uint32_t weight = 1;
  if constexpr (with_digests) weight = digest_weight<32>(threadIdx.x % 32);
  for (std::int64_t first = begin; first < end; first += batch * 32) {
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
  if (threadIdx.x % 32 != 0) return;
  sums[index] = sum;
  if constexpr (with_digests) digests[index] = digest;
}

// Launches that of an op's segments; `digests` may be null.
template <typename Values, typename Op>
void launch_square_sums(Context& context, const Op& op, Values values, const float* source, double* sums,
                        std::uint64_t* digests) {
  const BlockSegment whole = {.count = op.count};
  const BlockSegment* const segments = op.segment_count > 0 ? op.segments : &whole;
  const std::int64_t count = std::max<std::int64_t>(op.segment_count, 1);
  for (std::int64_t first = 0; first < count; first += SegmentBatch::capacity) {
    SegmentBatch batch = {
        .count = static_cast<int>(std::min<std::int64_t>(count - first, SegmentBatch::capacity))};
    std::copy_n(segments + first, batch.count, batch.segments);
    batch.begin = batch.segments[0].first_block;
    batch.end = blocks_of(batch.segments, batch.count, 0);
    const Grid grid = {.blocks = blocks_for(batch.end - batch.begin, square_sum_warps),
                       .threads = 32 * square_sum_warps};
    launch(context, digests != nullptr ? square_sums<true, Values> : square_sums<false, Values>, grid, values,
           source, batch, sums, digests);
  }
}

}  // namespace holdfast::kernels::cuda
