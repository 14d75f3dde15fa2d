// NumberErrors: how far the numbers of an array are from those that the reference computes in double and rounds once,
// counted in units in the last place (ULP) of the array's type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/core/json.h"
#include "runtime/core/tensor.h"

namespace holdfast::kernels {

struct NumberErrors {
  // Numbers by their error: 0, up to 1, 2, 4, 16, 256, 65536 ULP, and more.
  static constexpr std::size_t buckets = 8;
  static constexpr std::array<const char*, buckets> bucket_names = {"0",  "1",   "2",     "4",
                                                                    "16", "256", "65536", "more"};
  std::int64_t count = 0;
  double ulp_max = 0.0, ulp_sum = 0.0;
  std::int64_t worst = -1;              // index of the largest error; -1: there is none
  double actual = 0.0, expected = 0.0;  // at `worst`
  std::array<std::int64_t, buckets> histogram = {};
  double largest_error = 0.0;     // absolute
  double largest_expected = 0.0;  // magnitude
  std::int64_t wrong_kind =
      0;  // numbers that are not finite where those of the reference are, or the other way
  std::int64_t first_wrong_kind = -1;

  double ulp_mean() const { return count > 0 ? ulp_sum / static_cast<double>(count) : 0.0; }
  // Error relative to the largest number of the array; where all are small, to 2^-125, of which a unit of a denormal number
  // of bf16 is 1/256.
  double relative() const;
  Json json() const;
};

// ErrorLimits says how wrong an array may be.
struct ErrorLimits {
  double own = 0.0;             // relative error that is allowed whatever the default does
  double relative = 0.0;        // that is allowed
  std::int64_t wrong_kind = 0;  // numbers that may be of the wrong kind
};
// Returns the limits of an array: those of the tests of Holdfast's own kernels (in bf16 the neighbour of a right number), or some
// times the error of the default on the same inputs, where they leave few digits. A default that is far off allows nothing.
ErrorLimits error_limits(DType dtype, bool is_words, const NumberErrors& of_default);

// Compares two arrays of one type, of which int32 and words must be equal.
NumberErrors compare_numbers(std::span<const std::byte> actual, std::span<const std::byte> expected,
                             DType dtype, bool is_words);

}  // namespace holdfast::kernels
