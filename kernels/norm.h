// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension; statistics in fp32.
//   LayerNorm: y = (x - mean) * rstd * weight + bias      RMSNorm: y = x * rstd * weight
// Backward: dx (rounded once to dtype; plus dresidual when given: the gradient that flows around the norm),
// and weight gradients summed over rows in a fixed order. Where they accumulate, the sum over rows is rounded
// to fp32 and then added to what is there, so that a sum may be made in memory of its own and added later.
// LayerNorm's backward can sum dresidual in the same way, which it reads anyway: that is the gradient of the
// bias of a layer whose output was added to the residual stream.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct LayerNormForward {
  static constexpr OpId id = OpId::layernorm_forward;
  const void* x = nullptr;       // dtype; (rows, width)
  const void* weight = nullptr;  // dtype; (width)
  const void* bias = nullptr;    // dtype; (width)
  void* y = nullptr;             // dtype; (rows, width)
  float* mean = nullptr;         // (rows), kept for backward
  float* rstd = nullptr;         // (rows), kept for backward
  std::int64_t rows = 0, width = 0;
  float epsilon = 1e-5F;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{width}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.x, reads("x", op.dtype, op.rows * op.width));
    visit(op.weight, reads("weight", op.dtype, op.width));
    visit(op.bias, reads("bias", op.dtype, op.width));
    visit(op.y, writes("y", op.dtype, op.rows * op.width));
    visit(op.mean, writes("mean", DType::fp32, op.rows));
    visit(op.rstd, writes("rstd", DType::fp32, op.rows));
  }
};
void reference(const LayerNormForward& op);

struct LayerNormBackward {
  static constexpr OpId id = OpId::layernorm_backward;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* dy = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const void* dresidual = nullptr;   // dtype; (rows, width), or null; may be the same memory as dx
  void* dx = nullptr;                // dtype; (rows, width)
  float* weight_gradient = nullptr;  // (width)
  float* bias_gradient = nullptr;    // (width)
  float* dresidual_sum = nullptr;    // (width), or null; only with dresidual
  std::int64_t rows = 0, width = 0;
  bool accumulate = false;  // of the last three
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{width}{dresidual_sum}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.x, reads("x", op.dtype, op.rows * op.width));
    visit(op.weight, reads("weight", op.dtype, op.width));
    visit(op.dy, reads("dy", op.dtype, op.rows * op.width));
    visit(op.mean, reads("mean", DType::fp32, op.rows));
    visit(op.rstd, reads("rstd", DType::fp32, op.rows).positive());
    visit(op.dresidual, reads("dresidual", op.dtype, op.rows * op.width).if_given());
    visit(op.dx, writes("dx", op.dtype, op.rows * op.width));
    visit(op.weight_gradient, writes("weight_gradient", DType::fp32, op.width).updated_if(op.accumulate));
    visit(op.bias_gradient, writes("bias_gradient", DType::fp32, op.width).updated_if(op.accumulate));
    visit(op.dresidual_sum,
          writes("dresidual_sum", DType::fp32, op.width).updated_if(op.accumulate).if_given());
  }
};
void reference(const LayerNormBackward& op);

struct RmsNormForward {
  static constexpr OpId id = OpId::rmsnorm_forward;
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  float* rstd = nullptr;
  std::int64_t rows = 0, width = 0;
  float epsilon = 1e-5F;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{width}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.x, reads("x", op.dtype, op.rows * op.width));
    visit(op.weight, reads("weight", op.dtype, op.width));
    visit(op.y, writes("y", op.dtype, op.rows * op.width));
    visit(op.rstd, writes("rstd", DType::fp32, op.rows));
  }
};
void reference(const RmsNormForward& op);

struct RmsNormBackward {
  static constexpr OpId id = OpId::rmsnorm_backward;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* dy = nullptr;
  const float* rstd = nullptr;
  const void* dresidual = nullptr;  // or null; may be the same memory as dx
  void* dx = nullptr;
  float* weight_gradient = nullptr;
  std::int64_t rows = 0, width = 0;
  bool accumulate = false;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{width}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.x, reads("x", op.dtype, op.rows * op.width));
    visit(op.weight, reads("weight", op.dtype, op.width));
    visit(op.dy, reads("dy", op.dtype, op.rows * op.width));
    visit(op.rstd, reads("rstd", DType::fp32, op.rows).positive());
    visit(op.dresidual, reads("dresidual", op.dtype, op.rows * op.width).if_given());
    visit(op.dx, writes("dx", op.dtype, op.rows * op.width));
    visit(op.weight_gradient, writes("weight_gradient", DType::fp32, op.width).updated_if(op.accumulate));
  }
};
void reference(const RmsNormBackward& op);

}  // namespace holdfast::kernels
