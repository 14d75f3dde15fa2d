// GELU (tanh form, Hendrycks & Gimpel 2016, as GPT-2) and SwiGLU (Shazeer 2020). Elementwise; computed in
// fp32.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct GeluForward {
  static constexpr OpId id = OpId::gelu_forward;
  const void* x = nullptr;
  void* y = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.x, reads("x", op.dtype, op.count));
    visit(op.y, writes("y", op.dtype, op.count));
  }
};
void reference(const GeluForward& op);

// Returns the derivative of GELU. Its backward is no op: the product that makes the gradient of y ends with it
// (Matmul::gelu_of).
double reference_gelu_slope(double x);

// Computes y_NF = silu(gate) * up, with gate = x[:, :F] and up = x[:, F:] of x_N(2F).
struct SwigluForward {
  static constexpr OpId id = OpId::swiglu_forward;
  const void* x = nullptr;  // dtype; (rows, 2 * feed_forward)
  void* y = nullptr;        // dtype; (rows, feed_forward)
  std::int64_t rows = 0, feed_forward = 0;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{feed_forward}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.x, reads("x", op.dtype, 2 * op.rows * op.feed_forward));
    visit(op.y, writes("y", op.dtype, op.rows * op.feed_forward));
  }
};
void reference(const SwigluForward& op);

struct SwigluBackward {
  static constexpr OpId id = OpId::swiglu_backward;
  const void* x = nullptr;
  const void* dy = nullptr;
  void* dx = nullptr;  // dtype; (rows, 2 * feed_forward)
  std::int64_t rows = 0, feed_forward = 0;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{feed_forward}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.x, reads("x", op.dtype, 2 * op.rows * op.feed_forward));
    visit(op.dy, reads("dy", op.dtype, op.rows * op.feed_forward));
    visit(op.dx, writes("dx", op.dtype, 2 * op.rows * op.feed_forward));
  }
};
void reference(const SwigluBackward& op);

}  // namespace holdfast::kernels
