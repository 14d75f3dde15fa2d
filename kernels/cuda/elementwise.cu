// Each thread takes neighbouring elements, 16 bytes of them where addresses allow it.
#include "kernels/elementwise.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/square_sum.h"
#include "kernels/cuda/vector.h"

namespace holdfast::kernels::cuda {

namespace {

template <typename T, int size>
__global__ void add(const T* a, const T* b, T* y, std::int64_t count) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * size;
  if (first >= count) return;
  float sum[size], more[size];
  load<size>(a + first, sum);
  load<size>(b + first, more);
#pragma unroll
  for (int i = 0; i < size; ++i) sum[i] += more[i];
  store<size>(y + first, sum);
}

template <int size>
__global__ void cast(const float* source, BFloat16* target, std::int64_t count) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * size;
  if (first >= count) return;
  float values[size];
  load<size>(source + first, values);
  store<size>(target + first, values);
}

// A thread has `size` neighbouring elements of a row; grid.x is rows, grid.y cuts them.
template <typename T, int size>
__global__ void copy_rows(CopyRows op) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * size;
  if (first >= op.columns) return;
  const std::int64_t row = blockIdx.x;
  *reinterpret_cast<Pack<T, size>*>(static_cast<T*>(op.target) + row * op.target_stride + first) =
      *reinterpret_cast<const Pack<T, size>*>(static_cast<const T*>(op.source) + row * op.source_stride +
                                              first);
}

template <typename T>
void launch_add(Context& context, const T* a, const T* b, T* y, std::int64_t count) {
  with_pack<T>(
      count,
      [&](auto size) {
        launch(context, add<T, size>, {.blocks = blocks_for(count, 256 * size)}, a, b, y, count);
      },
      a, b, y);
}

}  // namespace

void run_add(Context& context, const void* arguments) {
  const Add& op = *static_cast<const Add*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    launch_add(context, static_cast<const T*>(op.a), static_cast<const T*>(op.b), static_cast<T*>(op.y),
               op.count);
  });
}

void run_accumulate(Context& context, const void* arguments) {
  const Accumulate& op = *static_cast<const Accumulate*>(arguments);
  if (op.square_sums == nullptr) return launch_add<float>(context, op.target, op.source, op.target, op.count);
  launch_square_sums<float*>(context, op, op.target, op.source, op.square_sums, op.digests);
}

void run_cast(Context& context, const void* arguments) {
  const Cast& op = *static_cast<const Cast*>(arguments);
  with_pack<BFloat16>(
      op.count,
      [&](auto size) {
        launch(context, cast<size>, {.blocks = blocks_for(op.count, 256 * size)}, op.source, op.target,
               op.count);
      },
      op.source, op.target);
}

void run_fill_zero(Context& context, const void* arguments) {
  const FillZero& op = *static_cast<const FillZero*>(arguments);
  if (op.bytes == 0) return;
  context.note(cudaMemsetAsync(op.target, 0, static_cast<std::size_t>(op.bytes), context.stream()),
               "cudaMemsetAsync");
}

// Addresses say by themselves which of the two is memory of the host.
void run_copy(Context& context, const void* arguments) {
  const Copy& op = *static_cast<const Copy*>(arguments);
  if (op.bytes == 0) return;
  context.note(cudaMemcpyAsync(op.target, op.source, static_cast<std::size_t>(op.bytes), cudaMemcpyDefault,
                               context.stream()),
               "cudaMemcpyAsync");
}

void run_copy_rows(Context& context, const void* arguments) {
  const CopyRows& op = *static_cast<const CopyRows*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int threads = 128;
    const auto run = [&](auto size) {
      launch(context, copy_rows<T, size>,
             {.blocks = {blocks_for(op.rows, 1), blocks_for(op.columns, threads * size)}, .threads = threads},
             op);
    };
    const bool rows_fit = op.source_stride % pack_size<T> == 0 && op.target_stride % pack_size<T> == 0;
    if (rows_fit && packs_fit<T>(op.columns, op.source, op.target)) {
      run(std::integral_constant<int, pack_size<T>>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace holdfast::kernels::cuda
