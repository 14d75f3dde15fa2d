#include "runtime/data/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

// The permutation undone: the same network run backwards, written down a second time. An inverse at every
// index of a length that is too long to enumerate is the proof that no two indices meet there.
class Inverse {
 public:
  Inverse(std::uint64_t length, std::uint64_t key)
      : length_(length), half_bits_(std::max(1, (static_cast<int>(std::bit_width(length - 1)) + 1) / 2)) {
    for (std::uint64_t i = 0; i < 6; ++i) keys_.push_back(mix64(key, i));
  }
  std::uint64_t operator()(std::uint64_t value) const {
    std::uint64_t index = decrypt(value);
    while (index >= length_) index = decrypt(index);
    return index;
  }

 private:
  static std::uint64_t round_function(std::uint64_t half, std::uint64_t key) {
    std::uint64_t x = half ^ key;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
  }
  std::uint64_t decrypt(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::size_t i = keys_.size(); i-- > 0;) {
      const std::uint64_t before = right ^ (round_function(left, keys_[i]) & mask);
      right = left;
      left = before;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t length_;
  int half_bits_;
  std::vector<std::uint64_t> keys_;
};

// Every value below the length is hit exactly once.
bool is_bijection(std::uint64_t length, std::uint64_t key) {
  const Permutation permutation(length, key);
  std::vector<std::uint64_t> seen((length + 63) / 64);
  for (std::uint64_t i = 0; i < length; ++i) {
    const std::uint64_t value = permutation(i);
    if (value >= length) return false;
    const std::uint64_t bit = std::uint64_t{1} << (value % 64);
    if ((seen[value / 64] & bit) != 0) return false;
    seen[value / 64] |= bit;
  }
  return true;
}

// All lengths that walk over the same domain are cut from the same cipher, so the densest set of short
// lengths and a regular sample of the longer ones cover every domain many times.
TEST(PermutationTest, EveryShortLengthIsABijection) {
  for (std::uint64_t length = 1; length <= 5000; ++length)
    ASSERT_TRUE(is_bijection(length, length)) << length;
}

TEST(PermutationTest, LengthsUpTo70000AreBijections) {
  for (std::uint64_t length = 5001; length <= 70000; length += 97) {
    ASSERT_TRUE(is_bijection(length, length)) << length;
  }
}

// 4^k + 1 is where a domain that is one too small shows.
TEST(PermutationTest, LengthsAroundPowersOfTwoAreBijections) {
  for (int k = 12; k <= 20; ++k) {
    const std::uint64_t power = std::uint64_t{1} << k;
    for (const std::uint64_t length : {power - 1, power, power + 1}) {
      ASSERT_TRUE(is_bijection(length, 5)) << length;
    }
  }
  ASSERT_TRUE(is_bijection((std::uint64_t{1} << 22) + 1, 5));
}

TEST(PermutationTest, AnInverseUndoesItForLargeLengths) {
  const RandomStream random(3, 4);
  for (int k = 1; k <= 63; ++k) {
    const std::uint64_t power = std::uint64_t{1} << k;
    for (const std::uint64_t length : {power - 1, power, power + 1, power + power / 2}) {
      const Permutation permutation(length, 77);
      const Inverse inverse(length, 77);
      for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t index = i == 0 ? length - 1 : random.bits(i) % length;
        const std::uint64_t value = permutation(index);
        ASSERT_LT(value, length);
        ASSERT_EQ(inverse(value), index) << "length " << length;
        ASSERT_EQ(permutation(inverse(index)), index) << "length " << length;
      }
    }
  }
}

TEST(PermutationTest, IsAPureFunctionOfItsKey) {
  const Permutation a(100000, 1);
  const Permutation again(100000, 1);
  const Permutation b(100000, 2);
  int same = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(a(i), again(i));
    if (a(i) == b(i)) ++same;
  }
  EXPECT_LT(same, 5);
}

// The order is part of what a run promises to repeat: a change of the cipher is a change of every run's data.
TEST(PermutationTest, TheOrderNeverChanges) {
  const Permutation permutation(10, 1);
  std::vector<std::uint64_t> order;
  for (std::uint64_t i = 0; i < 10; ++i) order.push_back(permutation(i));
  EXPECT_EQ(order, (std::vector<std::uint64_t>{5, 7, 4, 0, 1, 9, 6, 3, 2, 8}));
}

// Neighbours are torn apart: the distance between the values of neighbouring indices is that of independent
// draws (a third of the length on average), and no position is favoured.
TEST(PermutationTest, LooksShuffled) {
  constexpr std::uint64_t length = 50000;
  const Permutation permutation(length, 11);
  double distance = 0.0;
  std::vector<int> counts(16);
  for (std::uint64_t i = 0; i + 1 < length; ++i) {
    distance += std::abs(static_cast<double>(permutation(i)) - static_cast<double>(permutation(i + 1)));
    if (i < length / 16) ++counts[permutation(i) * 16 / length];
  }
  EXPECT_NEAR(distance / static_cast<double>(length) / static_cast<double>(length), 1.0 / 3.0, 0.01);
  for (const int count : counts) EXPECT_NEAR(count, 195, 70);
}

}  // namespace
}  // namespace holdfast::test
