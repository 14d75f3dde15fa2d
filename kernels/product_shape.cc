#include "kernels/product_shape.h"

#include "runtime/core/check.h"

namespace holdfast::kernels {

ProductShape product_shape(const Matmul& op) {
  return {.m = op.m,
          .n = op.n,
          .k = op.k,
          .lda = op.lda,
          .ldb = op.ldb,
          .ldc = op.ldc,
          .transpose_a = op.transpose_a,
          .transpose_b = op.transpose_b,
          .accumulate = op.accumulate,
          .bias = op.bias != nullptr,
          .gelu = op.gelu_of != nullptr,
          .dtype = op.dtype,
          .dtype_c = op.dtype_c};
}

std::size_t ProductShapeHash::operator()(const ProductShape& shape) const {
  const std::uint64_t flags = (shape.transpose_a ? 1U : 0U) | (shape.transpose_b ? 2U : 0U) |
                              (shape.accumulate ? 4U : 0U) | (shape.bias ? 8U : 0U) |
                              (shape.gelu ? 16U : 0U) | (static_cast<std::uint64_t>(shape.dtype) << 5U) |
                              (static_cast<std::uint64_t>(shape.dtype_c) << 8U);
  std::uint64_t hash = flags;
  for (const std::int64_t value : {shape.m, shape.n, shape.k, shape.lda, shape.ldb, shape.ldc}) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29U;
  }
  return hash;
}

void check_matmul(const Matmul& op) {
  HF_CHECK(op.dtype == DType::fp32 || op.dtype == DType::bf16, "matmul of {}", name_of(op.dtype));
  HF_CHECK(
      op.dtype_c == DType::fp32 || (op.dtype_c == DType::bf16 && op.dtype == DType::bf16 && !op.accumulate),
      "matmul writes bf16 only from bf16 and without accumulation");
  HF_CHECK(op.residual == nullptr || (!op.accumulate && op.residual != op.c),
           "matmul adds a residual apart from its output, or accumulates");
  HF_CHECK(op.gelu_of == nullptr ||
               (!op.accumulate && op.bias == nullptr && op.residual == nullptr && op.gelu_of != op.c),
           "matmul multiplies by GELU's derivative, apart from its output, or adds something");
  HF_CHECK(op.m >= 0 && op.n >= 0 && op.k >= 0, "matmul of m {} n {} k {}", op.m, op.n, op.k);
  HF_CHECK(
      op.lda >= (op.transpose_a ? op.m : op.k) && op.ldb >= (op.transpose_b ? op.k : op.n) && op.ldc >= op.n,
      "a leading dimension of matmul ({}, {}, {}) is below its matrix (m {}, n {}, k {})", op.lda, op.ldb,
      op.ldc, op.m, op.n, op.k);
}

}  // namespace holdfast::kernels
