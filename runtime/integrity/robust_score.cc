#include "runtime/integrity/robust_score.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/core/check.h"

namespace holdfast::integrity {

double take_median(std::span<double> values) {
  HF_CHECK(!values.empty());
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

RobustCentre take_centre(std::span<double> values) {
  constexpr double normal_deviations = 1.4826;  // of a median absolute deviation
  const double median = take_median(values);
  for (double& value : values) value = std::abs(value - median);
  return {.median = median, .deviation = normal_deviations * take_median(values)};
}

double robust_score(double value, const RobustCentre& centre, double floor) {
  const double scale = std::max(centre.deviation + floor, std::numeric_limits<double>::min());
  return std::min((value - centre.median) / scale, std::numeric_limits<double>::max());
}

double plain_log(double value) {
  constexpr int exponent_bits = 52, bias = 1023;
  constexpr std::uint64_t mantissa = (std::uint64_t{1} << exponent_bits) - 1;
  constexpr double log_2 = 0.69314718055994530942;
  const double usable =
      value > std::numeric_limits<double>::min() ? value : std::numeric_limits<double>::min();
  const auto bits = std::bit_cast<std::uint64_t>(usable);
  auto exponent = static_cast<int>(bits >> exponent_bits) - bias;
  double fraction = std::bit_cast<double>((bits & mantissa) | (std::uint64_t{bias} << exponent_bits));
  if (fraction > 1.4142135623730951) {
    fraction *= 0.5;
    ++exponent;
  }
  // log(fraction) = 2 artanh(ratio), |ratio| < 0.172: nine terms leave less than 1e-14.
  const double ratio = (fraction - 1.0) / (fraction + 1.0);
  const double square = ratio * ratio;
  double sum = 0.0;
  for (int power = 17; power >= 1; power -= 2) sum = sum * square + 1.0 / power;
  return exponent * log_2 + 2.0 * ratio * sum;
}

}  // namespace holdfast::integrity
