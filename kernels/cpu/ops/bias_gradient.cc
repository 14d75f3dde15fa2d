#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"
#include "kernels/matmul.h"

namespace holdfast::kernels::cpu::HF_ISA {

void run_bias_gradient(const Context& context, const void* arguments) {
  const BiasGradient& op = *static_cast<const BiasGradient*>(arguments);
  constexpr int vectors = 4;  // independent sums side by side hide the latency of an add
  constexpr std::int64_t step = vectors * vector_lanes;
  for_chunks(context, op.columns, step, [&](std::int64_t first, std::int64_t columns) {
    for_dtype(op.dtype, [&](auto element) {
      const auto* dy = static_cast<const decltype(element)*>(op.dy) + first;
      float* gradient = op.gradient + first;
      const auto add_columns = [&](std::int64_t i, auto lanes) {
        f32x16 sum = zero();
        for (std::int64_t row = 0; row < op.rows; ++row) sum = sum + load(dy + row * op.columns + i, lanes);
        store(gradient + i, op.accumulate ? load(gradient + i, lanes) + sum : sum, lanes);
      };
      if (columns < step) return for_lanes(columns, add_columns);
      f32x16 sums[vectors] = {zero(), zero(), zero(), zero()};
      for (std::int64_t row = 0; row < op.rows; ++row) {
        for (int v = 0; v < vectors; ++v) sums[v] = sums[v] + load(dy + row * op.columns + v * vector_lanes);
      }
      for (int v = 0; v < vectors; ++v) {
        float* target = gradient + v * vector_lanes;
        store(target, op.accumulate ? load(target) + sums[v] : sums[v]);
      }
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
