#include "kernels/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "runtime/core/random.h"
#include "runtime/core/tensor.h"

namespace holdfast::test {
namespace {

float rounded(float value, std::uint32_t random) {
  return std::bit_cast<float>(rounded_with(std::bit_cast<std::uint32_t>(value), random));
}

// The mean over all random bits, of numbers of both signs and denormal ones: exact, because every bit is counted.
TEST(StochasticRounding, HasTheMeanOfTheNumber) {
  for (const float value :
       {1.0F, 1.0001F, -1.2345678F, 3.3e38F, -7.7e-39F, 1e-42F, 0.1F, -65535.7F, 1e-20F}) {
    double sum = 0;
    for (std::uint32_t random = 0; random < 1U << 16; ++random)
      sum += static_cast<double>(rounded(value, random));
    EXPECT_EQ(sum / (1 << 16), static_cast<double>(value)) << value;
  }
}

TEST(StochasticRounding, GivesANeighbourInBFloat16) {
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const std::uint64_t bits = RandomStream(1, 0).bits(i);
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!std::isfinite(value)) continue;
    const float kept = rounded(value, static_cast<std::uint32_t>(bits >> 48));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(kept) & 0xffffU, 0U);
    const std::uint32_t towards_zero = std::bit_cast<std::uint32_t>(value) & 0xffff0000U;
    ASSERT_TRUE(std::bit_cast<std::uint32_t>(kept) == towards_zero ||
                std::bit_cast<std::uint32_t>(kept) == towards_zero + 0x10000U)
        << value;
    const bool is_of_bf16 = std::bit_cast<std::uint32_t>(value) == towards_zero;
    ASSERT_TRUE(!is_of_bf16 || std::bit_cast<std::uint32_t>(kept) == towards_zero) << value;
  }
}

TEST(StochasticRounding, KeepsWhatIsNoFiniteNumber) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint32_t random : {0U, 1U, 0x8000U, 0xffffU}) {
    EXPECT_EQ(rounded(infinity, random), infinity);
    EXPECT_EQ(rounded(-infinity, random), -infinity);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(rounded(0.0F, random)), 0U);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(rounded(-0.0F, random)), 0x80000000U);
    for (const std::uint32_t nan : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffffffffU}) {
      const std::uint32_t kept = rounded_with(nan, random);
      EXPECT_EQ(kept >> 16, to_bfloat16(std::bit_cast<float>(nan)).bits) << nan;
      EXPECT_EQ(kept & 0xffffU, 0U);
    }
  }
}

// Counts, for the lower and the upper half of the bits of so many elements, the shares below a threshold.
class Draws {
 public:
  static constexpr int blocks = 64;
  static constexpr double count = 4096.0 * blocks;
  explicit Draws(std::uint64_t key) : key_(key) {}
  std::uint32_t operator()(std::uint64_t block, std::uint32_t element) const {
    return rounding_bits(rounding_key_of_block(key_, block), element);
  }
  // Adds up of(bits of an element) over all of them.
  template <typename Of>
  double sum(const Of& of) const {
    double total = 0;
    for (std::uint64_t block = 0; block < blocks; ++block) {
      for (std::uint32_t element = 0; element < 4096; ++element) total += of(block, element);
    }
    return total;
  }

 private:
  std::uint64_t key_;
};

// Maps 16 bits to [-1, 1), with mean 0 and variance 1/3.
double centered(std::uint32_t half) {
  return (static_cast<double>(half & 0xffffU) - 32767.5) / 32768;
}

// Chances of every size, for both moments. Five deviations of the binomial distribution.
TEST(RoundingBits, RoundUpAsOftenAsTheyMust) {
  for (const std::uint64_t key : {0UL, 1UL, 0xdeadbeefcafe1234UL}) {
    const Draws draws(key);
    for (const double chance : {1.0 / 4096, 0.01, 0.25, 0.5, 0.9, 0.999}) {
      const auto below = static_cast<std::uint32_t>(chance * 65536);
      const double exact = below / 65536.0;
      for (const int shift : {0, 16}) {
        const double share = draws.sum([&](std::uint64_t block, std::uint32_t element) {
          return (draws(block, element) >> shift & 0xffffU) < below ? 1.0 : 0.0;
        }) / Draws::count;
        EXPECT_NEAR(share, exact, 5 * std::sqrt(exact * (1 - exact) / Draws::count))
            << chance << " " << shift;
      }
    }
  }
}

// The correlation of two draws has a deviation of 1 / sqrt(count).
TEST(RoundingBits, OfElementsBlocksMomentsAndUpdatesAreIndependent) {
  const std::uint64_t seed = 42;
  const Draws draws(mix64(seed, 1)), next(mix64(seed, 2));
  const double limit =
      5 / std::sqrt(Draws::count) / 3;  // of the sum of products, whose factors have variance 1/3
  const auto correlation = [&](const auto& other) {
    return draws.sum([&](std::uint64_t block, std::uint32_t element) {
      return centered(draws(block, element)) * centered(other(block, element));
    }) / Draws::count;
  };
  EXPECT_NEAR(correlation([&](std::uint64_t b, std::uint32_t e) { return draws(b, e) >> 16; }), 0, limit);
  EXPECT_NEAR(correlation([&](std::uint64_t b, std::uint32_t e) { return next(b, e); }), 0, limit);
  EXPECT_NEAR(correlation([&](std::uint64_t b, std::uint32_t e) { return draws(b + 1, e); }), 0, limit);
  for (const std::uint32_t distance : {1U, 2U, 4U, 16U, 64U, 1024U})
    EXPECT_NEAR(correlation([&](std::uint64_t b, std::uint32_t e) { return draws(b, e + distance); }), 0,
                limit)
        << distance;
  EXPECT_GT(correlation(draws), 0.3) << "what equal draws have";
}

// A check of all devices against values that none of them computed: the definition in Python.
TEST(RoundingBits, AreTheDefinition) {
  const RoundingKey key = rounding_key_of_block(0x123456789abcdef0U, 5);
  EXPECT_EQ(key.first, 0x0c4476b6U);
  EXPECT_EQ(key.second, 0x99af6f9bU);
  EXPECT_EQ(rounding_bits(key, 0U), 0xbc3c24b5U);
  EXPECT_EQ(rounding_bits(key, 4095U), 0xf68b60f3U);
}

}  // namespace
}  // namespace holdfast::test
