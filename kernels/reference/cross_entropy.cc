#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/reference/element.h"

namespace holdfast::kernels {

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

void reference(const CrossEntropySlice& op) {
  constexpr double lowest = -std::numeric_limits<double>::infinity();
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const auto logit = [&](std::int64_t column) {
      return element(op.logits, row * op.row_stride + column, op.dtype);
    };
    const std::int64_t columns = op.targets[row] < 0 ? 0 : op.columns;
    const std::int64_t target = op.targets[row] - op.first_token;
    double largest = lowest;
    for (std::int64_t i = 0; i < columns; ++i) largest = std::max(largest, logit(i));
    const double base = largest > lowest ? largest : 0.0;  // no infinity minus infinity
    double sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) sum += std::exp(logit(i) - base);
    op.statistics[row] = {
        .largest = static_cast<float>(largest),
        .sum = static_cast<float>(sum),
        .target_logit = target >= 0 && target < columns ? static_cast<float>(logit(target)) : 0.0F};
  }
}

void reference(const CrossEntropyJoin& op) {
  constexpr double lowest = -std::numeric_limits<double>::infinity();
  for (std::int64_t row = 0; row < op.rows; ++row) {
    double largest = lowest, sum = 0, target_logit = 0;
    for (std::int64_t i = 0; i < op.slice_count; ++i) {
      largest = std::max(largest, static_cast<double>(op.slices[i * op.rows + row].largest));
    }
    const double base = largest > lowest ? largest : 0.0;
    for (std::int64_t i = 0; i < op.slice_count; ++i) {
      const SoftmaxStatistics& slice = op.slices[i * op.rows + row];
      sum += static_cast<double>(slice.sum) * std::exp(static_cast<double>(slice.largest) - base);
      target_logit += static_cast<double>(slice.target_logit);
    }
    const bool counted = op.targets[row] >= 0;
    op.losses[row] = counted ? static_cast<float>(std::log(sum) + (largest - target_logit)) : 0.0F;
    op.statistics[row] = {.largest = static_cast<float>(largest),
                          .sum = static_cast<float>(sum),
                          .target_logit = static_cast<float>(target_logit)};
  }
}

void reference(const CrossEntropyGradient& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const SoftmaxStatistics& all = op.statistics[row];
    const std::int64_t target = op.targets[row] - op.first_token;
    const std::int64_t columns = op.targets[row] < 0 ? 0 : op.columns;
    for (std::int64_t i = 0; i < op.row_stride; ++i) {
      double gradient = 0;
      if (i < columns) {
        const double logit = element(op.logits, row * op.row_stride + i, op.dtype);
        const double probability =
            std::exp(logit - static_cast<double>(all.largest)) / static_cast<double>(all.sum);
        gradient = (probability - (i == target ? 1.0 : 0.0)) * static_cast<double>(op.gradient_scale);
      }
      set_element(op.logits, row * op.row_stride + i, op.dtype, gradient);
    }
  }
}

void reference(const LossSum& op) {
  *op.sum = 0;
  for (std::int64_t i = 0; i < op.count; ++i) *op.sum += static_cast<double>(op.values[i]);
}

}  // namespace holdfast::kernels
