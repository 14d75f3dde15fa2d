// ProductShape: all parameters that a library's plan for a matrix product depends on, for any library: the
// key of the caches of kernels/cpu and kernels/cuda.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace holdfast::kernels {

// The fields have the same meaning as in Matmul.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;  // C += A x B
  bool bias = false;        // in dtype
  bool gelu = false;        // C = A x B times a derivative
  DType dtype = DType::fp32;
  DType dtype_c = DType::fp32;
  bool operator==(const ProductShape&) const = default;
};
ProductShape product_shape(const Matmul& op);

struct ProductShapeHash {
  std::size_t operator()(const ProductShape& shape) const;
};

// Aborts when the sizes, leading dimensions and types of a call do not fit together.
void check_matmul(const Matmul& op);

}  // namespace holdfast::kernels
