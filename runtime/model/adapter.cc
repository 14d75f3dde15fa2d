#include "runtime/model/adapter.h"

namespace holdfast::model {

const void* Adapter::own_columns(const void* dy_NO) const {
  return static_cast<const std::byte*>(dy_NO) + static_cast<std::size_t>(first_output) * bytes_of(dtype);
}

// A and B are linear layers by themselves.
LinearShape Adapter::shape_of_a(std::int64_t rows) const {
  return {.rows = rows, .outputs = rank, .inputs = inputs, .dtype = dtype};
}
LinearShape Adapter::shape_of_b(std::int64_t rows) const {
  return {.rows = rows, .outputs = outputs, .inputs = rank, .dtype = dtype};
}

// No op multiplies by a number, but a product with a diagonal matrix does: every other term of its sums is zero.
const void* Adapter::scaled(Device& device, std::int64_t rows) const {
  if (memory.scale == nullptr) return memory.low;
  const LinearShape shape{.rows = rows, .outputs = rank, .inputs = rank, .dtype = dtype};
  device.launch(input_gradient_product(shape, memory.low, memory.scale, memory.scaled, dtype));
  return memory.scaled;
}

const void* Adapter::scaled_input(Device& device, const void* x_NI, std::int64_t rows) const {
  device.launch(forward_product(shape_of_a(rows), x_NI, a, memory.low, dtype));
  return scaled(device, rows);
}

const void* Adapter::scaled_gradient(Device& device, const void* dy_NO, std::int64_t rows) const {
  Matmul product = input_gradient_product(shape_of_b(rows), own_columns(dy_NO), b, memory.low, dtype);
  product.lda = layer_outputs;
  device.launch(product);
  return scaled(device, rows);
}

void Adapter::forward(Device& device, const void* x_NI, std::int64_t rows, const Target& y_NO) const {
  const void* const low = scaled_input(device, x_NI, rows);
  std::byte* const own =
      static_cast<std::byte*>(y_NO.values) + static_cast<std::size_t>(first_output) * bytes_of(y_NO.dtype);
  Matmul product = forward_product(shape_of_b(rows), low, b, own, y_NO.dtype);
  product.ldc = layer_outputs;
  product.accumulate = y_NO.accumulate;
  device.launch(product);
}

void Adapter::input_gradient(Device& device, const void* dy_NO, std::int64_t rows, const Target& dx_NI,
                             const void* gelu_of_NI) const {
  const void* const low = scaled_gradient(device, dy_NO, rows);
  Matmul product = input_gradient_product(shape_of_a(rows), low, a, dx_NI.values, dx_NI.dtype);
  product.gelu_of = gelu_of_NI;
  product.accumulate = dx_NI.accumulate;
  device.launch(product);
}

void Adapter::weight_gradients(Device& device, const void* x_NI, const void* dy_NO, std::int64_t rows,
                               bool accumulate) const {
  const void* const input = scaled_input(device, x_NI, rows);
  Matmul product =
      weight_gradient_product(shape_of_b(rows), own_columns(dy_NO), input, b_gradient, accumulate);
  product.lda = layer_outputs;
  device.launch(product);
  const void* const gradient = scaled_gradient(device, dy_NO, rows);
  device.launch(weight_gradient_product(shape_of_a(rows), gradient, x_NI, a_gradient, accumulate));
}

}  // namespace holdfast::model
