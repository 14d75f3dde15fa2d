// Matrix product C[m,n] = op(A)[m,k] x op(B)[k,n] (+ bias[n]) (+ residual[m,n], or C if accumulate), or times
// the derivative of GELU at gelu_of[m,n] (kernels/activation.h). Row-major with leading dimensions in elements.
//
// The three products of a linear layer y_NO = x_NI W_OI^T:
//   forward          A = x (N,I), B = W transposed, C = y in the activation dtype, bias optional; a layer
//                    that ends a branch adds the branch to the residual stream
//   input gradient   A = dy (N,O), B = W, C = dx; of a layer that reads GELU, C = the gradient of GELU's input
//   weight gradient  A = dy transposed, B = x, C = dW in fp32, accumulate over microbatches
// Products and sums are fp32 (bf16 inputs are exact in fp32); C is rounded once: with bias and residual, in
// whose order an implementation is free, or times the derivative, which is computed in fp32. How a call is cut into
// pieces for threads never changes a bit.
//
// Own implementations (kernels/cpu/gemm): every element is a sum over the depth in order, in chunks that
// follow from k alone, so with vector instructions the bits are those of any processor; with bf16
// instructions ("avx512_bf16", "amx") they are specific to that instruction. "onednn" cuts a call into tiles
// that follow from the shape; its bits depend on the library and the processor. Device::description names
// what decides them.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct Matmul {
  static constexpr OpId id = OpId::matmul;
  const void* a = nullptr;     // dtype; (m,k), or (k,m) when transpose_a
  const void* b = nullptr;     // dtype; (k,n), or (n,k) when transpose_b
  void* c = nullptr;           // dtype_c; (m,n)
  const void* bias = nullptr;  // dtype; (n), or null
  // dtype_c; (m,n) in rows of ldc, or null; apart from c, and not together with accumulate.
  const void* residual = nullptr;
  // dtype_c; (m,n) in rows of ldc, or null; apart from c, and not together with accumulate, bias or residual.
  const void* gelu_of = nullptr;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;      // requires dtype_c == fp32
  DType dtype = DType::fp32;    // of a, b, bias: fp32 or bf16
  DType dtype_c = DType::fp32;  // fp32, or bf16 when dtype is
  static constexpr const char* shape =
      "{m}x{n}x{k} {transpose_a}{transpose_b}{bias}{residual}{gelu_of}{accumulate}";
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.a, reads("a", op.dtype, op.m * op.k).in_rows(op.transpose_a ? op.k : op.m, op.lda));
    visit(op.b, reads("b", op.dtype, op.k * op.n).in_rows(op.transpose_b ? op.n : op.k, op.ldb));
    visit(op.bias, reads("bias", op.dtype, op.n).if_given());
    visit(op.residual, reads("residual", op.dtype_c, op.m * op.n).in_rows(op.m, op.ldc).if_given());
    visit(op.gelu_of, reads("gelu_of", op.dtype_c, op.m * op.n).in_rows(op.m, op.ldc).if_given());
    visit(op.c, writes("c", op.dtype_c, op.m * op.n).in_rows(op.m, op.ldc).updated_if(op.accumulate));
  }
};
void reference(const Matmul& op);

// Computes gradient[o] (+)= sum over rows of dy_NO[row, o]; the CPU adds them in row order, a GPU in an order
// that follows from the shape.
struct BiasGradient {
  static constexpr OpId id = OpId::bias_gradient;
  const void* dy = nullptr;   // dtype; (rows, columns)
  float* gradient = nullptr;  // (columns)
  std::int64_t rows = 0, columns = 0;
  bool accumulate = false;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{columns}{accumulate}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.dy, reads("dy", op.dtype, op.rows * op.columns));
    visit(op.gradient, writes("gradient", DType::fp32, op.columns).updated_if(op.accumulate));
  }
};
void reference(const BiasGradient& op);

}  // namespace holdfast::kernels
