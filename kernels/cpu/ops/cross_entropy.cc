#include "kernels/cross_entropy.h"

#include <cmath>

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::cpu::HF_ISA {

namespace {

// Columns whose largest value is taken, then whose exponentials are added, while they stay in the nearest
// cache.
constexpr std::int64_t block_columns = 2048;

struct RowSum {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0.0F;  // of e^(x - largest)
};

template <typename T>
float largest_of(const T* x, std::int64_t count) {
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  f32x16 largest[2] = {broadcast(lowest), broadcast(lowest)};
  for_lanes(count, [&](std::int64_t i, auto lanes) {
    f32x16& chain = largest[i / vector_lanes % 2];
    chain = max(keep(load(x + i, lanes), lanes, lowest), chain);
  });
  return reduce_max(max(largest[0], largest[1]));
}

// Online softmax over blocks: the sum so far shrinks when a block has a larger value. Sums are added lane by
// lane within a block and then over blocks, which also keeps the rounding of 128k terms small.
template <typename T>
RowSum sum_row(const T* x, std::int64_t vocabulary) {
  RowSum row;
  f32x16 sum = zero();
  for (std::int64_t first = 0; first < vocabulary; first += block_columns) {
    const std::int64_t count = smaller(block_columns, vocabulary - first);
    const float block_largest = largest_of(x + first, count);
    const float before = row.largest;
    if (before < block_largest) row.largest = block_largest;
    f32x16 block_sum = zero();
    for_lanes(count, [&](std::int64_t i, auto lanes) {
      block_sum = block_sum + keep(exp(load(x + first + i, lanes) - row.largest), lanes, 0.0F);
    });
    sum = fma(sum, exp(broadcast(before) - row.largest), block_sum);
  }
  row.sum = reduce_add(sum);
  return row;
}

template <typename T>
void write_zeros(T* x, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, auto lanes) { store(x + i, zero(), lanes); });
}

template <typename T>
void cross_entropy_row(const CrossEntropy& op, std::int64_t index, bool writes_gradient) {
  T* x = static_cast<T*>(op.logits) + index * op.row_stride;
  const std::int64_t target = op.targets[index];
  if (target < 0) {
    op.losses[index] = 0.0F;
    if (writes_gradient) write_zeros(x, op.row_stride);
    return;
  }
  const RowSum row = sum_row(x, op.vocabulary);
  const f32x16 x_target = load(x + target, FirstLanes{1});
  const double above_target = static_cast<double>(row.largest) - static_cast<double>(x_target.part[0][0]);
  op.losses[index] = static_cast<float>(std::log(static_cast<double>(row.sum)) + above_target);
  if (!writes_gradient) return;
  const float factor = op.gradient_scale / row.sum;
  for_lanes(op.vocabulary, [&](std::int64_t i, auto lanes) {
    store(x + i, exp(load(x + i, lanes) - row.largest) * factor, lanes);
  });
  store(x + target, fma(exp(x_target - row.largest), factor, broadcast(-op.gradient_scale)), FirstLanes{1});
  write_zeros(x + op.vocabulary, op.row_stride - op.vocabulary);
}

}  // namespace

void run_cross_entropy(const Context& context, const void* arguments) {
  const CrossEntropy& op = *static_cast<const CrossEntropy*>(arguments);
  const bool writes_gradient = std::fpclassify(op.gradient_scale) != FP_ZERO;
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    for_chunks(context, op.rows, rows_per_chunk(op.row_stride), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row)
        cross_entropy_row<T>(op, row, writes_gradient);
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

}  // namespace holdfast::cpu::HF_ISA
