#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/vector.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int block_warps = 8;
constexpr std::int64_t blocks_wanted =
    528;  // four on each multiprocessor of an H100; of every GPU, for the bits
constexpr std::int64_t group_rows_min = 32;

// Cut of the rows, which follows from the shape alone.
struct Cut {
  std::int64_t tiles = 0;  // of 32 packs of columns
  std::int64_t groups = 1, group_rows = 0;
};
Cut cut_of(const BiasGradient& op) {
  const std::int64_t tile_columns = 32 * 16 / static_cast<std::int64_t>(bytes_of(op.dtype));
  Cut cut;
  cut.tiles = (op.columns + tile_columns - 1) / tile_columns;
  const std::int64_t groups = std::max<std::int64_t>(1, blocks_wanted / std::max<std::int64_t>(1, cut.tiles));
  cut.group_rows = std::max(group_rows_min, (op.rows + groups - 1) / groups);
  cut.groups = std::max<std::int64_t>(1, (op.rows + cut.group_rows - 1) / cut.group_rows);
  return cut;
}

// A block adds a group of rows in a tile of columns: each warp every eighth row, then the warps in order.
template <typename T, bool whole>
__global__ void partial_sums(BiasGradient op, std::int64_t group_rows, float* partials) {
  constexpr int size = pack_size<T>;
  __shared__ float of_warps[block_warps][32 * size];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * 32 * size, first = tile + lane * size;
  const std::int64_t begin = blockIdx.y * group_rows, end = min(begin + group_rows, op.rows);
  float sums[size] = {};
  if (first < op.columns) {
    const T* const dy = static_cast<const T*>(op.dy);
#pragma unroll 4
    for (std::int64_t row = begin + warp; row < end; row += block_warps) {
      float values[size];
      load_part<whole>(dy + row * op.columns, first, op.columns, values);
#pragma unroll
      for (int i = 0; i < size; ++i) sums[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < size; ++i) of_warps[warp][lane * size + i] = sums[i];
  __syncthreads();
  const unsigned column = threadIdx.x;
  if (column >= 32 * size || tile + column >= op.columns) return;
  float sum = of_warps[0][column];
  for (int other = 1; other < block_warps; ++other) sum += of_warps[other][column];
  partials[blockIdx.y * op.columns + tile + column] = sum;
}

}  // namespace

void prepare_bias_gradient(Context& context, const void* arguments) {
  const BiasGradient& op = *static_cast<const BiasGradient*>(arguments);
  context.request_workspace(static_cast<std::size_t>(cut_of(op).groups * op.columns) * sizeof(float));
}

void run_bias_gradient(Context& context, const void* arguments) {
  const BiasGradient& op = *static_cast<const BiasGradient*>(arguments);
  const Cut cut = cut_of(op);
  float* const partials = reinterpret_cast<float*>(context.workspace());
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_whole<T>(
        op.columns,
        [&](auto whole) {
          launch(context, partial_sums<T, whole>,
                 {.blocks = {blocks_for(cut.tiles, 1), static_cast<unsigned>(cut.groups)},
                  .threads = 32 * block_warps},
                 op, cut.group_rows, partials);
        },
        op.dy);
  });
  add_column_sums(context, {.partials = partials,
                            .groups = cut.groups,
                            .columns = op.columns,
                            .targets = {op.gradient},
                            .accumulate = op.accumulate});
}

}  // namespace holdfast::kernels::cuda
