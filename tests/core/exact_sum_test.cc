#include "runtime/core/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double smallest = std::numeric_limits<double>::denorm_min();
constexpr double largest = std::numeric_limits<double>::max();

std::uint64_t bits_of(double value) {
  return std::bit_cast<std::uint64_t>(value);
}

ExactSum sum_of(std::span<const double> values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum;
}
// What a reduction over ranks does: normalised words, added one by one.
void add_words(ExactSum& total, ExactSum part) {
  part.normalise();
  for (std::size_t i = 0; i < ExactSum::word_count; ++i) total.words()[i] += part.words()[i];
}
double value_of(std::initializer_list<double> values) {
  return sum_of(std::vector<double>(values)).value();
}

// Finite doubles of every exponent, denormals among them, with near-copies of the opposite sign that cancel.
std::vector<double> wild_values(std::uint64_t seed, std::size_t count) {
  const RandomStream stream(seed, 0);
  std::vector<double> values;
  for (std::uint64_t i = 0; values.size() < count; ++i) {
    const double value = std::bit_cast<double>(stream.bits(i));
    if (!std::isfinite(value)) continue;
    values.push_back(value);
    if (i % 2 == 0) values.push_back(-std::nextafter(value, i % 4 == 0 ? 0.0 : value));
    if (i % 5 == 0) values.push_back(static_cast<double>(i) * smallest);
  }
  return values;
}

void shuffle(std::vector<double>& values, std::uint64_t seed) {
  const RandomStream stream(seed, 1);
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[stream.bits(i) % i]);
}

// Shewchuk's algorithm as in Python's math.fsum: correctly rounded when nothing overflows.
double reference_sum(const std::vector<double>& values) {
  std::vector<double> partials;
  for (double x : values) {
    std::size_t kept = 0;
    for (double y : partials) {
      if (std::abs(x) < std::abs(y)) std::swap(x, y);
      const double high = x + y;
      const double low = y - (high - x);
      if (bits_of(std::abs(low)) != 0) partials[kept++] = low;
      x = high;
    }
    partials.resize(kept);
    partials.push_back(x);
  }
  double high = 0.0;
  double low = 0.0;
  std::size_t n = partials.size();
  while (n > 0) {
    const double x = high;
    const double y = partials[--n];
    high = x + y;
    low = y - (high - x);
    if (bits_of(std::abs(low)) != 0) break;
  }
  // Half-way cases: the sign of the next partial decides.
  if (n > 0 && ((low < 0.0 && partials[n - 1] < 0.0) || (low > 0.0 && partials[n - 1] > 0.0))) {
    const double y = low * 2.0;
    const double x = high + y;
    if (bits_of(std::abs(y - (x - high))) == 0) high = x;
  }
  return high;
}

TEST(ExactSum, EmptyAndSingleValues) {
  EXPECT_EQ(bits_of(ExactSum().value()), bits_of(0.0));
  for (const double value :
       {1.0, -1.0, smallest, -smallest, largest, -largest, 0x1p-1022, 0x1.fffffffffffffp-1023}) {
    EXPECT_EQ(bits_of(value_of({value})), bits_of(value));
  }
  EXPECT_EQ(bits_of(value_of({-0.0})), bits_of(0.0));
}

TEST(ExactSum, NothingIsLostToCancellation) {
  EXPECT_EQ(bits_of(value_of({1e308, 1.0, -1e308})), bits_of(1.0));
  EXPECT_EQ(bits_of(value_of({largest, smallest, largest, -largest, -largest})), bits_of(smallest));
  EXPECT_EQ(bits_of(value_of({1.0, -1.0})), bits_of(0.0));
  EXPECT_EQ(bits_of(value_of({-smallest, -smallest})), bits_of(-2.0 * smallest));
}

TEST(ExactSum, RoundsTiesToEvenAndSeesFarBits) {
  EXPECT_EQ(bits_of(value_of({1.0, 0x1p-53})), bits_of(1.0));
  EXPECT_EQ(bits_of(value_of({1.0 + 0x1p-52, 0x1p-53})), bits_of(1.0 + 0x1p-51));
  EXPECT_EQ(bits_of(value_of({1.0, 0x1p-53, smallest})), bits_of(1.0 + 0x1p-52));
  EXPECT_EQ(bits_of(value_of({1.0 + 0x1p-52, 0x1p-53, -smallest})), bits_of(1.0 + 0x1p-52));
  EXPECT_EQ(bits_of(value_of({-1.0, -0x1p-53})), bits_of(-1.0));
  EXPECT_EQ(bits_of(value_of({-1.0, -0x1p-53, -smallest})), bits_of(-1.0 - 0x1p-52));
}

TEST(ExactSum, OverflowOnlyWhenTheSumItselfIsTooLarge) {
  EXPECT_EQ(bits_of(value_of({largest, largest})), bits_of(infinity));
  EXPECT_EQ(bits_of(value_of({-largest, -largest})), bits_of(-infinity));
  EXPECT_EQ(bits_of(value_of({largest, largest, -largest})), bits_of(largest));
  // Half a unit in the last place above the largest double is a tie, and the even neighbour is infinity.
  EXPECT_EQ(bits_of(value_of({largest, 0x1p970})), bits_of(infinity));
  EXPECT_EQ(bits_of(value_of({largest, 0x1p970, -smallest})), bits_of(largest));
}

TEST(ExactSum, PermutationsOfWildValuesHaveTheSameBits) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    std::vector<double> values = wild_values(seed, 500);
    const ExactSum first = sum_of(values);
    for (std::uint64_t permutation = 0; permutation < 20; ++permutation) {
      shuffle(values, 100 * seed + permutation);
      ExactSum again = sum_of(values);
      ASSERT_EQ(bits_of(again.value()), bits_of(first.value()));
      again.normalise();
      ExactSum normal = first;
      normal.normalise();
      ASSERT_TRUE(std::ranges::equal(again.words(), normal.words()));
    }
  }
}

TEST(ExactSum, AgreesWithShewchuk) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::vector<double> values = wild_values(seed, 60);
    // The reference overflows on the way where the accumulator does not.
    std::erase_if(values, [](double value) { return std::abs(value) > 0x1p990; });
    ASSERT_EQ(bits_of(sum_of(values).value()), bits_of(reference_sum(values))) << seed;
  }
}

TEST(ExactSum, AgreesWithInteger128) {
  const RandomStream stream(5, 5);
  std::uint64_t element = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    __int128 exact = 0;
    ExactSum sum;
    for (int i = 0; i < 30; ++i) {
      const int shift = static_cast<int>(stream.bits(element++) % 60);
      std::int64_t mantissa = static_cast<std::int64_t>(stream.bits(element++) >> 11);
      if (stream.bits(element++) % 2 == 0) mantissa = -mantissa;
      exact += static_cast<__int128>(mantissa) * (static_cast<__int128>(1) << shift);
      sum.add(std::ldexp(static_cast<double>(mantissa), shift - 500));
    }
    ASSERT_EQ(bits_of(sum.value()), bits_of(std::ldexp(static_cast<double>(exact), -500)));
  }
}

TEST(ExactSum, AnySplitAddsUpToTheSameBits) {
  std::vector<double> values = wild_values(42, 1000);
  const double expected = sum_of(values).value();
  for (const std::size_t parts : {2u, 3u, 7u, 64u, 1000u}) {
    std::vector<ExactSum> sums(parts);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i * 31 % parts].add(values[i]);
    ExactSum total;
    for (const ExactSum& sum : sums) add_words(total, sum);
    EXPECT_EQ(bits_of(total.value()), bits_of(expected)) << parts;
  }
}

TEST(ExactSum, WordsOfAMillionRanksAddElementwise) {
  ExactSum sum;
  for (const double value : {largest, -0.1, smallest, infinity}) sum.add(value);
  sum.normalise();
  constexpr std::int64_t ranks = std::int64_t{1} << 20;
  ExactSum total;
  for (std::size_t i = 0; i < ExactSum::word_count; ++i) total.words()[i] = sum.words()[i] * ranks;
  EXPECT_EQ(bits_of(total.value()), bits_of(infinity));

  ExactSum finite;
  finite.add(-0.1);
  finite.add(smallest);
  finite.normalise();
  for (std::size_t i = 0; i < ExactSum::word_count; ++i) total.words()[i] = finite.words()[i] * ranks;
  total.add(0.1 * 0x1p20);
  EXPECT_EQ(bits_of(total.value()), bits_of(smallest * 0x1p20));
}

TEST(ExactSum, ManySumsOfWordsCarry) {
  ExactSum one;
  for (int i = 0; i < 100; ++i) one.add(0x1.fffffffffffffp0);
  ExactSum total;
  for (int i = 0; i < 5000; ++i) add_words(total, one);
  for (int i = 0; i < 30; ++i) {  // doubles each time; without carries a word would overflow
    total.normalise();
    add_words(total, total);
  }
  EXPECT_EQ(bits_of(total.value()), bits_of(0x1.fffffffffffffp0 * (500000.0 * 0x1p30)));
}

TEST(ExactSum, NanAndInfinities) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(value_of({1.0, nan})));
  EXPECT_TRUE(std::isnan(value_of({infinity, -infinity})));
  EXPECT_TRUE(std::isnan(value_of({infinity, nan})));
  EXPECT_EQ(bits_of(value_of({infinity, 1.0, infinity})), bits_of(infinity));
  EXPECT_EQ(bits_of(value_of({-infinity, largest})), bits_of(-infinity));
  ExactSum plus;
  plus.add(infinity);
  ExactSum minus;
  minus.add(-infinity);
  ExactSum both = plus;
  add_words(both, plus);
  EXPECT_EQ(bits_of(both.value()), bits_of(infinity));
  add_words(both, minus);
  EXPECT_TRUE(std::isnan(both.value()));
}

}  // namespace
}  // namespace holdfast::test
