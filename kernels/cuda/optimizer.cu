#include "kernels/optimizer.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/square_sum.h"
#include "kernels/cuda/vector.h"

namespace holdfast::inline kernels::cuda {

namespace {

constexpr std::int64_t block = static_cast<std::int64_t>(block_elements);

// Coefficients that are the same for all elements. The divisions by the corrections are products with their
// inverses, as on the CPU; with the same operations in the same order, both have the same bits.
struct Coefficients {
  float gradient_scale, beta1, rest1, beta2, rest2, inverse1, inverse2, epsilon, minus_rate;
};

template <int size>
__device__ void update(const Coefficients& by, const AdamWTensor& tensor, std::int64_t first) {
  float w[size], m[size], v[size], g[size];
  load<size>(tensor.gradient + first, g);
  load<size>(tensor.moment1 + first, m);
  load<size>(tensor.moment2 + first, v);
  load<size>(tensor.weight + first, w);
#pragma unroll
  for (int i = 0; i < size; ++i) {
    g[i] *= by.gradient_scale;
    m[i] = fmaf(m[i], by.beta1, by.rest1 * g[i]);
    v[i] = fmaf(v[i], by.beta2, by.rest2 * g[i] * g[i]);
    const float direction = m[i] * by.inverse1 / (sqrtf(v[i] * by.inverse2) + by.epsilon);
    w[i] = fmaf(by.minus_rate, fmaf(tensor.weight_decay, w[i], direction), w[i]);
  }
  store<size>(tensor.moment1 + first, m);
  store<size>(tensor.moment2 + first, v);
  store<size>(tensor.weight + first, w);
  if (tensor.copy != nullptr) store<size>(tensor.copy + first, w);
}

// The tensor that holds a block: the last one that starts at or before it.
__device__ AdamWTensor tensor_of_block(const AdamWTensor* tensors, std::int64_t count, std::int64_t wanted) {
  std::int64_t low = 0;
  for (std::int64_t high = count; high - low > 1;) {
    const std::int64_t middle = low + (high - low) / 2;
    (tensors[middle].first_block <= wanted ? low : high) = middle;
  }
  return tensors[low];
}

__device__ bool aligned(const AdamWTensor& tensor) {
  const auto of = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address); };
  const std::uintptr_t all =
      of(tensor.weight) | of(tensor.moment1) | of(tensor.moment2) | of(tensor.gradient);
  return all % 16 == 0 && of(tensor.copy) % 8 == 0;
}

// A thread block updates a block of elements.
__global__ void adamw(const AdamWTensor* tensors, std::int64_t tensor_count, Coefficients by) {
  constexpr int size = 4;
  const AdamWTensor tensor = tensor_of_block(tensors, tensor_count, blockIdx.x);
  const std::int64_t begin = (blockIdx.x - tensor.first_block) * block;
  const std::int64_t end = min(begin + block, tensor.count);
  const std::int64_t packed_end = aligned(tensor) ? begin + (end - begin) / size * size : begin;
  for (std::int64_t i = begin + threadIdx.x * size; i < packed_end; i += blockDim.x * size)
    update<size>(by, tensor, i);
  for (std::int64_t i = packed_end + threadIdx.x; i < end; i += blockDim.x) update<1>(by, tensor, i);
}

}  // namespace

void run_adamw(Context& context, const void* arguments) {
  const AdamW& op = *static_cast<const AdamW*>(arguments);
  const Coefficients by = {.gradient_scale = op.gradient_scale,
                           .beta1 = op.beta1,
                           .rest1 = 1.0F - op.beta1,
                           .beta2 = op.beta2,
                           .rest2 = 1.0F - op.beta2,
                           .inverse1 = 1.0F / op.correction1,
                           .inverse2 = 1.0F / op.correction2,
                           .epsilon = op.epsilon,
                           .minus_rate = -op.learning_rate};
  launch(context, adamw, {.blocks = blocks_for(op.block_count, 1)}, op.tensors, op.tensor_count, by);
}

void run_square_sum(Context& context, const void* arguments) {
  const SquareSum& op = *static_cast<const SquareSum*>(arguments);
  launch(context, square_sums<const float*>, square_sums_grid(op.count), op.values, nullptr, op.count,
         op.sums);
}

}  // namespace holdfast::inline kernels::cuda
