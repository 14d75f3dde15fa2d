#include "kernels/number_errors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace holdfast::kernels {
namespace {

template <typename T>
T value_at(std::span<const std::byte> bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

double number_at(std::span<const std::byte> bytes, std::int64_t index, DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return static_cast<double>(value_at<float>(bytes, index));
    case DType::bf16:
      return static_cast<double>(to_float(value_at<BFloat16>(bytes, index)));
    case DType::int32:
      return static_cast<double>(value_at<std::int32_t>(bytes, index));
    case DType::fp64:
      return value_at<double>(bytes, index);
  }
  return 0.0;
}

// Returns the distance between neighbours of the type at a number.
double spacing_at(double number, DType dtype) {
  const int digits = dtype == DType::fp32 ? 23 : dtype == DType::bf16 ? 7 : 52;
  const int smallest = dtype == DType::fp64 ? -1022 : -126;
  int exponent = 0;
  std::frexp(number, &exponent);
  return std::ldexp(1.0, std::max(exponent - 1, smallest) - digits);
}

std::size_t bucket_of(double ulp) {
  constexpr std::array<double, NumberErrors::buckets - 1> limits = {0.0, 1.0, 2.0, 4.0, 16.0, 256.0, 65536.0};
  return static_cast<std::size_t>(std::ranges::lower_bound(limits, ulp) - limits.begin());
}

void add_number(NumberErrors& errors, std::int64_t index, double actual, double expected, DType dtype) {
  ++errors.count;
  if (!std::isfinite(actual) || !std::isfinite(expected)) {
    const bool is_number = !std::isnan(actual) && !std::isnan(expected);
    const bool same =
        is_number ? !(actual < expected) && !(actual > expected) : std::isnan(actual) && std::isnan(expected);
    if (same) {
      ++errors.histogram[0];
      return;
    }
    if (errors.wrong_kind++ == 0) {
      errors.first_wrong_kind = index;
      errors.actual = actual;
      errors.expected = expected;
    }
    ++errors.histogram.back();
    return;
  }
  const double error = std::abs(actual - expected);
  const double ulp = error / spacing_at(expected, dtype);
  ++errors.histogram[bucket_of(ulp)];
  errors.ulp_sum += ulp;
  errors.largest_error = std::max(errors.largest_error, error);
  errors.largest_expected = std::max(errors.largest_expected, std::abs(expected));
  if (ulp <= errors.ulp_max) return;
  errors.ulp_max = ulp;
  errors.worst = index;
  if (errors.wrong_kind > 0) return;
  errors.actual = actual;
  errors.expected = expected;
}

}  // namespace

double NumberErrors::relative() const {
  constexpr auto smallest = 2.0 * static_cast<double>(std::numeric_limits<float>::min());
  return largest_error / std::max(largest_expected, smallest);
}

ErrorLimits error_limits(DType dtype, bool is_words, const NumberErrors& of_default) {
  constexpr double times = 4.0;    // the error of the default
  constexpr double far_off = 0.1;  // a default with more is wrong, and no measure
  ErrorLimits limits{.wrong_kind = of_default.wrong_kind};
  if (is_words) return limits;
  limits.own = dtype == DType::bf16 ? 1.0 / 128 : dtype == DType::fp64 ? 1e-13 : 4e-6;
  const double most = times * of_default.relative();
  limits.relative = most <= far_off ? std::max(limits.own, most) : limits.own;
  return limits;
}

Json NumberErrors::json() const {
  Json counts = Json::object();
  for (std::size_t i = 0; i < buckets; ++i) counts[bucket_names[i]] = histogram[i];
  return {{"count", count},
          {"ulp_max", ulp_max},
          {"ulp_mean", ulp_mean()},
          {"worst_index", worst},
          {"relative_error", std::min(relative(), 1e300)},
          {"wrong_kind", wrong_kind},
          {"ulp_histogram", counts}};
}

NumberErrors compare_numbers(std::span<const std::byte> actual, std::span<const std::byte> expected,
                             DType dtype, bool is_words) {
  NumberErrors errors;
  if (is_words) {
    for (std::size_t i = 0; i < expected.size(); ++i)
      add_number(errors, static_cast<std::int64_t>(i), std::to_integer<int>(actual[i]),
                 std::to_integer<int>(expected[i]), DType::int32);
    return errors;
  }
  const auto count = static_cast<std::int64_t>(expected.size() / bytes_of(dtype));
  for (std::int64_t i = 0; i < count; ++i)
    add_number(errors, i, number_at(actual, i, dtype), number_at(expected, i, dtype), dtype);
  return errors;
}

}  // namespace holdfast::kernels
