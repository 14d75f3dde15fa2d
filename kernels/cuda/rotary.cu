#include "kernels/rotary.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

namespace {

constexpr int rotary_threads = 128;

// A thread has `size` neighbouring pairs of one head; grid.x is rows, grid.y cuts them.
template <typename T, int size>
__global__ void rotate(Rotary op) {
  const unsigned half = static_cast<unsigned>(op.head_size / 2), packs = half / size;
  const unsigned index = blockIdx.y * blockDim.x + threadIdx.x;
  const unsigned head = index / packs, i = index % packs * size;
  if (head >= op.heads) return;
  const unsigned position = blockIdx.x % static_cast<unsigned>(op.sequence_length);
  const std::int64_t row = blockIdx.x, angles = static_cast<std::int64_t>(position) * half + i;
  T* const x = static_cast<T*>(op.x) + row * op.row_stride + head * op.head_size + i;
  float low[size], high[size], cosine[size], sine[size];
  load<size>(x, low);
  load<size>(x + half, high);
  load<size>(op.cosine + angles, cosine);
  load<size>(op.sine + angles, sine);
#pragma unroll
  for (int k = 0; k < size; ++k) {
    const float s = op.inverse ? -sine[k] : sine[k];
    const float rotated = fmaf(low[k], cosine[k], -(high[k] * s));
    high[k] = fmaf(high[k], cosine[k], low[k] * s);
    low[k] = rotated;
  }
  store<size>(x, low);
  store<size>(x + half, high);
}

}  // namespace

void run_rotary(Context& context, const void* arguments) {
  const Rotary& op = *static_cast<const Rotary*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [&](auto size) {
      const std::int64_t threads = op.heads * op.head_size / 2 / size;
      launch(context, rotate<T, size>,
             {.blocks = {blocks_for(op.rows, 1), blocks_for(threads, rotary_threads)},
              .threads = rotary_threads},
             op);
    };
    const bool rows_fit = packs_fit<T>(op.row_stride, op.x);
    if (rows_fit && packs_fit<T>(op.head_size / 2, op.cosine, op.sine)) {
      run(std::integral_constant<int, pack_size<T>>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace holdfast::kernels::cuda
