#include "kernels/tree_sum.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"
#include "runtime/core/check.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

template <int count, typename Lanes>
HF_INLINE f32x16 tree(const float* const* parts, std::int64_t i, Lanes lanes) {
  if constexpr (count == 1) {
    return load(parts[0] + i, lanes);
  } else {
    return tree<count / 2>(parts, i, lanes) + tree<count / 2>(parts + count / 2, i, lanes);
  }
}

// `size` columns from the element `first` on; `bias` is the first one's, or null.
template <int count, typename T>
void add_parts(const TreeSum& op, std::int64_t first, std::int64_t size, const T* bias) {
  const float* const* parts = op.parts;
  T* const y = static_cast<T*>(op.y) + first;
  const T* const residual = op.residual == nullptr ? nullptr : static_cast<const T*>(op.residual) + first;
  for_lanes(
      size, [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
        f32x16 sum = tree<count>(parts, first + i, lanes);
        if (bias != nullptr) sum = sum + load(bias + i, lanes);
        if (residual != nullptr) sum = sum + load(residual + i, lanes);
        store(y + i, sum, lanes);
      });
}

template <int count, typename T>
void run(const Context& context, const TreeSum& op) {
  const T* const bias = static_cast<const T*>(op.bias);
  if (bias == nullptr) {
    return for_chunks(
        context, op.rows * op.columns, chunk_elements,
        [&](std::int64_t first, std::int64_t size) { add_parts<count, T>(op, first, size, nullptr); });
  }
  for_chunks(context, op.rows, rows_per_chunk(op.columns), [&](std::int64_t first, std::int64_t size) {
    for (std::int64_t row = first; row < first + size; ++row)
      add_parts<count, T>(op, row * op.columns, op.columns, bias);
  });
}

}  // namespace

void run_tree_sum(const Context& context, const void* arguments) {
  const TreeSum& op = *static_cast<const TreeSum*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    switch (op.part_count) {
      case 1:
        return run<1, T>(context, op);
      case 2:
        return run<2, T>(context, op);
      case 4:
        return run<4, T>(context, op);
      case 8:
        return run<8, T>(context, op);
      case 16:
        return run<16, T>(context, op);
      default:
        HF_CHECK(false);
    }
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
