#include "runtime/core/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace holdfast::test {
namespace {

std::uint16_t rounded_bits(std::uint32_t bits) {
  return to_bfloat16(std::bit_cast<float>(bits)).bits;
}

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    const BFloat16 again = to_bfloat16(to_float(value));
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(again)));
      EXPECT_EQ(again.bits, bits | 0x40u) << "a NaN keeps sign and payload and becomes quiet";
    } else {
      EXPECT_EQ(again.bits, bits);
    }
  }
}

TEST(BFloat16, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(rounded_bits(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded_bits(0x3f808000), 0x3f80);  // tie, even below
  EXPECT_EQ(rounded_bits(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded_bits(0x3f818000), 0x3f82);  // tie, even above
  EXPECT_EQ(rounded_bits(0xbf818000), 0xbf82);
  EXPECT_EQ(rounded_bits(0x7f7fffff), 0x7f80);  // overflow
  EXPECT_EQ(rounded_bits(0x00008000), 0x0000);  // denormal tie
  EXPECT_EQ(rounded_bits(0x00018000), 0x0002);
}

TEST(BFloat16, NanWhosePayloadIsOnlyInTheLowBitsStaysNan) {
  EXPECT_EQ(rounded_bits(0x7f800001), 0x7fc0);
  EXPECT_EQ(rounded_bits(0xffffffff), 0xffff);
  EXPECT_EQ(rounded_bits(0x7f800000), 0x7f80);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(bytes_of(DType::bf16), 2u);
  EXPECT_EQ(bytes_of(DType::fp64), 8u);
  EXPECT_EQ(name_of(DType::fp32), "fp32");
  EXPECT_EQ(name_of(DType::int32), "int32");
}

}  // namespace
}  // namespace holdfast::test
