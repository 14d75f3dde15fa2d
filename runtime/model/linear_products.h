// The three products of a linear layer y_NO = x_NI W_OI^T (kernels/matmul.h), for those who launch them with something more:
// a bias, a residual, other rows.
#pragma once

#include <cstdint>

#include "kernels/matmul.h"
#include "runtime/core/tensor.h"

namespace holdfast::model {

struct LinearShape {
  std::int64_t rows = 0, outputs = 0, inputs = 0;
  DType dtype = DType::fp32;
};

// Returns the product that sets y.
inline Matmul forward_product(const LinearShape& shape, const void* x_NI, const void* weight_OI, void* y_NO,
                              DType dtype_y) {
  return {.a = x_NI,
          .b = weight_OI,
          .c = y_NO,
          .m = shape.rows,
          .n = shape.outputs,
          .k = shape.inputs,
          .lda = shape.inputs,
          .ldb = shape.inputs,
          .ldc = shape.outputs,
          .transpose_b = true,
          .dtype = shape.dtype,
          .dtype_c = dtype_y};
}

// Returns the product that sets the gradient of x.
inline Matmul input_gradient_product(const LinearShape& shape, const void* dy_NO, const void* weight_OI,
                                     void* dx_NI, DType dtype_dx) {
  return {.a = dy_NO,
          .b = weight_OI,
          .c = dx_NI,
          .m = shape.rows,
          .n = shape.inputs,
          .k = shape.outputs,
          .lda = shape.outputs,
          .ldb = shape.inputs,
          .ldc = shape.inputs,
          .dtype = shape.dtype,
          .dtype_c = dtype_dx};
}

// Returns the product that sets the gradient of the weight, or adds to it.
inline Matmul weight_gradient_product(const LinearShape& shape, const void* dy_NO, const void* x_NI,
                                      float* gradient_OI, bool accumulate) {
  return {.a = dy_NO,
          .b = x_NI,
          .c = gradient_OI,
          .m = shape.outputs,
          .n = shape.inputs,
          .k = shape.rows,
          .lda = shape.outputs,
          .ldb = shape.inputs,
          .ldc = shape.inputs,
          .transpose_a = true,
          .accumulate = accumulate,
          .dtype = shape.dtype,
          .dtype_c = DType::fp32};
}

}  // namespace holdfast::model
