// Elementwise: each thread takes neighbouring elements, 16 bytes of them where addresses allow it.
#include "kernels/activation.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/scalar.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

namespace {

template <typename T, int size>
__global__ void gelu_forward(const T* x, T* y, std::int64_t count) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * size;
  if (first >= count) return;
  float a[size];
  load<size>(x + first, a);
#pragma unroll
  for (int i = 0; i < size; ++i) a[i] = gelu(a[i]);
  store<size>(y + first, a);
}

// grid.x is rows, grid.y cuts them: no division.
template <typename T, int size>
__global__ void swiglu_forward(SwigluForward op) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * size;
  if (column >= op.feed_forward) return;
  const std::int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(op.x) + row * 2 * op.feed_forward + column;
  float gate[size], up[size], y[size];
  load<size>(x, gate);
  load<size>(x + op.feed_forward, up);
#pragma unroll
  for (int i = 0; i < size; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  store<size>(static_cast<T*>(op.y) + row * op.feed_forward + column, y);
}

template <typename T, int size>
__global__ void swiglu_backward(SwigluBackward op) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * size;
  if (column >= op.feed_forward) return;
  const std::int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(op.x) + row * 2 * op.feed_forward + column;
  T* dx = static_cast<T*>(op.dx) + row * 2 * op.feed_forward + column;
  float gate[size], up[size], dy[size];
  load<size>(x, gate);
  load<size>(x + op.feed_forward, up);
  load<size>(static_cast<const T*>(op.dy) + row * op.feed_forward + column, dy);
#pragma unroll
  for (int i = 0; i < size; ++i) {
    const float s = sigmoid(gate[i]);
    const float slope = s * fmaf(gate[i], 1.0F - s, 1.0F);
    up[i] = dy[i] * up[i] * slope;
    gate[i] = dy[i] * gate[i] * s;
  }
  store<size>(dx, up);
  store<size>(dx + op.feed_forward, gate);
}

constexpr int swiglu_threads = 128;

Grid swiglu_grid(std::int64_t rows, std::int64_t feed_forward, int size) {
  return {.blocks = {blocks_for(rows, 1), blocks_for(feed_forward, swiglu_threads * size)},
          .threads = swiglu_threads};
}

}  // namespace

void run_gelu_forward(Context& context, const void* arguments) {
  const GeluForward& op = *static_cast<const GeluForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_pack<T>(
        op.count,
        [&](auto size) {
          launch(context, gelu_forward<T, size>, {.blocks = blocks_for(op.count, 256 * size)},
                 static_cast<const T*>(op.x), static_cast<T*>(op.y), op.count);
        },
        op.x, op.y);
  });
}

void run_swiglu_forward(Context& context, const void* arguments) {
  const SwigluForward& op = *static_cast<const SwigluForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_pack<T>(
        op.feed_forward,
        [&](auto size) {
          launch(context, swiglu_forward<T, size>, swiglu_grid(op.rows, op.feed_forward, size), op);
        },
        op.x, op.y);
  });
}

void run_swiglu_backward(Context& context, const void* arguments) {
  const SwigluBackward& op = *static_cast<const SwigluBackward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_pack<T>(
        op.feed_forward,
        [&](auto size) {
          launch(context, swiglu_backward<T, size>, swiglu_grid(op.rows, op.feed_forward, size), op);
        },
        op.x, op.dy, op.dx);
  });
}

}  // namespace holdfast::kernels::cuda
