#include "kernels/norm.h"

#include "kernels/cpu/ops/cut.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/cpu/ops/tree_sum_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/matmul.h"
#include "kernels/residual_norm.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

// LayerNorm and RMSNorm in one: RMSNorm is LayerNorm without the mean and the bias.
enum class Norm { layer, rms };

float inverse_root(float square_sum, std::int64_t width, float epsilon) {
  return 1.0F / __builtin_sqrtf(square_sum / static_cast<float>(width) + epsilon);
}

template <typename T>
void norm_row(const LayerNormForward& op, std::int64_t row) {
  const T* x = static_cast<const T*>(op.x) + row * op.width;
  const T* weight = static_cast<const T*>(op.weight);
  const T* bias = static_cast<const T*>(op.bias);
  T* y = static_cast<T*>(op.y) + row * op.width;
  f32x16 sum = zero();
  for_lanes(op.width, [&](std::int64_t i, auto lanes) { sum = sum + load(x + i, lanes); });
  const float mean = reduce_add(sum) / static_cast<float>(op.width);
  f32x16 squares = zero();
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    const f32x16 centered = keep(load(x + i, lanes) - mean, lanes, 0.0F);
    squares = fma(centered, centered, squares);
  });
  const float rstd = inverse_root(reduce_add(squares), op.width, op.epsilon);
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    const f32x16 normal = (load(x + i, lanes) - mean) * rstd;
    store(y + i, fma(normal, load(weight + i, lanes), load(bias + i, lanes)), lanes);
  });
  op.mean[row] = mean;
  op.rstd[row] = rstd;
}

template <typename T>
void norm_row(const RmsNormForward& op, std::int64_t row) {
  const T* x = static_cast<const T*>(op.x) + row * op.width;
  const T* weight = static_cast<const T*>(op.weight);
  T* y = static_cast<T*>(op.y) + row * op.width;
  f32x16 squares = zero();
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    const f32x16 value = load(x + i, lanes);
    squares = fma(value, value, squares);
  });
  const float rstd = inverse_root(reduce_add(squares), op.width, op.epsilon);
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    store(y + i, load(x + i, lanes) * rstd * load(weight + i, lanes), lanes);
  });
  op.rstd[row] = rstd;
}

// A row is added up and then normalised, while it is in the nearest cache.
template <typename Op>
void residual_norm(const Context& context, const Op& op) {
  const TreeSum sum = Op::sum_of(op);
  const auto norm = Op::norm_of(op);
  for_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    for_part_count(op.part_count, [&](auto part_count) {
      constexpr int count = part_count;
      for_chunks(context, op.rows, rows_per_chunk(op.width), [&](std::int64_t first, std::int64_t size) {
        for (std::int64_t row = first; row < first + size; ++row) {
          add_parts<count, T>(sum, row * op.width, op.width, static_cast<const T*>(op.bias));
          norm_row<T>(norm, row);
        }
      });
    });
  });
}

// ---- backward
// ------------------------------------------------------------------------------------------------------- One
// pass over the rows makes dx and, for each group of rows, partial sums of the weight gradients in shared
// scratch; a second pass adds the partial sums in the order of the groups.

constexpr std::int64_t group_rows = 32;
constexpr std::int64_t combine_columns = 256;

template <Norm norm>
constexpr std::int64_t partial_sums = norm == Norm::layer ? 2 : 1;  // of a group: weight, bias

template <Norm norm, typename Op>
std::size_t partial_bytes(const Op& op) {
  return static_cast<std::size_t>(ceil_divide(op.rows, group_rows) * partial_sums<norm> * op.width) *
         sizeof(float);
}

// normal = the normalized row, g = dy * weight:
//   dx = rstd * (g - mean(g) - normal * mean(g * normal)) + dresidual        (RMSNorm: without mean(g))
template <Norm norm, typename T, typename Op>
void backward_row(const Op& op, std::int64_t row, float* weight_sum, float* bias_sum) {
  const T* x = static_cast<const T*>(op.x) + row * op.width;
  const T* dy = static_cast<const T*>(op.dy) + row * op.width;
  const T* weight = static_cast<const T*>(op.weight);
  const float rstd = op.rstd[row];
  const auto normal_at = [&](std::int64_t i, auto lanes) __attribute__((always_inline)) {
    if constexpr (norm == Norm::layer) {
      return (load(x + i, lanes) - op.mean[row]) * rstd;
    } else {
      return load(x + i, lanes) * rstd;
    }
  };
  f32x16 g_sum = zero();
  f32x16 g_normal_sum = zero();
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    const f32x16 normal = normal_at(i, lanes);
    const f32x16 dy_i = load(dy + i, lanes);  // zero in the tail, and so every product with it
    const f32x16 g = dy_i * load(weight + i, lanes);
    if constexpr (norm == Norm::layer) {
      g_sum = g_sum + g;
      store(bias_sum + i, load(bias_sum + i, lanes) + dy_i, lanes);
    }
    g_normal_sum = fma(g, normal, g_normal_sum);
    store(weight_sum + i, fma(dy_i, normal, load(weight_sum + i, lanes)), lanes);
  });
  const float g_mean = reduce_add(g_sum) / static_cast<float>(op.width);
  const float minus_g_normal_mean = -reduce_add(g_normal_sum) / static_cast<float>(op.width);
  const T* dresidual = static_cast<const T*>(op.dresidual);
  T* dx = static_cast<T*>(op.dx) + row * op.width;
  for_lanes(op.width, [&](std::int64_t i, auto lanes) {
    f32x16 value = load(dy + i, lanes) * load(weight + i, lanes);
    if constexpr (norm == Norm::layer) value = value - g_mean;
    value = fma(normal_at(i, lanes), minus_g_normal_mean, value) * rstd;
    if (dresidual != nullptr) value = value + load(dresidual + row * op.width + i, lanes);
    store(dx + i, value, lanes);
  });
}

// Computes gradient[i] (+)= sum of partials[group * stride + i] over the groups, for the given columns.
void combine(float* gradient, const float* partials, std::int64_t groups, std::int64_t stride,
             std::int64_t first, std::int64_t size, bool accumulate) {
  for_lanes(size, [&](std::int64_t i, auto lanes) {
    f32x16 sum = zero();
    for (std::int64_t group = 0; group < groups; ++group) {
      sum = sum + load(partials + group * stride + first + i, lanes);
    }
    float* target = gradient + first + i;
    store(target, accumulate ? load(target, lanes) + sum : sum, lanes);
  });
}

template <Norm norm, typename T, typename Op>
void backward(const Context& context, const Op& op) {
  float* const partials = reinterpret_cast<float*>(context.shared_scratch());
  const std::int64_t stride = partial_sums<norm> * op.width;
  for_chunks(context, op.rows, group_rows, [&](std::int64_t first, std::int64_t size) {
    float* const weight_sum = partials + first / group_rows * stride;
    __builtin_memset(weight_sum, 0, static_cast<std::size_t>(stride) * sizeof(float));
    for (std::int64_t row = first; row < first + size; ++row) {
      backward_row<norm, T>(op, row, weight_sum, weight_sum + op.width);
    }
  });
  const std::int64_t groups = ceil_divide(op.rows, group_rows);
  for_chunks(context, op.width, combine_columns, [&](std::int64_t first, std::int64_t size) {
    combine(op.weight_gradient, partials, groups, stride, first, size, op.accumulate);
    if constexpr (norm == Norm::layer) {
      combine(op.bias_gradient, partials + op.width, groups, stride, first, size, op.accumulate);
    }
  });
}

}  // namespace

void run_layernorm_forward(const Context& context, const void* arguments) {
  const LayerNormForward& op = *static_cast<const LayerNormForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.rows, rows_per_chunk(op.width), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row) norm_row<decltype(element)>(op, row);
    });
  });
}

void run_rmsnorm_forward(const Context& context, const void* arguments) {
  const RmsNormForward& op = *static_cast<const RmsNormForward*>(arguments);
  for_dtype(op.dtype, [&](auto element) {
    for_chunks(context, op.rows, rows_per_chunk(op.width), [&](std::int64_t first, std::int64_t size) {
      for (std::int64_t row = first; row < first + size; ++row) norm_row<decltype(element)>(op, row);
    });
  });
}

void run_residual_layernorm(const Context& context, const void* arguments) {
  residual_norm(context, *static_cast<const ResidualLayerNorm*>(arguments));
}

void run_residual_rmsnorm(const Context& context, const void* arguments) {
  residual_norm(context, *static_cast<const ResidualRmsNorm*>(arguments));
}

void prepare_layernorm_backward(const Context& context, const void* arguments) {
  context.request_shared_scratch(
      partial_bytes<Norm::layer>(*static_cast<const LayerNormBackward*>(arguments)));
}
void run_layernorm_backward(const Context& context, const void* arguments) {
  const LayerNormBackward& op = *static_cast<const LayerNormBackward*>(arguments);
  if (op.dresidual_sum != nullptr) {  // before dx, which may be the same memory, is written
    const BiasGradient sum{.dy = op.dresidual,
                           .gradient = op.dresidual_sum,
                           .rows = op.rows,
                           .columns = op.width,
                           .accumulate = op.accumulate,
                           .dtype = op.dtype};
    run_bias_gradient(context, &sum);
  }
  for_dtype(op.dtype, [&](auto element) { backward<Norm::layer, decltype(element)>(context, op); });
}

void prepare_rmsnorm_backward(const Context& context, const void* arguments) {
  context.request_shared_scratch(partial_bytes<Norm::rms>(*static_cast<const RmsNormBackward*>(arguments)));
}
void run_rmsnorm_backward(const Context& context, const void* arguments) {
  const RmsNormBackward& op = *static_cast<const RmsNormBackward*>(arguments);
  for_dtype(op.dtype, [&](auto element) { backward<Norm::rms, decltype(element)>(context, op); });
}

}  // namespace holdfast::kernels::cpu::HF_ISA
