// Computes softmax cross-entropy over rows of logits; probabilities are never stored: the gradient replaces
// the logits. The head calls it on chunks of rows, so that full logits never exist.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct CrossEntropy {
  static constexpr OpId id = OpId::cross_entropy;
  void* logits = nullptr;                 // dtype; (rows, row_stride); columns >= vocabulary are padding
  const std::int32_t* targets = nullptr;  // (rows); a negative target is not counted (loss 0, gradient 0)
  float* losses = nullptr;                // (rows): log(sum exp) - logit[target]
  std::int64_t rows = 0, row_stride = 0, vocabulary = 0;
  // Factor of the gradient (softmax - onehot) * gradient_scale, which is written over the logits (padding
  // columns become 0); 0 = forward only, logits untouched.
  float gradient_scale = 0.0F;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{vocabulary}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.targets, reads_tokens("targets", op.rows));
    visit(op.losses, writes("losses", DType::fp32, op.rows));
    const bool with_gradient = op.gradient_scale < 0.0F || op.gradient_scale > 0.0F;
    const Operand logits = reads("logits", op.dtype, op.rows * op.vocabulary).in_rows(op.rows, op.row_stride);
    visit(op.logits, with_gradient ? logits.updated_if(true).padded() : logits);
  }
};
void reference(const CrossEntropy& op);

// The next ops do the same over logits whose columns are cut into slices, perhaps of several ranks: first the
// statistics of a row in each slice, then the row from all of its slices, then the gradient of each slice.
// The slices are added as one binary tree over neighbours, so the bits do not depend on which rank holds
// them.

// Statistics of one row: sum = sum of e^(x - largest) over some columns; without a column -infinity, 0 and 0.
struct SoftmaxStatistics {
  float largest = 0.0F;
  float sum = 0.0F;
  float target_logit = 0.0F;  // if the target is among the columns, else 0
};
static_assert(sizeof(SoftmaxStatistics) == 12, "it travels between ranks");
inline constexpr std::int64_t statistics_floats = 3;  // of a row; infinite where no column counts

// Computes the statistics of the rows in a slice. A row without a target is not read: its statistics are
// those of no column.
struct CrossEntropySlice {
  static constexpr OpId id = OpId::cross_entropy_slice;
  const void* logits = nullptr;             // dtype; (rows, row_stride); columns >= columns are padding
  const std::int32_t* targets = nullptr;    // (rows), of the whole vocabulary; negative: none
  SoftmaxStatistics* statistics = nullptr;  // (rows)
  std::int64_t rows = 0, row_stride = 0, columns = 0;
  std::int64_t first_token = 0;  // column c is the token first_token + c; columns may be 0
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{columns}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.logits, reads("logits", op.dtype, op.rows * op.columns).in_rows(op.rows, op.row_stride));
    visit(op.targets, reads_tokens("targets", op.rows));
    visit(op.statistics, writes("statistics", DType::fp32, statistics_floats * op.rows).infinite());
  }
};
void reference(const CrossEntropySlice& op);

struct CrossEntropyJoin {
  static constexpr OpId id = OpId::cross_entropy_join;
  static constexpr std::int64_t slices_max = 16;
  const SoftmaxStatistics* slices = nullptr;  // (slice_count, rows)
  const std::int32_t* targets = nullptr;      // (rows); a negative target is not counted (loss 0)
  float* losses = nullptr;                    // (rows)
  SoftmaxStatistics* statistics = nullptr;    // (rows): of all columns
  std::int64_t rows = 0, slice_count = 0;     // slices: a power of two
  static constexpr const char* shape = "{slice_count} slices of {rows} rows";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.slices, reads("slices", DType::fp32, statistics_floats * op.slice_count * op.rows).positive());
    visit(op.targets, reads_tokens("targets", op.rows));
    visit(op.losses, writes("losses", DType::fp32, op.rows));
    visit(op.statistics, writes("statistics", DType::fp32, statistics_floats * op.rows).infinite());
  }
};
void reference(const CrossEntropyJoin& op);

// Writes (softmax - onehot) * gradient_scale over the logits of a slice; 0 in padding columns and in rows
// without a target.
struct CrossEntropyGradient {
  static constexpr OpId id = OpId::cross_entropy_gradient;
  void* logits = nullptr;                         // as CrossEntropySlice has them
  const std::int32_t* targets = nullptr;          // (rows)
  const SoftmaxStatistics* statistics = nullptr;  // (rows), of all slices
  std::int64_t rows = 0, row_stride = 0, columns = 0, first_token = 0;
  float gradient_scale = 0.0F;
  DType dtype = DType::fp32;
  static constexpr const char* shape = "{rows}x{columns}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.targets, reads_tokens("targets", op.rows));
    visit(op.statistics, reads("statistics", DType::fp32, statistics_floats * op.rows).positive());
    visit(op.logits,
          updates("logits", op.dtype, op.rows * op.columns).in_rows(op.rows, op.row_stride).padded());
  }
};
void reference(const CrossEntropyGradient& op);

// Sets *sum to the sum of values, in double, in a fixed order.
struct LossSum {
  static constexpr OpId id = OpId::loss_sum;
  const float* values = nullptr;
  std::int64_t count = 0;
  double* sum = nullptr;
  static constexpr const char* shape = "{count}";
  static void visit_operands(auto& op, auto&& visit) {
    visit(op.values, reads("values", DType::fp32, op.count));
    visit(op.sum, writes("sum", DType::fp64, 1));
  }
};
void reference(const LossSum& op);

}  // namespace holdfast::kernels
