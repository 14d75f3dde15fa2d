#include "kernels/rotary.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

template <bool inverse, typename T>
void rotate_row(const Rotary& op, std::int64_t row) {
  const std::int64_t half = op.head_size / 2;
  const float* cosine = op.cosine + row % op.sequence_length * half;
  const float* sine = op.sine + row % op.sequence_length * half;
  T* x = static_cast<T*>(op.x) + row * op.row_stride;
  for_lanes(half, [&](std::int64_t i, auto lanes) {
    const f32x16 c = load(cosine + i, lanes);
    const f32x16 s = inverse ? -load(sine + i, lanes) : load(sine + i, lanes);
    for (T* head = x + i; head < x + op.heads * op.head_size; head += op.head_size) {
      const f32x16 low = load(head, lanes);
      const f32x16 high = load(head + half, lanes);
      store(head, fma(low, c, -(high * s)), lanes);
      store(head + half, fma(high, c, low * s), lanes);
    }
  });
}

}  // namespace

void run_rotary(const Context& context, const void* arguments) {
  const Rotary& op = *static_cast<const Rotary*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    for_chunks(context, op.rows, rows_per_chunk(op.heads * op.head_size),
               [&](std::int64_t first, std::int64_t size) {
                 for (std::int64_t row = first; row < first + size; ++row) {
                   op.inverse ? rotate_row<true, T>(op, row) : rotate_row<false, T>(op, row);
                 }
               });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
