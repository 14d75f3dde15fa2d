// A bijection of [0, length) that is a pure function of its key: a Feistel network over the next even number
// of bits with cycle walking. No table, O(1). Proven bijective by test for every length up to 5,000,
// every 97th up to 70,000, and around powers of 2 and 4.
#pragma once

#include <array>
#include <cstdint>

namespace holdfast::data {

class Permutation {
 public:
  Permutation(std::uint64_t length, std::uint64_t key);  // length >= 1
  std::uint64_t operator()(std::uint64_t index) const;   // index < length

 private:
  static constexpr int rounds = 6;
  std::uint64_t encrypt(std::uint64_t value) const;
  std::uint64_t length_;
  int half_bits_;
  std::uint64_t half_mask_;
  std::array<std::uint64_t, rounds> keys_;
};

}  // namespace holdfast::data
