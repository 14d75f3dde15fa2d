// A block per row. Its threads make one pass over the logits, with a running maximum and the sum of powers
// relative to it, and a second one that writes the gradient: from shared memory, where the first pass puts a
// row that fits, else from the L2 cache. Of slices each pass is an op of its own, and between them a thread
// per row joins what the slices know.
#include "kernels/cross_entropy.h"

#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/scalar.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int threads_max = 1024;

// Largest row that is kept: 50,688 bf16 logits. Every GPU since sm_80 gives a block that much. One of sm_90 or
// sm_100 (228 KiB of a multiprocessor) gives it to two blocks at once, as many as their threads allow; on sm_80
// (164 KiB) and sm_89 (100 KiB) a row of more than 81 or 49 KiB leaves room for one block only. Whether it is
// still faster there has not been measured; the bits are the same.
constexpr std::size_t kept_row_bytes_max = 99 << 10;

// Returns the value that exponents are taken relative to: it avoids infinity minus infinity where all values
// are -infinity.
__device__ float base_of(float largest) {
  return largest > -INFINITY ? largest : 0.0F;
}

// sum = sum of e^(x - largest) over what was seen. The difference of two logits is exact enough to be taken
// first: what is lost of its power is relative to a term that is small.
struct Softmax {
  float largest = -INFINITY;
  float sum = 0.0F;

  template <int size>
  __device__ void see(const float (&x)[size]) {
    float larger = largest;
#pragma unroll
    for (int i = 0; i < size; ++i) larger = fmaxf(x[i], larger);
    const float base = base_of(larger);
    sum *= exp_approximate(largest - base);
#pragma unroll
    for (int i = 0; i < size; ++i) sum += exp_approximate(x[i] - base);
    largest = larger;
  }
};

// Combines the statistics of all threads of the block.
__device__ Softmax of_block(const Softmax& mine) {
  Softmax all;
  all.largest = block_reduce(mine.largest, Max{});
  all.sum = block_reduce(mine.sum * exp_approximate(mine.largest - base_of(all.largest)), Sum{});
  return all;
}

// Computes the statistics of the columns of a row, by all threads of the block. Each thread copies what it
// has read to `kept`, unless that is null.
template <bool whole, typename T>
__device__ Softmax softmax_of(const T* x, int columns, T* kept = nullptr) {
  constexpr int size = pack_size<T>;
  Softmax mine;
  const int step = static_cast<int>(blockDim.x) * size;
#pragma unroll 4
  for (int first = static_cast<int>(threadIdx.x) * size; first < columns; first += step) {
    float logits[size];
    if constexpr (whole) {
      const auto pack = *reinterpret_cast<const Pack<T, size>*>(x + first);
      if (kept != nullptr) *reinterpret_cast<Pack<T, size>*>(kept + first) = pack;
      unpack(pack, logits);
      if (first + size > columns) {
#pragma unroll
        for (int i = 0; i < size; ++i) logits[i] = first + i < columns ? logits[i] : -INFINITY;
      }
    } else {
      load_part<false>(x, first, columns, logits, -INFINITY);
    }
    mine.see(logits);
  }
  return of_block(mine);
}

__device__ float loss_of(const SoftmaxStatistics& row) {
  return static_cast<float>(log(static_cast<double>(row.sum)) +
                            (static_cast<double>(row.largest) - static_cast<double>(row.target_logit)));
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

// Reads the logits from `from`: the row itself, or what this thread's softmax_of() has kept of it. Goes
// backwards: what was read last is nearest. A target that is not a column is elsewhere.
template <bool whole, typename T>
__device__ void write_gradient(T* row, const T* from, int columns, int stride, std::int64_t target,
                               const Softmax& of_row, float scale) {
  constexpr int size = pack_size<T>;
  const int step = static_cast<int>(blockDim.x) * size, mine = static_cast<int>(threadIdx.x) * size;
  const float factor = scale / of_row.sum;
  for (int first = (stride - 1) / step * step + mine; first >= 0; first -= step) {
    if (first >= stride) continue;
    float x[size] = {};
    if (first < columns) load_part<whole>(from, first, stride, x);
    const bool all = first + size <= columns;  // else the end of the row, which is padding, is in it
#pragma unroll
    for (int i = 0; i < size; ++i) {
      x[i] = exp_approximate(x[i] - of_row.largest) * factor;
      if (!all && first + i >= columns) x[i] = 0.0F;
    }
    if (target >= first && target < first + size && target < columns) {
#pragma unroll
      for (int i = 0; i < size; ++i) x[i] -= first + i == target ? scale : 0.0F;
    }
    store_part<whole>(row, first, stride, x);
  }
}

template <typename T, bool whole, bool keeps_row>
__global__ void __launch_bounds__(threads_max) cross_entropy(CrossEntropy op, bool writes_gradient) {
  const std::int64_t row = blockIdx.x;
  T* const x = static_cast<T*>(op.logits) + row * op.row_stride;
  const int target = op.targets[row], stride = static_cast<int>(op.row_stride);
  if (target < 0) {
    if (threadIdx.x == 0) op.losses[row] = 0.0F;
    if (writes_gradient) write_zeros<whole>(x, stride);
    return;
  }
  const float x_target =
      threadIdx.x == 0 ? as_float(x[target]) : 0.0F;  // before its gradient takes its place
  const int columns = static_cast<int>(op.vocabulary);
  T* const kept = keeps_row ? reinterpret_cast<T*>(dynamic_shared()) : nullptr;
  const Softmax of_row = softmax_of<whole>(x, columns, kept);
  if (threadIdx.x == 0)
    op.losses[row] = loss_of({.largest = of_row.largest, .sum = of_row.sum, .target_logit = x_target});
  if (writes_gradient)
    write_gradient<whole>(x, keeps_row ? kept : x, columns, stride, target, of_row, op.gradient_scale);
}

template <typename T, bool whole>
__global__ void __launch_bounds__(threads_max) slice_statistics(CrossEntropySlice op) {
  const std::int64_t row = blockIdx.x;
  const T* const x = static_cast<const T*>(op.logits) + row * op.row_stride;
  const int columns = op.targets[row] < 0 ? 0 : static_cast<int>(op.columns);
  const Softmax of_row = softmax_of<whole>(x, columns);
  if (threadIdx.x > 0) return;
  const std::int64_t target = op.targets[row] - op.first_token;
  op.statistics[row] = {.largest = of_row.largest,
                        .sum = of_row.sum,
                        .target_logit = target >= 0 && target < columns ? as_float(x[target]) : 0.0F};
}

__device__ SoftmaxStatistics joined(const SoftmaxStatistics& a, const SoftmaxStatistics& b) {
  const float largest = Max{}(b.largest, a.largest), base = base_of(largest);
  return {.largest = largest,
          .sum = a.sum * exp_approximate(a.largest - base) + b.sum * exp_approximate(b.largest - base),
          .target_logit = a.target_logit + b.target_logit};
}

// Combines the statistics of `count` neighbouring slices of a row.
template <int count>
__device__ SoftmaxStatistics tree(const SoftmaxStatistics* first, std::int64_t rows) {
  if constexpr (count == 1) {
    return *first;
  } else {
    return joined(tree<count / 2>(first, rows), tree<count / 2>(first + count / 2 * rows, rows));
  }
}

// A thread per row.
template <int slice_count>
__global__ void join_slices(CrossEntropyJoin op) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= op.rows) return;
  const SoftmaxStatistics all = tree<slice_count>(op.slices + row, op.rows);
  op.statistics[row] = all;
  op.losses[row] = op.targets[row] < 0 ? 0.0F : loss_of(all);
}

template <typename T, bool whole>
__global__ void __launch_bounds__(threads_max) slice_gradient(CrossEntropyGradient op) {
  const std::int64_t row = blockIdx.x;
  T* const x = static_cast<T*>(op.logits) + row * op.row_stride;
  const int stride = static_cast<int>(op.row_stride);
  if (op.targets[row] < 0) return write_zeros<whole>(x, stride);
  const SoftmaxStatistics all = op.statistics[row];
  write_gradient<whole>(x, x, static_cast<int>(op.columns), stride, op.targets[row] - op.first_token,
                        {.largest = all.largest, .sum = all.sum}, op.gradient_scale);
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

// Calls run(T{}, whole, grid) for a block per row of logits.
template <typename Op, typename Run>
void for_logits(const Op& op, const Run& run) {
  HF_CHECK(op.row_stride < (std::int64_t{1} << 30), "rows of more than 2^30 logits");
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const std::int64_t packs = (op.row_stride + pack_size<T> - 1) / pack_size<T>;
    const int threads = static_cast<int>(std::min<std::int64_t>((packs + 31) / 32 * 32, threads_max));
    with_whole<T>(
        op.row_stride,
        [&](auto whole) { run(element, whole, Grid{.blocks = blocks_for(op.rows, 1), .threads = threads}); },
        op.logits);
  });
}

}  // namespace

void run_cross_entropy(Context& context, const void* arguments) {
  const CrossEntropy& op = *static_cast<const CrossEntropy*>(arguments);
  const bool writes_gradient = std::fpclassify(op.gradient_scale) != FP_ZERO;
  for_logits(op, [&](auto element, auto whole, const Grid& grid) {
    using T = decltype(element);
    const std::size_t row_bytes = static_cast<std::size_t>(op.row_stride) * sizeof(T);
    if constexpr (whole) {
      if (writes_gradient && row_bytes <= kept_row_bytes_max) {
        Grid with_row = grid;
        with_row.shared_bytes = row_bytes;
        return launch(context, cross_entropy<T, whole, true>, with_row, op, writes_gradient);
      }
    }
    launch(context, cross_entropy<T, whole, false>, grid, op, writes_gradient);
  });
}

void run_cross_entropy_slice(Context& context, const void* arguments) {
  const CrossEntropySlice& op = *static_cast<const CrossEntropySlice*>(arguments);
  for_logits(op, [&](auto element, auto whole, const Grid& grid) {
    launch(context, slice_statistics<decltype(element), whole>, grid, op);
  });
}

void run_cross_entropy_join(Context& context, const void* arguments) {
  const CrossEntropyJoin& op = *static_cast<const CrossEntropyJoin*>(arguments);
  for_power_of_two<CrossEntropyJoin::slices_max>(op.slice_count, [&](auto slice_count) {
    launch(context, join_slices<slice_count>, {.blocks = blocks_for(op.rows, 64), .threads = 64}, op);
  });
}

void run_cross_entropy_gradient(Context& context, const void* arguments) {
  const CrossEntropyGradient& op = *static_cast<const CrossEntropyGradient*>(arguments);
  for_logits(op, [&](auto element, auto whole, const Grid& grid) {
    launch(context, slice_gradient<decltype(element), whole>, grid, op);
  });
}

void run_loss_sum(Context& context, const void* arguments) {
  const LossSum& op = *static_cast<const LossSum*>(arguments);
  launch(context, loss_sum, {.blocks = 1, .threads = threads_max}, op.values, op.count, op.sum);
}

}  // namespace holdfast::kernels::cuda
