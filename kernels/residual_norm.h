// The sum that ends a branch of a block, and the norm of it that begins the next one, in one op. It is composed
// (kernels/composed.h): tree_sum and then a norm, with the roundings of both. `sum` is what tree_sum stores, rounded to
// dtype, and the norm is that of these numbers, so a kernel that keeps them in registers rounds them there.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/composed.h"
#include "kernels/norm.h"
#include "kernels/op.h"
#include "kernels/operand.h"
#include "kernels/tree_sum.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

// Computes sum = tree of the parts, ((p0 + p1) + (p2 + p3)) + ..., (+ bias) + residual, each addition rounded to fp32, and y =
// RMSNorm of the sum. Nothing is the same memory.
struct ResidualRmsNorm {
  static constexpr OpId id = OpId::residual_rmsnorm;
  static constexpr std::array decomposes = {OpId::tree_sum, OpId::rmsnorm_forward};
  static constexpr int parts_max = 16;
  const float* parts[parts_max] = {};  // each (rows, width)
  int part_count = 0;                  // a power of two
  const void* bias = nullptr;          // of the sum: dtype; (width), or null
  const void* residual = nullptr;      // dtype; (rows, width)
  const void* weight = nullptr;        // of the norm: dtype; (width)
  void* sum = nullptr;                 // dtype; (rows, width)
  void* y = nullptr;                   // dtype; (rows, width)
  float* rstd = nullptr;               // (rows), kept for backward
  std::int64_t rows = 0, width = 0;
  float epsilon = 1e-5F;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{part_count} parts of {rows}x{width}{bias}";
  static void visit_operands(auto& op, auto&& visit) {
    for (int i = 0; i < op.part_count; ++i)
      visit(op.parts[i], reads("parts", DType::fp32, op.rows * op.width));
    visit(op.bias, reads("bias", op.dtype, op.width).if_given());
    visit(op.residual, reads("residual", op.dtype, op.rows * op.width));
    visit(op.weight, reads("weight", op.dtype, op.width));
    visit(op.sum, writes("sum", op.dtype, op.rows * op.width));
    visit(op.y, writes("y", op.dtype, op.rows * op.width));
    visit(op.rstd, writes("rstd", DType::fp32, op.rows));
  }
  // Those that kernels call are inlined, because each instruction set compiles them.
  static TreeSum sum_of [[gnu::always_inline]] (const ResidualRmsNorm& op) {
    TreeSum sum{.part_count = op.part_count,
                .bias = op.bias,
                .residual = op.residual,
                .y = op.sum,
                .rows = op.rows,
                .columns = op.width,
                .dtype = op.dtype};
    for (int i = 0; i < op.part_count; ++i) sum.parts[i] = op.parts[i];
    return sum;
  }
  static RmsNormForward norm_of [[gnu::always_inline]] (const ResidualRmsNorm& op) {
    return {.x = op.sum,
            .weight = op.weight,
            .y = op.y,
            .rstd = op.rstd,
            .rows = op.rows,
            .width = op.width,
            .epsilon = op.epsilon,
            .dtype = op.dtype};
  }
  static void visit_parts [[gnu::always_inline]] (const ResidualRmsNorm& op, auto&& visit) {
    visit(sum_of(op));
    visit(norm_of(op));
  }
  // Returns the op that is these two; the norm is of the sum.
  static ResidualRmsNorm of(const TreeSum& sum, const RmsNormForward& norm) {
    ResidualRmsNorm op{.part_count = sum.part_count,
                       .bias = sum.bias,
                       .residual = sum.residual,
                       .weight = norm.weight,
                       .sum = sum.y,
                       .y = norm.y,
                       .rstd = norm.rstd,
                       .rows = sum.rows,
                       .width = sum.columns,
                       .epsilon = norm.epsilon,
                       .dtype = sum.dtype};
    for (int i = 0; i < sum.part_count; ++i) op.parts[i] = sum.parts[i];
    return op;
  }
};
static_assert(is_composed(ResidualRmsNorm::id));
static_assert(ResidualRmsNorm::parts_max == TreeSum::parts_max && sizeof(ResidualRmsNorm) <= op_bytes_max);

// Computes sum = tree of the parts, ((p0 + p1) + (p2 + p3)) + ..., (+ bias) + residual, each addition rounded to fp32, and y =
// LayerNorm of the sum. Nothing is the same memory.
struct ResidualLayerNorm {
  static constexpr OpId id = OpId::residual_layernorm;
  static constexpr std::array decomposes = {OpId::tree_sum, OpId::layernorm_forward};
  static constexpr int parts_max = 16;
  const float* parts[parts_max] = {};  // each (rows, width)
  int part_count = 0;                  // a power of two
  const void* bias = nullptr;          // of the sum: dtype; (width), or null
  const void* residual = nullptr;      // dtype; (rows, width)
  const void* weight = nullptr;        // of the norm: dtype; (width)
  const void* norm_bias = nullptr;     // likewise
  void* sum = nullptr;                 // dtype; (rows, width)
  void* y = nullptr;                   // dtype; (rows, width)
  float* mean = nullptr;               // (rows), kept for backward
  float* rstd = nullptr;               // likewise
  std::int64_t rows = 0, width = 0;
  float epsilon = 1e-5F;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{part_count} parts of {rows}x{width}{bias}";
  static void visit_operands(auto& op, auto&& visit) {
    for (int i = 0; i < op.part_count; ++i)
      visit(op.parts[i], reads("parts", DType::fp32, op.rows * op.width));
    visit(op.bias, reads("bias", op.dtype, op.width).if_given());
    visit(op.residual, reads("residual", op.dtype, op.rows * op.width));
    visit(op.weight, reads("weight", op.dtype, op.width));
    visit(op.norm_bias, reads("norm_bias", op.dtype, op.width));
    visit(op.sum, writes("sum", op.dtype, op.rows * op.width));
    visit(op.y, writes("y", op.dtype, op.rows * op.width));
    visit(op.mean, writes("mean", DType::fp32, op.rows));
    visit(op.rstd, writes("rstd", DType::fp32, op.rows));
  }
  static TreeSum sum_of [[gnu::always_inline]] (const ResidualLayerNorm& op) {
    TreeSum sum{.part_count = op.part_count,
                .bias = op.bias,
                .residual = op.residual,
                .y = op.sum,
                .rows = op.rows,
                .columns = op.width,
                .dtype = op.dtype};
    for (int i = 0; i < op.part_count; ++i) sum.parts[i] = op.parts[i];
    return sum;
  }
  static LayerNormForward norm_of [[gnu::always_inline]] (const ResidualLayerNorm& op) {
    return {.x = op.sum,
            .weight = op.weight,
            .bias = op.norm_bias,
            .y = op.y,
            .mean = op.mean,
            .rstd = op.rstd,
            .rows = op.rows,
            .width = op.width,
            .epsilon = op.epsilon,
            .dtype = op.dtype};
  }
  static void visit_parts [[gnu::always_inline]] (const ResidualLayerNorm& op, auto&& visit) {
    visit(sum_of(op));
    visit(norm_of(op));
  }
  // Returns the op that is these two; the norm is of the sum.
  static ResidualLayerNorm of(const TreeSum& sum, const LayerNormForward& norm) {
    ResidualLayerNorm op{.part_count = sum.part_count,
                         .bias = sum.bias,
                         .residual = sum.residual,
                         .weight = norm.weight,
                         .norm_bias = norm.bias,
                         .sum = sum.y,
                         .y = norm.y,
                         .mean = norm.mean,
                         .rstd = norm.rstd,
                         .rows = sum.rows,
                         .width = sum.columns,
                         .epsilon = norm.epsilon,
                         .dtype = sum.dtype};
    for (int i = 0; i < sum.part_count; ++i) op.parts[i] = sum.parts[i];
    return op;
  }
};
static_assert(is_composed(ResidualLayerNorm::id));
static_assert(ResidualLayerNorm::parts_max == TreeSum::parts_max &&
              sizeof(ResidualLayerNorm) <= op_bytes_max);

}  // namespace holdfast::kernels
