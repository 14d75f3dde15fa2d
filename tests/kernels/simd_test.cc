// The portable compilation of simd.h; that the others give the same bits is what expect_op() shows for
// every op.
#define HF_ISA portable
#include "kernels/cpu/simd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace holdfast::kernels::cpu::portable {
namespace {

float exp_of(float x) {
  return exp(broadcast(x)).part[0][0];
}

TEST(Simd, ExpIsWithinTwoUlpOverItsWholeRange) {
  constexpr std::uint32_t step = 1009;  // of the bit pattern
  for (const float sign : {1.0F, -1.0F}) {
    for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(87.3F); bits += step) {
      const float x = sign * std::bit_cast<float>(bits);
      if (x > 87.0F) break;  // saturated
      const double expected = std::exp(static_cast<double>(x));
      const float rounded = static_cast<float>(expected);
      const double ulp = static_cast<double>(std::nextafter(rounded, INFINITY) - rounded);
      ASSERT_LE(std::abs(static_cast<double>(exp_of(x)) - expected), 2 * ulp) << x;
    }
  }
}

TEST(Simd, ExpAtTheEnds) {
  EXPECT_EQ(exp_of(0.0F), 1.0F);
  EXPECT_EQ(exp_of(-INFINITY), 0.0F);
  EXPECT_EQ(exp_of(-1e30F), 0.0F);
  EXPECT_EQ(exp_of(-88.0F), 0.0F);  // a denormal is flushed
  EXPECT_GE(exp_of(-87.3365402F), std::numeric_limits<float>::min());
  for (const float large : {87.5F, 88.73F, 1e30F, INFINITY}) EXPECT_EQ(exp_of(large), exp_of(87.0F));
  EXPECT_TRUE(std::isnan(exp_of(NAN)));
}

TEST(Simd, SigmoidsAreAccurateOnBothSides) {
  for (float x = -86.0F; x < 86.0F; x += 0.0137F) {
    const SigmoidPair pair = sigmoid_pair(broadcast(x));
    const double of_x = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    const double of_minus_x = 1.0 / (1.0 + std::exp(static_cast<double>(x)));
    ASSERT_NEAR(pair.of_x.part[0][0] / of_x, 1.0, 4e-7) << x;
    ASSERT_NEAR(pair.of_minus_x.part[0][0] / of_minus_x, 1.0, 4e-7) << x;
  }
}

TEST(Simd, SigmoidsAtTheEnds) {
  EXPECT_EQ(sigmoid(broadcast(INFINITY)).part[0][0], 1.0F);
  EXPECT_EQ(sigmoid(broadcast(-INFINITY)).part[0][0], 0.0F);
  EXPECT_EQ(sigmoid(broadcast(-88.0F)).part[0][0], 0.0F);
  EXPECT_TRUE(std::isnan(sigmoid(broadcast(NAN)).part[0][0]));
  const SigmoidPair far = sigmoid_pair(broadcast(-1e30F));
  EXPECT_EQ(far.of_x.part[0][0], 0.0F);
  EXPECT_EQ(far.of_minus_x.part[0][0], 1.0F);
}

TEST(Simd, StoresToBFloat16RoundAsTheScalarConversion) {
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      BFloat16 stored[vector_lanes];
      store(stored, broadcast(value));
      ASSERT_EQ(stored[5].bits, to_bfloat16(value).bits) << std::hex << (high << 16 | low);
    }
  }
}

TEST(Simd, TailsLoadZerosAndStoreNothingMore) {
  float memory[vector_lanes + 1];
  for (int i = 0; i <= vector_lanes; ++i) memory[i] = static_cast<float>(i + 1);
  for (int count = 0; count <= vector_lanes; ++count) {
    EXPECT_EQ(reduce_add(load(memory, FirstLanes{count})), static_cast<float>(count * (count + 1) / 2));
    EXPECT_EQ(reduce_max(keep(load(memory), FirstLanes{count}, -1.0F)),
              count == 0 ? -1.0F : static_cast<float>(count));
    float target[vector_lanes + 1] = {};
    store(target, load(memory), FirstLanes{count});
    for (int i = 0; i <= vector_lanes; ++i) EXPECT_EQ(target[i], i < count ? memory[i] : 0.0F);
  }
}

TEST(Simd, SumsAreTheDocumentedTree) {
  float v[vector_lanes];
  for (int i = 0; i < vector_lanes; ++i) v[i] = std::ldexp(1.0F + static_cast<float>(i) / 7.0F, (i * 5) % 23);
  float tree[vector_lanes];
  std::copy(v, v + vector_lanes, tree);
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) tree[i] += tree[i + width];
  }
  EXPECT_EQ(reduce_add(load(v)), tree[0]);
}

}  // namespace
}  // namespace holdfast::kernels::cpu::portable
