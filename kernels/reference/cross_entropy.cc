#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace holdfast {

namespace {

template <typename T>
double read(const T& value) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return static_cast<double>(to_float(value));
  else
    return static_cast<double>(value);
}

template <typename T>
void write(T& to, double value) {
  if constexpr (std::is_same_v<T, BFloat16>)
    to = to_bfloat16(static_cast<float>(value));
  else
    to = static_cast<T>(value);
}

template <typename T>
void cross_entropy_row(const CrossEntropy& op, std::int64_t row) {
  T* logits = static_cast<T*>(op.logits) + row * op.row_stride;
  const std::int64_t target = op.targets[row];
  const bool counted = target >= 0;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < op.vocabulary; ++i) largest = std::max(largest, read(logits[i]));
  double sum = 0;
  for (std::int64_t i = 0; i < op.vocabulary; ++i) sum += std::exp(read(logits[i]) - largest);
  op.losses[row] = counted ? static_cast<float>(std::log(sum) + largest - read(logits[target])) : 0.0F;
  if (std::fpclassify(op.gradient_scale) == FP_ZERO) return;
  const double scale = counted ? static_cast<double>(op.gradient_scale) : 0.0;
  for (std::int64_t i = 0; i < op.row_stride; ++i) {
    const double probability = i < op.vocabulary ? std::exp(read(logits[i]) - largest) / sum : 0.0;
    write(logits[i], (probability - (i == target ? 1.0 : 0.0)) * scale);
  }
}

}  // namespace

void reference(const CrossEntropy& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    if (op.dtype == DType::bf16) {
      cross_entropy_row<BFloat16>(op, row);
    } else {
      cross_entropy_row<float>(op, row);
    }
  }
}

void reference(const LossSum& op) {
  *op.sum = 0;
  for (std::int64_t i = 0; i < op.count; ++i) *op.sum += static_cast<double>(op.values[i]);
}

}  // namespace holdfast
