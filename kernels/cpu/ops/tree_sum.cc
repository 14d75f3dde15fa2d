#include "kernels/tree_sum.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/ops/tree_sum_rows.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

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
    for_part_count(op.part_count, [&](auto count) { run<count, T>(context, op); });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
