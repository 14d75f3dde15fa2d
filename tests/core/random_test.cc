#include "runtime/core/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/normal_lanes.h"

namespace holdfast::test {
namespace {

// Random123, examples/kat_vectors, philox4x32 10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Mix64, NeighboursShareNothing) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t a = 0; a < 200; ++a) {
    for (std::uint64_t b = 0; b < 200; ++b) seen.insert(mix64(a, b));
  }
  EXPECT_EQ(seen.size(), 200u * 200u);
  EXPECT_NE(mix64(1, 2), mix64(2, 1));
  // Half of the bits change when one input bit does.
  double changed = 0.0;
  for (int bit = 0; bit < 64; ++bit) {
    changed += std::popcount(mix64(5, 9) ^ mix64(5 ^ (1ull << bit), 9));
    changed += std::popcount(mix64(5, 9) ^ mix64(5, 9 ^ (1ull << bit)));
  }
  EXPECT_NEAR(changed / 128.0, 32.0, 2.0);
}

TEST(RandomStream, UniformIsInTheHalfOpenUnitIntervalAndFlat) {
  const RandomStream stream(7, 11);
  constexpr std::uint64_t count = 100'000;
  std::vector<int> bins(10);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double value = stream.uniform(i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    ++bins[static_cast<std::size_t>(value * 10.0)];
  }
  for (const int bin : bins) EXPECT_NEAR(bin, 10'000, 500);  // five standard deviations
}

TEST(RandomStream, NormalFollowsItsDefinition) {
  constexpr double pi = 3.14159265358979323846;
  const RandomStream stream(3, 4);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const Philox4 words = philox4x32({static_cast<std::uint32_t>(i), 0, 1, 0}, mix64(3, 4));
    const std::uint64_t first = (std::uint64_t{words[1]} << 32) | words[0];
    const std::uint64_t second = (std::uint64_t{words[3]} << 32) | words[2];
    const double u = static_cast<double>((first >> 11) + 1) * 0x1p-53;
    const double v = static_cast<double>(second >> 11) * 0x1p-53;
    const double expected = std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * pi * v);
    const float value = stream.normal(i);
    ASSERT_NEAR(static_cast<double>(value), expected, 6e-8 * std::abs(expected) + 1e-14) << i;
  }
}

TEST(RandomStream, NormalHasTheMomentsOfTheNormalDistribution) {
  const RandomStream stream(1, 1);
  constexpr std::uint64_t count = 400'000;
  double sum = 0.0;
  double squares = 0.0;
  double fourth = 0.0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(stream.normal(i));
    sum += value;
    squares += value * value;
    fourth += value * value * value * value;
  }
  const double n = static_cast<double>(count);
  EXPECT_NEAR(sum / n, 0.0, 0.008);
  EXPECT_NEAR(squares / n, 1.0, 0.012);
  EXPECT_NEAR(fourth / n, 3.0, 0.08);
}

// The bits are part of every run's identity: a change here changes every initialisation and dropout mask.
TEST(RandomStream, BitsArePinned) {
  const RandomStream stream(1234, 5678);
  DigestStream normals;
  DigestStream words;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    normals.add(std::uint64_t{std::bit_cast<std::uint32_t>(stream.normal(i))});
    words.add(stream.bits(i));
  }
  EXPECT_EQ(to_hex(words.finish()), "8f6001a500d519f202b44256d5e8bacb");
  EXPECT_EQ(to_hex(normals.finish()), "9ca995811fb15865918c3515de1f8d02");
}

// The first of `count` values whose bits are not those of RandomStream::normal; `count` when there is none.
std::int64_t first_difference(std::uint64_t seed, std::uint64_t first_element, float deviation,
                              const std::vector<float>& values) {
  const RandomStream stream(seed, 17);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float expected = deviation * stream.normal(first_element + i);
    if (std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(expected)) {
      return static_cast<std::int64_t>(i);
    }
  }
  return static_cast<std::int64_t>(values.size());
}

TEST(RandomStream, EveryInstructionSetHasTheBitsOfTheDefinition) {
  constexpr std::int64_t counts[] = {normal_lanes, 5 * normal_lanes, 200'000};
  // Odd ones, across 2^32, and across the end.
  constexpr std::uint64_t first_elements[] = {0, 3, (1ull << 32) - 13, (1ull << 40) + 1, ~0ull - 20};
  for (const NormalFiller& filler : normal_fillers()) {
    for (const std::uint64_t seed : {0ull, 1ull, 0x123456789abcdefull}) {
      for (const std::uint64_t first_element : first_elements) {
        for (const std::int64_t count : counts) {
          std::vector<float> values(static_cast<std::size_t>(count));
          filler.fill(mix64(seed, 17), first_element, 0.02F, values.data(), count);
          ASSERT_EQ(first_difference(seed, first_element, 0.02F, values), count)
              << filler.instruction_set << ", seed " << seed << ", from element " << first_element;
        }
      }
    }
  }
}

TEST(RandomStream, FilledNormalsDoNotDependOnWhereThePieceBeginsAndEnds) {
  constexpr std::size_t size = 100;
  for (std::size_t begin = 0; begin < 20; ++begin) {
    for (std::size_t count = 0; count < 40; ++count) {
      std::vector<float> values(size, 7.0F);
      RandomStream(5, 17).fill_normals(1000 + begin, 3.0F, std::span(values).subspan(begin, count));
      const std::vector<float> filled(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                      values.begin() + static_cast<std::ptrdiff_t>(begin + count));
      ASSERT_EQ(first_difference(5, 1000 + begin, 3.0F, filled), static_cast<std::int64_t>(count)) << begin;
      for (std::size_t i = 0; i < size; ++i) {
        const bool outside = i < begin || i >= begin + count;
        ASSERT_TRUE(!outside || std::equal_to<>()(values[i], 7.0F)) << begin << " " << count << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
