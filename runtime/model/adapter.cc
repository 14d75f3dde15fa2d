#include "runtime/model/adapter.h"

#include "kernels/matmul.h"

namespace holdfast::model {

const void* Adapter::own_columns(const void* dy_NO) const {
  return static_cast<const std::byte*>(dy_NO) + static_cast<std::size_t>(first_output) * bytes_of(dtype);
}

// No op multiplies by a number, but a product with a diagonal matrix does: every other term of its sums is zero.
const void* Adapter::scaled(Device& device, std::int64_t rows) const {
  if (memory.scale == nullptr) return memory.low;
  device.launch(Matmul{.a = memory.low,
                       .b = memory.scale,
                       .c = memory.scaled,
                       .m = rows,
                       .n = rank,
                       .k = rank,
                       .lda = rank,
                       .ldb = rank,
                       .ldc = rank,
                       .dtype = dtype,
                       .dtype_c = dtype});
  return memory.scaled;
}

const void* Adapter::scaled_input(Device& device, const void* x_NI, std::int64_t rows) const {
  device.launch(Matmul{.a = x_NI,
                       .b = a,
                       .c = memory.low,
                       .m = rows,
                       .n = rank,
                       .k = inputs,
                       .lda = inputs,
                       .ldb = inputs,
                       .ldc = rank,
                       .transpose_b = true,
                       .dtype = dtype,
                       .dtype_c = dtype});
  return scaled(device, rows);
}

const void* Adapter::scaled_gradient(Device& device, const void* dy_NO, std::int64_t rows) const {
  device.launch(Matmul{.a = own_columns(dy_NO),
                       .b = b,
                       .c = memory.low,
                       .m = rows,
                       .n = rank,
                       .k = outputs,
                       .lda = layer_outputs,
                       .ldb = rank,
                       .ldc = rank,
                       .dtype = dtype,
                       .dtype_c = dtype});
  return scaled(device, rows);
}

void Adapter::forward(Device& device, const void* x_NI, std::int64_t rows, const Target& y_NO) const {
  const void* const low = scaled_input(device, x_NI, rows);
  device.launch(Matmul{.a = low,
                       .b = b,
                       .c = static_cast<std::byte*>(y_NO.values) +
                            static_cast<std::size_t>(first_output) * bytes_of(y_NO.dtype),
                       .m = rows,
                       .n = outputs,
                       .k = rank,
                       .lda = rank,
                       .ldb = rank,
                       .ldc = layer_outputs,
                       .transpose_b = true,
                       .accumulate = y_NO.accumulate,
                       .dtype = dtype,
                       .dtype_c = y_NO.dtype});
}

void Adapter::input_gradient(Device& device, const void* dy_NO, std::int64_t rows, const Target& dx_NI,
                             const void* gelu_of_NI) const {
  const void* const low = scaled_gradient(device, dy_NO, rows);
  device.launch(Matmul{.a = low,
                       .b = a,
                       .c = dx_NI.values,
                       .gelu_of = gelu_of_NI,
                       .m = rows,
                       .n = inputs,
                       .k = rank,
                       .lda = rank,
                       .ldb = inputs,
                       .ldc = inputs,
                       .accumulate = dx_NI.accumulate,
                       .dtype = dtype,
                       .dtype_c = dx_NI.dtype});
}

void Adapter::weight_gradients(Device& device, const void* x_NI, const void* dy_NO, std::int64_t rows,
                               bool accumulate) const {
  const void* const input = scaled_input(device, x_NI, rows);
  device.launch(Matmul{.a = own_columns(dy_NO),
                       .b = input,
                       .c = b_gradient,
                       .m = outputs,
                       .n = rank,
                       .k = rows,
                       .lda = layer_outputs,
                       .ldb = rank,
                       .ldc = rank,
                       .transpose_a = true,
                       .accumulate = accumulate,
                       .dtype = dtype,
                       .dtype_c = DType::fp32});
  const void* const gradient = scaled_gradient(device, dy_NO, rows);
  device.launch(Matmul{.a = gradient,
                       .b = x_NI,
                       .c = a_gradient,
                       .m = rank,
                       .n = inputs,
                       .k = rows,
                       .lda = rank,
                       .ldb = inputs,
                       .ldc = inputs,
                       .transpose_a = true,
                       .accumulate = accumulate,
                       .dtype = dtype,
                       .dtype_c = DType::fp32});
}

}  // namespace holdfast::model
