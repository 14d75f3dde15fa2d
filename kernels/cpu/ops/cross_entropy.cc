#include "kernels/cross_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"
#include "runtime/core/check.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

// Columns whose exponentials are added lane by lane before they join the sum of the row: keeps the rounding
// of 128k terms small.
constexpr std::int64_t block_columns = 2048;

template <typename T>
float largest_of(const T* x, std::int64_t count) {
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  f32x16 a = broadcast(lowest), b = a, c = a, d = a;  // four chains hide the latency of a comparison
  constexpr std::int64_t stride = 4 * vector_lanes;
  const std::int64_t whole = count / stride * stride;
  for (std::int64_t i = 0; i < whole; i += stride) {
    a = max(load(x + i), a);
    b = max(load(x + i + vector_lanes), b);
    c = max(load(x + i + 2 * vector_lanes), c);
    d = max(load(x + i + 3 * vector_lanes), d);
  }
  for_lanes(count - whole,
            [&](std::int64_t i, auto lanes) { a = max(keep(load(x + whole + i, lanes), lanes, lowest), a); });
  return reduce_max(max(max(a, b), max(c, d)));
}

// The sum of e^(x - largest); put_aside(i, power, lanes) sees each term.
template <typename T, typename PutAside>
HF_INLINE float sum_of_powers(const T* x, std::int64_t count, float largest, const PutAside& put_aside) {
  f32x16 sum = zero();
  for (std::int64_t first = 0; first < count; first += block_columns) {
    f32x16 block_sum = zero();
    for_lanes(smaller(block_columns, count - first), [&](std::int64_t i, auto lanes) {
      const f32x16 power = exp(load(x + first + i, lanes) - largest);
      put_aside(first + i, power, lanes);
      block_sum = block_sum + keep(power, lanes, 0.0F);
    });
    sum = sum + block_sum;
  }
  return reduce_add(sum);
}

constexpr SoftmaxStatistics no_columns = {.largest = -std::numeric_limits<float>::infinity()};

float loss_of(const SoftmaxStatistics& row) {
  return static_cast<float>(std::log(static_cast<double>(row.sum)) +
                            (static_cast<double>(row.largest) - static_cast<double>(row.target_logit)));
}

template <typename T>
void write_zeros(T* x, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, auto lanes) { store(x + i, zero(), lanes); });
}

// (softmax - onehot) * scale; power_at(i, lanes) are the exponentials that add up to `sum`, and may be read
// from x. A target that is not a column is elsewhere.
template <typename T, typename PowerAt>
HF_INLINE void write_gradient(T* x, std::int64_t columns, std::int64_t row_stride, std::int64_t target,
                              float sum, float scale, const PowerAt& power_at) {
  const float factor = scale / sum;
  const bool is_here = target >= 0 && target < columns;
  f32x16 at_target = zero();
  if (is_here) at_target = fma(power_at(target, FirstLanes{1}), factor, broadcast(-scale));
  for_lanes(columns, [&](std::int64_t i, auto lanes) { store(x + i, power_at(i, lanes) * factor, lanes); });
  if (is_here) store(x + target, at_target, FirstLanes{1});
  write_zeros(x + columns, row_stride - columns);
}

// The exponentials, which the gradient needs again: in the row itself where they are fp32, else in `scratch`.
float* powers_of(float* x, std::byte*) {
  return x;
}
float* powers_of(BFloat16*, std::byte* scratch) {
  return reinterpret_cast<float*>(scratch);
}

template <typename T>
void cross_entropy_row(const CrossEntropy& op, std::int64_t index, bool writes_gradient, std::byte* scratch) {
  T* x = static_cast<T*>(op.logits) + index * op.row_stride;
  const std::int64_t target = op.targets[index];
  if (target < 0) {
    op.losses[index] = 0.0F;
    if (writes_gradient) write_zeros(x, op.row_stride);
    return;
  }
  const float largest = largest_of(x, op.vocabulary);
  const float x_target = load(x + target, FirstLanes{1}).part[0][0];
  float* const powers = powers_of(x, scratch);
  const float sum = writes_gradient
                        ? sum_of_powers(
                              x, op.vocabulary, largest,
                              [powers](std::int64_t i, f32x16 power, auto lanes)
                                  __attribute__((always_inline)) { store(powers + i, power, lanes); })
                        : sum_of_powers(x, op.vocabulary, largest, [](std::int64_t, f32x16, auto) {});
  op.losses[index] = loss_of({.largest = largest, .sum = sum, .target_logit = x_target});
  if (!writes_gradient) return;
  write_gradient(
      x, op.vocabulary, op.row_stride, target, sum,
      op.gradient_scale, [powers](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        return load(powers + i, lanes);
      });
}

bool writes_gradient(const CrossEntropy& op) {
  return std::fpclassify(op.gradient_scale) != FP_ZERO;
}

// Returns the value that exponents are taken relative to: it avoids infinity minus infinity where all values
// are -infinity.
HF_INLINE float base_of(float largest) {
  return largest > -std::numeric_limits<float>::infinity() ? largest : 0.0F;
}

template <typename T>
SoftmaxStatistics statistics_of(const CrossEntropySlice& op, std::int64_t row) {
  if (op.targets[row] < 0 || op.columns == 0) return no_columns;
  const T* x = static_cast<const T*>(op.logits) + row * op.row_stride;
  const std::int64_t target = op.targets[row] - op.first_token;
  SoftmaxStatistics result = no_columns;
  result.largest = largest_of(x, op.columns);
  result.sum = sum_of_powers(x, op.columns, base_of(result.largest), [](std::int64_t, f32x16, auto) {});
  if (target >= 0 && target < op.columns) result.target_logit = load(x + target, FirstLanes{1}).part[0][0];
  return result;
}

HF_INLINE float power(float x) {
  return exp(broadcast(x)).part[0][0];
}

SoftmaxStatistics joined(const SoftmaxStatistics& a, const SoftmaxStatistics& b) {
  const float largest = b.largest < a.largest ? a.largest : b.largest, base = base_of(largest);
  return {.largest = largest,
          .sum = a.sum * power(a.largest - base) + b.sum * power(b.largest - base),
          .target_logit = a.target_logit + b.target_logit};
}

void join_row(const CrossEntropyJoin& op, std::int64_t row) {
  SoftmaxStatistics slices[CrossEntropyJoin::slices_max];
  for (std::int64_t i = 0; i < op.slice_count; ++i) slices[i] = op.slices[i * op.rows + row];
  for (std::int64_t distance = 1; distance < op.slice_count; distance *= 2) {
    for (std::int64_t i = 0; i < op.slice_count; i += 2 * distance)
      slices[i] = joined(slices[i], slices[i + distance]);
  }
  op.statistics[row] = slices[0];
  op.losses[row] = op.targets[row] < 0 ? 0.0F : loss_of(slices[0]);
}

template <typename T>
void gradient_row(const CrossEntropyGradient& op, std::int64_t row) {
  T* x = static_cast<T*>(op.logits) + row * op.row_stride;
  if (op.targets[row] < 0) return write_zeros(x, op.row_stride);
  const float largest = op.statistics[row].largest;
  write_gradient(
      x, op.columns, op.row_stride, op.targets[row] - op.first_token, op.statistics[row].sum,
      op.gradient_scale, [ x, largest ](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        return exp(load(x + i, lanes) - largest);
      });
}

}  // namespace

void prepare_cross_entropy(const Context& context, const void* arguments) {
  const CrossEntropy& op = *static_cast<const CrossEntropy*>(arguments);
  if (op.dtype == DType::fp32 || !writes_gradient(op)) return;
  context.request_scratch(static_cast<std::size_t>(op.vocabulary) * sizeof(float));
}

void run_cross_entropy(const Context& context, const void* arguments) {
  const CrossEntropy& op = *static_cast<const CrossEntropy*>(arguments);
  const bool gradient = writes_gradient(op);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const std::int64_t rows = rows_per_chunk(op.row_stride);
    context.parallel_for(ceil_divide(op.rows, rows), [&](std::int64_t index, int thread) {
      const std::int64_t end = smaller(op.rows, (index + 1) * rows);
      for (std::int64_t row = index * rows; row < end; ++row)
        cross_entropy_row<T>(op, row, gradient, context.scratch(thread));
    });
  });
}

void run_cross_entropy_slice(const Context& context, const void* arguments) {
  const CrossEntropySlice& op = *static_cast<const CrossEntropySlice*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.rows, rows_per_chunk(op.columns), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row)
        op.statistics[row] = statistics_of<decltype(element)>(op, row);
    });
  });
}

void run_cross_entropy_join(const Context& context, const void* arguments) {
  const CrossEntropyJoin& op = *static_cast<const CrossEntropyJoin*>(arguments);
  HF_CHECK(op.slice_count > 0 && op.slice_count <= CrossEntropyJoin::slices_max);
  HF_CHECK((op.slice_count & (op.slice_count - 1)) == 0);
  constexpr std::int64_t elements_per_slice = 64;  // as long as so many logits take
  for_chunks(context, op.rows, rows_per_chunk(op.slice_count * elements_per_slice),
             [&](std::int64_t first, std::int64_t size) {
               for (std::int64_t row = first; row < first + size; ++row) join_row(op, row);
             });
}

void run_cross_entropy_gradient(const Context& context, const void* arguments) {
  const CrossEntropyGradient& op = *static_cast<const CrossEntropyGradient*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.rows, rows_per_chunk(op.row_stride), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row) gradient_row<decltype(element)>(op, row);
    });
  });
}

void run_loss_sum(const Context&, const void* arguments) {
  const LossSum& op = *static_cast<const LossSum*>(arguments);
  f64x8 sums[2] = {zero_f64(), zero_f64()};
  std::int64_t i = 0;
  for (; i + vector_lanes <= op.count; i += vector_lanes) {
    sums[0] = sums[0] + load_f64(op.values + i);
    sums[1] = sums[1] + load_f64(op.values + i + vector_lanes / 2);
  }
  double sum = reduce_add(sums[0] + sums[1]);
  for (; i < op.count; ++i) sum += static_cast<double>(op.values[i]);
  *op.sum = sum;
}

}  // namespace holdfast::kernels::cpu::HF_ISA
