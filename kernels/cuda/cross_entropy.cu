// A block per row. Its threads make one pass over the logits, with a running maximum and the sum of powers
// relative to it, and a second one, which still finds them in the L2 cache, that writes the gradient.
#include "kernels/cross_entropy.h"

#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

namespace holdfast::cuda {

namespace {

constexpr int threads_max = 1024;

// e^difference. The difference of two logits is exact enough to be taken first: what is lost by the product
// is relative to a term that is small.
__device__ float power(float difference) {
  constexpr float log2_e = 1.4426950408889634F;
  return exp2f(difference * log2_e);
}

// sum = sum of e^(x - largest) over what was seen.
struct Softmax {
  float largest = -INFINITY;
  float sum = 0.0F;

  template <int size>
  __device__ void see(const float (&x)[size]) {
    float larger = largest;
#pragma unroll
    for (int i = 0; i < size; ++i) larger = Max{}(x[i], larger);
    const float base = larger > -INFINITY ? larger : 0.0F;  // no infinity minus infinity
    sum *= power(largest - base);
#pragma unroll
    for (int i = 0; i < size; ++i) sum += power(x[i] - base);
    largest = larger;
  }
};

// Of what all threads of the block saw.
__device__ Softmax of_block(const Softmax& mine) {
  Softmax all;
  all.largest = block_reduce(mine.largest, Max{});
  const float base = all.largest > -INFINITY ? all.largest : 0.0F;
  all.sum = block_reduce(mine.sum * power(mine.largest - base), Sum{});
  return all;
}

template <bool whole, typename T>
__device__ void write_zeros(T* row, int count) {
  constexpr int size = pack_size<T>;
  const float zeros[size] = {};
  for (int first = static_cast<int>(threadIdx.x) * size; first < count;
       first += static_cast<int>(blockDim.x) * size) {
    store_part<whole>(row, first, count, zeros);
  }
}

// Backwards: what was read last is nearest.
template <bool whole, typename T>
__device__ void write_gradient(const CrossEntropy& op, T* row, int target, const Softmax& of_row) {
  constexpr int size = pack_size<T>;
  const int stride = static_cast<int>(op.row_stride), vocabulary = static_cast<int>(op.vocabulary);
  const int step = static_cast<int>(blockDim.x) * size, mine = static_cast<int>(threadIdx.x) * size;
  const float factor = op.gradient_scale / of_row.sum;
  for (int first = (stride - 1) / step * step + mine; first >= 0; first -= step) {
    if (first >= stride) continue;
    float x[size];
    load_part<whole>(row, first, stride, x);
#pragma unroll
    for (int i = 0; i < size; ++i)
      x[i] = first + i < vocabulary ? power(x[i] - of_row.largest) * factor : 0.0F;
    if (target >= first && target < first + size) {
#pragma unroll
      for (int i = 0; i < size; ++i) x[i] -= first + i == target ? op.gradient_scale : 0.0F;
    }
    store_part<whole>(row, first, stride, x);
  }
}

template <typename T, bool whole>
__global__ void __launch_bounds__(threads_max) cross_entropy(CrossEntropy op, bool writes_gradient) {
  constexpr int size = pack_size<T>;
  const std::int64_t row = blockIdx.x;
  T* const x = static_cast<T*>(op.logits) + row * op.row_stride;
  const int target = op.targets[row], vocabulary = static_cast<int>(op.vocabulary);
  if (target < 0) {
    if (threadIdx.x == 0) op.losses[row] = 0.0F;
    if (writes_gradient) write_zeros<whole>(x, static_cast<int>(op.row_stride));
    return;
  }
  const float x_target =
      threadIdx.x == 0 ? as_float(x[target]) : 0.0F;  // before its gradient takes its place
  Softmax mine;
  const int step = static_cast<int>(blockDim.x) * size;
#pragma unroll 4
  for (int first = static_cast<int>(threadIdx.x) * size; first < vocabulary; first += step) {
    float logits[size];
    load_part<whole>(x, first, vocabulary, logits, -INFINITY);
    if (whole && first + size > vocabulary) {
#pragma unroll
      for (int i = 0; i < size; ++i) logits[i] = first + i < vocabulary ? logits[i] : -INFINITY;
    }
    mine.see(logits);
  }
  const Softmax of_row = of_block(mine);
  if (threadIdx.x == 0) {
    op.losses[row] =
        static_cast<float>(log(static_cast<double>(of_row.sum)) +
                           (static_cast<double>(of_row.largest) - static_cast<double>(x_target)));
  }
  if (writes_gradient) write_gradient<whole>(op, x, target, of_row);
}

// Thread i adds every 1,024th value from i on.
__global__ void __launch_bounds__(threads_max)
    loss_sum(const float* values, std::int64_t count, double* sum) {
  double mine = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += threads_max) mine += static_cast<double>(values[i]);
  mine = block_reduce(mine, Sum{});
  if (threadIdx.x == 0) *sum = mine;
}

}  // namespace

void run_cross_entropy(Context& context, const void* arguments) {
  const CrossEntropy& op = *static_cast<const CrossEntropy*>(arguments);
  HF_CHECK(op.row_stride < (std::int64_t{1} << 30), "rows of more than 2^30 logits");
  const bool writes_gradient = std::fpclassify(op.gradient_scale) != FP_ZERO;
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const std::int64_t packs = (op.row_stride + pack_size<T> - 1) / pack_size<T>;
    const int threads = static_cast<int>(std::min<std::int64_t>((packs + 31) / 32 * 32, threads_max));
    with_whole<T>(
        op.row_stride,
        [&](auto whole) {
          launch(context, cross_entropy<T, whole>, {.blocks = blocks_for(op.rows, 1), .threads = threads}, op,
                 writes_gradient);
        },
        op.logits);
  });
}

void run_loss_sum(Context& context, const void* arguments) {
  const LossSum& op = *static_cast<const LossSum*>(arguments);
  launch(context, loss_sum, {.blocks = 1, .threads = threads_max}, op.values, op.count, op.sum);
}

}  // namespace holdfast::cuda
