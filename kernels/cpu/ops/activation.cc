#include "kernels/activation.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/simd.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

template <typename T>
void swiglu_forward_row(const SwigluForward& op, std::int64_t row) {
  const T* gate = static_cast<const T*>(op.x) + row * 2 * op.feed_forward;
  const T* up = gate + op.feed_forward;
  T* y = static_cast<T*>(op.y) + row * op.feed_forward;
  for_lanes(op.feed_forward, [&](std::int64_t i, auto lanes) {
    const f32x16 g = load(gate + i, lanes);
    store(y + i, g * sigmoid(g) * load(up + i, lanes), lanes);
  });
}

template <typename T>
void swiglu_backward_row(const SwigluBackward& op, std::int64_t row) {
  const T* gate = static_cast<const T*>(op.x) + row * 2 * op.feed_forward;
  const T* up = gate + op.feed_forward;
  const T* dy = static_cast<const T*>(op.dy) + row * op.feed_forward;
  T* dgate = static_cast<T*>(op.dx) + row * 2 * op.feed_forward;
  T* dup = dgate + op.feed_forward;
  for_lanes(op.feed_forward, [&](std::int64_t i, auto lanes) {
    const f32x16 g = load(gate + i, lanes);
    const f32x16 dy_i = load(dy + i, lanes);
    const SigmoidPair s = sigmoid_pair(g);
    const f32x16 silu_slope = fma(g * s.of_minus_x, s.of_x, s.of_x);
    const f32x16 dgate_i = dy_i * load(up + i, lanes) * silu_slope;
    store(dup + i, dy_i * (g * s.of_x), lanes);
    store(dgate + i, dgate_i, lanes);
  });
}

}  // namespace

void run_gelu_forward(const Context& context, const void* arguments) {
  const GeluForward& op = *static_cast<const GeluForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    for_chunks(context, op.count, chunk_elements, [&](std::int64_t first, std::int64_t size) {
      const T* x = static_cast<const T*>(op.x) + first;
      T* y = static_cast<T*>(op.y) + first;
      for_lanes(size, [&](std::int64_t i, auto lanes) { store(y + i, gelu(load(x + i, lanes)), lanes); });
    });
  });
}

void run_swiglu_forward(const Context& context, const void* arguments) {
  const SwigluForward& op = *static_cast<const SwigluForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.rows, rows_per_chunk(op.feed_forward), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row)
        swiglu_forward_row<decltype(element)>(op, row);
    });
  });
}

void run_swiglu_backward(const Context& context, const void* arguments) {
  const SwigluBackward& op = *static_cast<const SwigluBackward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.rows, rows_per_chunk(op.feed_forward), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row)
        swiglu_backward_row<decltype(element)>(op, row);
    });
  });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
