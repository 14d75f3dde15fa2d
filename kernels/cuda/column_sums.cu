#include "kernels/cuda/column_sums.h"

#include "kernels/cuda/launch.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int block_columns = 32, block_warps = 8;

// A lane per column; each warp adds every eighth group, then the warps are added in order.
__global__ void column_sums(ColumnSums sums) {
  __shared__ float of_warps[block_warps][block_columns];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * block_columns + lane;
  const std::int64_t stride = sums.target_count * sums.columns;
  float sum = 0.0F;
  if (column < sums.columns) {
    const float* const partials = sums.partials + blockIdx.y * sums.columns + column;
#pragma unroll 8
    for (std::int64_t group = warp; group < sums.groups; group += block_warps)
      sum += partials[group * stride];
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= sums.columns) return;
  for (int other = 1; other < block_warps; ++other) sum += of_warps[other][lane];
  float* const targets = blockIdx.y == 0   ? sums.targets[0]
                         : blockIdx.y == 1 ? sums.targets[1]
                                           : sums.targets[2];
  float& target = targets[column];
  target = sums.accumulate ? target + sum : sum;
}

}  // namespace

void add_column_sums(Context& context, const ColumnSums& sums) {
  launch(context, column_sums,
         {.blocks = {blocks_for(sums.columns, block_columns), static_cast<unsigned>(sums.target_count)},
          .threads = 32 * block_warps},
         sums);
}

}  // namespace holdfast::kernels::cuda
