#include "kernels/tree_sum.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int threads = 256;

// sum = the tree of the parts from `begin` on, at `first`.
template <int count, int begin, int size>
__device__ void tree(const TreeSum& op, std::int64_t first, float (&sum)[size]) {
  if constexpr (count == 1) {
    load<size>(op.parts[begin] + first, sum);
  } else {
    float right[size];
    tree<count / 2, begin>(op, first, sum);
    tree<count / 2, begin + count / 2>(op, first, right);
#pragma unroll
    for (int i = 0; i < size; ++i) sum[i] += right[i];
  }
}

// Each thread has `size` neighbouring columns; `blocks_per_row` neighbouring blocks have a row.
template <typename T, int size, int part_count>
__global__ void __launch_bounds__(threads) tree_sum(TreeSum op, unsigned blocks_per_row) {
  const std::int64_t row = blockIdx.x / blocks_per_row;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.x % blocks_per_row) * threads + threadIdx.x) * size;
  if (column >= op.columns) return;
  const std::int64_t first = row * op.columns + column;
  float sum[size];
  tree<part_count, 0>(op, first, sum);
  if (op.bias != nullptr) {
    float bias[size];
    load<size>(static_cast<const T*>(op.bias) + column, bias);
#pragma unroll
    for (int i = 0; i < size; ++i) sum[i] += bias[i];
  }
  if (op.residual != nullptr) {
    float residual[size];
    load<size>(static_cast<const T*>(op.residual) + first, residual);
#pragma unroll
    for (int i = 0; i < size; ++i) sum[i] += residual[i];
  }
  store<size>(static_cast<T*>(op.y) + first, sum);
}

template <typename T, int size>
void launch_tree_sum(Context& context, const TreeSum& op) {
  const unsigned blocks_per_row = blocks_for(op.columns, threads * size);
  for_power_of_two<TreeSum::parts_max>(op.part_count, [&](auto part_count) {
    launch(context, tree_sum<T, size, part_count>,
           {.blocks = blocks_for(op.rows * blocks_per_row, 1), .threads = threads}, op, blocks_per_row);
  });
}

}  // namespace

void run_tree_sum(Context& context, const void* arguments) {
  TreeSum op = *static_cast<const TreeSum*>(arguments);
  if (op.bias == nullptr) {  // then rows need not be told apart
    op.columns *= op.rows;
    op.rows = 1;
  }
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    bool packs = packs_fit<T>(op.columns, op.bias, op.residual, op.y);
    for (int i = 0; i < op.part_count; ++i) packs = packs && packs_fit<T>(op.columns, op.parts[i]);
    packs ? launch_tree_sum<T, pack_size<T>>(context, op) : launch_tree_sum<T, 1>(context, op);
  });
}

}  // namespace holdfast::kernels::cuda
