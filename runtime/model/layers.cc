#include "runtime/model/layers.h"

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/tree_sum.h"

namespace holdfast::model {
namespace {

const std::byte* part_of(const void* whole, std::size_t index, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(whole) + index * static_cast<std::size_t>(elements) * bytes_of(dtype);
}
std::byte* part_of(void* whole, std::size_t index, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(whole) + index * static_cast<std::size_t>(elements) * bytes_of(dtype);
}

Result<void> sum_shared(Device& device, TensorGroup& group, const std::vector<SlicedGradient>& shared) {
  for (const SlicedGradient& each : shared)
    HF_TRY_VOID(
        sum_of_slices(device, group, each.of_slices, std::span(&each.gradient, 1), each.rows, each.columns));
  return {};
}

}  // namespace

void Linear::forward(Device& device, const void* x_NI, void* y_NO, std::int64_t rows) const {
  forward(device, x_NI, y_NO, rows, dtype, {.bias = bias});
}

void Linear::forward(Device& device, const void* x_NI, void* y_NO, std::int64_t rows, DType dtype_y,
                     const Added& added) const {
  const bool in_place = dtype_y == DType::fp32;
  const void* residual_NO = added.residual_NO;
  if (!adapters.empty() && !in_place) {
    HF_CHECK(residual_NO == nullptr);
    residual_NO = adapters_forward(device, x_NI, rows, dtype_y);
  }
  Matmul product = forward_product(shape(rows), x_NI, weight, y_NO, dtype_y);
  product.bias = added.bias;
  product.residual = residual_NO;
  device.launch(product);
  if (!in_place) return;
  for (const Adapter& adapter : adapters)
    adapter.forward(device, x_NI, rows, {.values = y_NO, .dtype = dtype_y, .accumulate = true});
}

// Returns what the adapters add to y; zeros are of the outputs without one.
const void* Linear::adapters_forward(Device& device, const void* x_NI, std::int64_t rows,
                                     DType dtype_y) const {
  void* const delta_NO = adapters.front().memory.delta;
  std::int64_t adapted = 0;
  for (const Adapter& adapter : adapters) adapted += adapter.outputs;
  if (adapted < outputs) {
    device.launch(
        FillZero{.target = delta_NO, .bytes = rows * outputs * static_cast<std::int64_t>(bytes_of(dtype_y))});
  }
  for (const Adapter& adapter : adapters)
    adapter.forward(device, x_NI, rows, {.values = delta_NO, .dtype = dtype_y});
  return delta_NO;
}

void Linear::input_gradient(Device& device, const void* dy_NO, void* dx_NI, std::int64_t rows, DType dtype_dx,
                            const void* gelu_of_NI) const {
  const bool in_place = dtype_dx == DType::fp32 && gelu_of_NI == nullptr;
  void* delta_NI = nullptr;
  if (!adapters.empty() && !in_place) {
    HF_CHECK(adapters.size() == 1);  // of a layer that is split by its inputs
    delta_NI = adapters.front().memory.delta;
    adapters.front().input_gradient(device, dy_NO, rows, {.values = delta_NI, .dtype = dtype_dx}, gelu_of_NI);
  }
  Matmul product = input_gradient_product(shape(rows), dy_NO, weight, dx_NI, dtype_dx);
  product.residual = gelu_of_NI == nullptr ? delta_NI : nullptr;
  product.gelu_of = gelu_of_NI;
  device.launch(product);
  if (in_place) {
    for (const Adapter& adapter : adapters)
      adapter.input_gradient(device, dy_NO, rows, {.values = dx_NI, .dtype = dtype_dx, .accumulate = true});
  } else if (delta_NI != nullptr && gelu_of_NI != nullptr) {
    device.launch(Add{.a = dx_NI, .b = delta_NI, .y = dx_NI, .count = rows * inputs, .dtype = dtype_dx});
  }
}

void Linear::weight_gradient_of(Device& device, const void* x_NI, const void* dy_NO, std::int64_t rows,
                                bool accumulate) const {
  for (const Adapter& adapter : adapters) adapter.weight_gradients(device, x_NI, dy_NO, rows, accumulate);
  if (weight_gradient != nullptr)
    device.launch(weight_gradient_product(shape(rows), dy_NO, x_NI, weight_gradient, accumulate));
  if (bias_gradient == nullptr) return;
  device.launch(BiasGradient{.dy = dy_NO,
                             .gradient = bias_gradient,
                             .rows = rows,
                             .columns = outputs,
                             .accumulate = accumulate,
                             .dtype = dtype});
}

void ColumnLinear::forward(Device& device, const void* x_NI, void* y, std::int64_t rows) const {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Linear& slice = slices[i];
    slice.forward(device, x_NI, part_of(y, i, rows * slice.outputs, slice.dtype), rows);
  }
}

Result<TensorGroup::Scatter> ColumnLinear::begin_input_gradient(Device& device, TensorGroup& group,
                                                                const SliceSums& sums, const void* dy,
                                                                void* dx_NI) const {
  const Linear& first = slices.front();
  if (group.share().slices == 1 && !first.is_summed()) {
    first.input_gradient(device, dy, dx_NI, sums.rows, first.dtype);
    return TensorGroup::Scatter{};
  }
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Linear& slice = slices[i];
    slice.input_gradient(device, part_of(dy, i, sums.rows * slice.outputs, slice.dtype),
                         part_of(sums.parts, i, sums.rows * slice.inputs, DType::fp32), sums.rows,
                         DType::fp32);
  }
  return group.begin_sum(device, sums);
}

Result<void> ColumnLinear::finish_input_gradient(Device& device, TensorGroup& group,
                                                 const TensorGroup::Scatter& begun, const SliceSums& sums,
                                                 void* dx_NI) const {
  if (group.share().slices == 1 && !slices.front().is_summed()) return {};
  return group.finish_sum(device, begun, sums, {.y = dx_NI, .dtype = slices.front().dtype});
}

void ColumnLinear::weight_gradients(Device& device, const void* x_NI, const void* dy, std::int64_t rows,
                                    bool accumulate) const {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Linear& slice = slices[i];
    slice.weight_gradient_of(device, x_NI, part_of(dy, i, rows * slice.outputs, slice.dtype), rows,
                             accumulate);
  }
}

Result<TensorGroup::Scatter> RowLinear::begin_forward(Device& device, TensorGroup& group,
                                                      const SliceSums& sums, const void* x) const {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Linear& slice = slices[i];
    slice.forward(device, part_of(x, i, sums.rows * slice.inputs, slice.dtype),
                  part_of(sums.parts, i, sums.rows * slice.outputs, DType::fp32), sums.rows, DType::fp32, {});
  }
  return group.begin_sum(device, sums);
}

Result<void> RowLinear::forward(Device& device, TensorGroup& group, const SliceSums& sums, const void* x,
                                const void* residual_NO, void* y_NO) const {
  const Linear& first = slices.front();
  if (group.share().slices == 1 && !first.is_summed()) {
    first.forward(device, x, y_NO, sums.rows, first.dtype, {.bias = bias, .residual_NO = residual_NO});
    return {};
  }
  HF_TRY(const TensorGroup::Scatter own_sum, begin_forward(device, group, sums, x));
  return group.finish_sum(device, own_sum, sums,
                          {.y = y_NO, .bias = bias, .residual = residual_NO, .dtype = first.dtype});
}

void RowLinear::input_gradient(Device& device, const void* dy_NO, void* dx, std::int64_t rows,
                               const void* gelu_of) const {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Linear& slice = slices[i];
    const std::int64_t elements = rows * slice.inputs;
    slice.input_gradient(device, dy_NO, part_of(dx, i, elements, slice.dtype), rows, slice.dtype,
                         gelu_of == nullptr ? nullptr : part_of(gelu_of, i, elements, slice.dtype));
  }
}

void RowLinear::weight_gradients(Device& device, const void* x, const void* dy_NO, std::int64_t rows,
                                 bool accumulate) const {
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Linear& slice = slices[i];
    slice.weight_gradient_of(device, part_of(x, i, rows * slice.inputs, slice.dtype), dy_NO, rows,
                             accumulate);
  }
}

Result<void> sum_of_slices(Device& device, TensorGroup& group, float* of_slices,
                           std::span<float* const> gradients, std::int64_t rows, std::int64_t columns) {
  const int slices = group.share().slices;
  const std::int64_t elements = rows * columns, of_slice = elements * std::ssize(gradients);
  HF_TRY_VOID(group.all_gather(
      device, std::as_writable_bytes(std::span(of_slices, static_cast<std::size_t>(slices * of_slice)))));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    TreeSum sum{.part_count = slices, .y = gradients[i], .rows = rows, .columns = columns};
    for (int slice = 0; slice < slices; ++slice)
      sum.parts[static_cast<std::size_t>(slice)] =
          of_slices + slice * of_slice + static_cast<std::int64_t>(i) * elements;
    device.launch(sum);
  }
  return {};
}

Result<void> ColumnLinear::sum_slices(Device& device, TensorGroup& group) const {
  return sum_shared(device, group, shared);
}

Result<void> RowLinear::sum_slices(Device& device, TensorGroup& group) const {
  return sum_shared(device, group, shared);
}

void Norm::forward(Device& device, const void* x_NC, void* y_NC, Statistics statistics,
                   std::int64_t rows) const {
  if (kind == NormKind::layer_norm) {
    device.launch(layer_norm(x_NC, y_NC, statistics, rows));
  } else {
    device.launch(rms_norm(x_NC, y_NC, statistics, rows));
  }
}

LayerNormForward Norm::layer_norm(const void* x_NC, void* y_NC, Statistics statistics,
                                  std::int64_t rows) const {
  return {.x = x_NC,
          .weight = weight,
          .bias = bias,
          .y = y_NC,
          .mean = statistics.mean,
          .rstd = statistics.rstd,
          .rows = rows,
          .width = width,
          .epsilon = epsilon,
          .dtype = dtype};
}

RmsNormForward Norm::rms_norm(const void* x_NC, void* y_NC, Statistics statistics, std::int64_t rows) const {
  return {.x = x_NC,
          .weight = weight,
          .y = y_NC,
          .rstd = statistics.rstd,
          .rows = rows,
          .width = width,
          .epsilon = epsilon,
          .dtype = dtype};
}

Norm::WeightGradients Norm::weight_gradients_of(int slice) const {
  if (slice_gradients != nullptr) return sums_of(slice_gradients, slice);
  if (!is_trained()) return sums_of(unused_gradients, 0);
  return own_gradients();
}

Norm::WeightGradients Norm::sums_of(float* sums, int index) const {
  WeightGradients of_index = {};
  for (int vector = 0; vector < gradient_vectors(); ++vector)
    of_index[static_cast<std::size_t>(vector)] = sums + (index * gradient_vectors() + vector) * width;
  return of_index;
}

void Norm::add_sums(Device& device, const WeightGradients& sums, const WeightGradients& gradients,
                    bool accumulate) const {
  for (std::size_t vector = 0; vector < static_cast<std::size_t>(gradient_vectors()); ++vector) {
    if (accumulate) {
      device.launch(Accumulate{.target = gradients[vector], .source = sums[vector], .count = width});
    } else {
      device.launch(Copy{.source = sums[vector],
                         .target = gradients[vector],
                         .bytes = width * static_cast<std::int64_t>(sizeof(float))});
    }
  }
}

// A slice of rows is one call: its shape, and so its bits, are those of the slice.
void Norm::backward(Device& device, const TensorShare& share, const void* x_NC, Statistics statistics,
                    const Gradients& gradients, std::int64_t rows, BackwardPass pass) const {
  const int parts = slice_gradients == nullptr ? 1 : share.count;
  HF_CHECK(rows % parts == 0, "{} rows in {} slices", rows, parts);
  const std::int64_t part_rows = rows / parts, elements = part_rows * width;
  const auto of_part = [&](auto* whole, int i) -> decltype(whole) {
    return whole == nullptr ? nullptr : part_of(whole, static_cast<std::size_t>(i), elements, dtype);
  };
  for (int i = 0; i < parts; ++i) {
    const WeightGradients mine = weight_gradients_of(share.first + i);
    if (!pass.of_inputs()) {
      if (is_trained()) add_sums(device, sums_of(gradients.sums, i), mine, pass.accumulate);
      continue;
    }
    backward_rows(device, of_part(x_NC, i),
                  {statistics.mean == nullptr ? nullptr : statistics.mean + i * part_rows,
                   statistics.rstd + i * part_rows},
                  {.dy_NC = of_part(gradients.dy_NC, i),
                   .dresidual_NC = of_part(gradients.dresidual_NC, i),
                   .dx_NC = of_part(gradients.dx_NC, i)},
                  part_rows, pass.of_weights() ? mine : sums_of(gradients.sums, i),
                  pass.of_weights() && pass.accumulate && is_trained());
  }
}

Result<void> Norm::sum_slices(Device& device, TensorGroup& group) const {
  if (slice_gradients == nullptr || !is_trained()) return {};
  const WeightGradients own = own_gradients();
  return sum_of_slices(device, group, slice_gradients,
                       std::span(own).first(static_cast<std::size_t>(gradient_vectors())), /*rows=*/1, width);
}

void Norm::backward_rows(Device& device, const void* x_NC, Statistics statistics, const Gradients& gradients,
                         std::int64_t rows, const WeightGradients& weight_gradients, bool accumulate) const {
  if (kind == NormKind::layer_norm) {
    device.launch(LayerNormBackward{.x = x_NC,
                                    .weight = weight,
                                    .dy = gradients.dy_NC,
                                    .mean = statistics.mean,
                                    .rstd = statistics.rstd,
                                    .dresidual = gradients.dresidual_NC,
                                    .dx = gradients.dx_NC,
                                    .weight_gradient = weight_gradients[0],
                                    .bias_gradient = weight_gradients[1],
                                    .dresidual_sum = weight_gradients[2],
                                    .rows = rows,
                                    .width = width,
                                    .accumulate = accumulate,
                                    .dtype = dtype});
  } else {
    device.launch(RmsNormBackward{.x = x_NC,
                                  .weight = weight,
                                  .dy = gradients.dy_NC,
                                  .rstd = statistics.rstd,
                                  .dresidual = gradients.dresidual_NC,
                                  .dx = gradients.dx_NC,
                                  .weight_gradient = weight_gradients[0],
                                  .rows = rows,
                                  .width = width,
                                  .accumulate = accumulate,
                                  .dtype = dtype});
  }
}

}  // namespace holdfast::model
