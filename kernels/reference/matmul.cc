#include "kernels/matmul.h"

#include "kernels/activation.h"
#include "kernels/reference/element.h"

namespace holdfast::kernels {

void reference(const Matmul& op) {
  for (std::int64_t row = 0; row < op.m; ++row) {
    for (std::int64_t column = 0; column < op.n; ++column) {
      double sum = op.bias != nullptr ? element(op.bias, column, op.dtype) : 0.0;
      const std::int64_t position = row * op.ldc + column;
      if (op.residual != nullptr) sum += element(op.residual, position, op.dtype_c);
      if (op.accumulate) sum += element(op.c, position, op.dtype_c);
      for (std::int64_t i = 0; i < op.k; ++i) {
        const double a = element(op.a, op.transpose_a ? i * op.lda + row : row * op.lda + i, op.dtype);
        const double b = element(op.b, op.transpose_b ? column * op.ldb + i : i * op.ldb + column, op.dtype);
        sum += a * b;
      }
      if (op.gelu_of != nullptr) sum *= reference_gelu_slope(element(op.gelu_of, position, op.dtype_c));
      set_element(op.c, position, op.dtype_c, sum);
    }
  }
}

void reference(const BiasGradient& op) {
  for (std::int64_t column = 0; column < op.columns; ++column) {
    double sum = op.accumulate ? static_cast<double>(op.gradient[column]) : 0.0;
    for (std::int64_t row = 0; row < op.rows; ++row)
      sum += element(op.dy, row * op.columns + column, op.dtype);
    op.gradient[column] = static_cast<float>(sum);
  }
}

}  // namespace holdfast::kernels
