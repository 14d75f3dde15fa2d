// Medians of measurements.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "runtime/core/check.h"

namespace holdfast::core {

// Returns the value in the middle, of an even number of values the upper one of the two, and leaves the values in another order.
// There is at least one value. Allocates nothing.
inline double take_median(std::span<double> values) {
  HF_CHECK(!values.empty());
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Returns the median, of an even number of values the mean of the two in the middle; 0 without values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const double upper = take_median(values);
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), values.begin() + std::ssize(values) / 2) + upper) / 2.0;
}

}  // namespace holdfast::core
