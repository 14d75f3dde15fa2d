// Matrix products of any shape and alignment on the plain arithmetic units, for what cuBLASLt does not take
// and to check it against. Each block computes a tile of C, each thread a square of it; operands pass through
// shared memory as fp32. Bits: an element is the sum over the depth in order, in chunks that are added in
// order, then the bias, then the residual or C; or the sum is multiplied by GELU's derivative.
#include "kernels/matmul.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/scalar.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int tile = 64;   // rows and columns of a block
constexpr int square = 4;  // rows and columns of a thread
constexpr int step = 16;   // of the depth, at once in shared memory
constexpr int block_threads = (tile / square) * (tile / square);
constexpr int tile_stride = tile + square;  // spreads columns over the banks, keeps squares aligned
constexpr std::int64_t chunk = 1024;        // longer sums would lose digits

// A matrix as a product sees it: element (i, d) of A is row i, of B column i, at depth d.
template <typename T>
struct Operand {
  const T* data;
  std::int64_t count, stride, depth_stride;
};

struct Sizes {
  std::int64_t k, ldc;
};

// Elements [first, first + tile) at depths [begin, begin + step); zeros outside. Neighbouring threads read
// neighbouring elements.
template <typename T>
__device__ void stage(const Operand<T>& from, std::int64_t first, std::int64_t begin, std::int64_t k,
                      float* to) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int item = thread; item < tile * step; item += block_threads) {
    const bool along_depth = from.depth_stride == 1;
    const int i = along_depth ? item / step : item % tile;
    const int d = along_depth ? item % step : item / tile;
    const bool exists = first + i < from.count && begin + d < k;
    to[d * tile_stride + i] =
        exists ? as_float(from.data[(first + i) * from.stride + (begin + d) * from.depth_stride]) : 0.0F;
  }
}

__device__ inline void multiply_square(const float* a, const float* b, float (&sums)[square][square]) {
#pragma unroll
  for (int d = 0; d < step; ++d) {
    float row[square], column[square];
    load<square>(a + d * tile_stride, row);
    load<square>(b + d * tile_stride, column);
#pragma unroll
    for (int i = 0; i < square; ++i) {
#pragma unroll
      for (int j = 0; j < square; ++j) sums[i][j] = fmaf(row[i], column[j], sums[i][j]);
    }
  }
}

// Computes c = a b + bias + added, or a b times the derivative of GELU at gelu_of; `added` is c itself where the
// product accumulates, the residual, or null.
template <typename T, typename C>
__global__ void __launch_bounds__(block_threads)
    multiply(Operand<T> a, Operand<T> b, const T* bias, const C* added, const C* gelu_of, C* c, Sizes sizes) {
  auto* a_tile = reinterpret_cast<float*>(dynamic_shared());
  float* b_tile = a_tile + step * tile_stride;
  const std::int64_t column_tiles = (b.count + tile - 1) / tile;
  const std::int64_t first_row = blockIdx.x / column_tiles * tile;
  const std::int64_t first_column = blockIdx.x % column_tiles * tile;
  const int row = static_cast<int>(threadIdx.x) / (tile / square) * square;
  const int column = static_cast<int>(threadIdx.x) % (tile / square) * square;

  float totals[square][square] = {}, sums[square][square] = {};
  for (std::int64_t begin = 0; begin < sizes.k; begin += step) {
    stage(a, first_row, begin, sizes.k, a_tile);
    stage(b, first_column, begin, sizes.k, b_tile);
    __syncthreads();
    multiply_square(a_tile + row, b_tile + column, sums);
    __syncthreads();
    if ((begin + step) % chunk != 0 && begin + step < sizes.k) continue;
#pragma unroll
    for (int i = 0; i < square; ++i) {
#pragma unroll
      for (int j = 0; j < square; ++j) {
        totals[i][j] += sums[i][j];
        sums[i][j] = 0.0F;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < square; ++i) {
#pragma unroll
    for (int j = 0; j < square; ++j) {
      const std::int64_t to_row = first_row + row + i, to_column = first_column + column + j;
      if (to_row >= a.count || to_column >= b.count) continue;
      const std::int64_t to = to_row * sizes.ldc + to_column;
      float value = totals[i][j];
      if (bias != nullptr) value += as_float(bias[to_column]);
      if (added != nullptr) value += as_float(added[to]);
      if (gelu_of != nullptr) value *= gelu_slope(as_float(gelu_of[to]));
      c[to] = from_float<C>(value);
    }
  }
}

template <typename T, typename C>
void launch_multiply(Context& context, const Matmul& op) {
  const Operand<T> a = {static_cast<const T*>(op.a), op.m, op.transpose_a ? 1 : op.lda,
                        op.transpose_a ? op.lda : 1};
  const Operand<T> b = {static_cast<const T*>(op.b), op.n, op.transpose_b ? op.ldb : 1,
                        op.transpose_b ? 1 : op.ldb};
  const std::int64_t row_tiles = (op.m + tile - 1) / tile, column_tiles = (op.n + tile - 1) / tile;
  launch(context, multiply<T, C>,
         {.blocks = blocks_for(row_tiles * column_tiles, 1),
          .threads = block_threads,
          .shared_bytes = 2 * step * tile_stride * sizeof(float)},
         a, b, static_cast<const T*>(op.bias), static_cast<const C*>(op.accumulate ? op.c : op.residual),
         static_cast<const C*>(op.gelu_of), static_cast<C*>(op.c), Sizes{.k = op.k, .ldc = op.ldc});
}

constexpr int slope_threads = 128;

// grid.x is rows, grid.y cuts them: no division.
__global__ void multiply_by_slopes(const float* gelu_of, float* c, std::int64_t columns, std::int64_t ldc) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * slope_threads + threadIdx.x;
  if (column >= columns) return;
  const std::int64_t at = blockIdx.x * ldc + column;
  c[at] *= gelu_slope(gelu_of[at]);
}

}  // namespace

void multiply_by_gelu_slopes(Context& context, const Matmul& op) {
  launch(context, multiply_by_slopes,
         {.blocks = {blocks_for(op.m, 1), blocks_for(op.n, slope_threads)}, .threads = slope_threads},
         static_cast<const float*>(op.gelu_of), static_cast<float*>(op.c), op.n, op.ldc);
}

void run_matmul(Context& context, const void* arguments) {
  const Matmul& op = *static_cast<const Matmul*>(arguments);
  if (op.m == 0 || op.n == 0) return;
  if (op.dtype == DType::fp32) return launch_multiply<float, float>(context, op);
  if (op.dtype_c == DType::fp32) return launch_multiply<BFloat16, float>(context, op);
  launch_multiply<BFloat16, BFloat16>(context, op);
}

}  // namespace holdfast::kernels::cuda
