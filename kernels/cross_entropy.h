// Softmax cross-entropy over rows of logits; probabilities are never stored: the gradient replaces the
// logits. The head calls it on chunks of rows, so that full logits never exist.
#pragma once

#include <cstdint>

#include "kernels/op.h"
#include "runtime/core/tensor.h"

namespace holdfast {

struct CrossEntropy {
  static constexpr OpId id = OpId::cross_entropy;
  void* logits = nullptr;                 // dtype; (rows, row_stride); columns >= vocabulary are padding
  const std::int32_t* targets = nullptr;  // (rows); a negative target is not counted (loss 0, gradient 0)
  float* losses = nullptr;                // (rows): log(sum exp) - logit[target]
  std::int64_t rows = 0, row_stride = 0, vocabulary = 0;
  // Gradient (softmax - onehot) * gradient_scale written over the logits (padding columns become 0);
  // 0 = forward only, logits untouched.
  float gradient_scale = 0.0F;
  DType dtype = DType::fp32;
};
void reference(const CrossEntropy& op);

// *sum = sum of values, in double, in a fixed order.
struct LossSum {
  static constexpr OpId id = OpId::loss_sum;
  const float* values = nullptr;
  std::int64_t count = 0;
  double* sum = nullptr;
};
void reference(const LossSum& op);

}  // namespace holdfast
