#include "runtime/interop/weight_files.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace holdfast::test {
namespace {

// IEEE 754 binary16 by its definition.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(FloatOfHalf, EveryHalf) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float_of_half(half);
    if (((half >> 10) & 31) != 31) {
      ASSERT_EQ(static_cast<double>(value), half_value(half)) << bits;
      ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << bits;
    } else if ((half & 1023) == 0) {
      ASSERT_TRUE(std::isinf(value) && std::signbit(value) == ((half & 0x8000) != 0)) << bits;
    } else {
      ASSERT_TRUE(std::isnan(value)) << bits;
    }
  }
}

}  // namespace
}  // namespace holdfast::test
