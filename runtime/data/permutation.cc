#include "runtime/data/permutation.h"

#include <algorithm>
#include <bit>

#include "runtime/core/check.h"
#include "runtime/core/random.h"

namespace holdfast::data {
namespace {

// Any function will do for a bijection; this one spreads every input bit over the low half.
std::uint64_t round_function(std::uint64_t half, std::uint64_t key) {
  std::uint64_t x = half ^ key;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

}  // namespace

Permutation::Permutation(std::uint64_t length, std::uint64_t key) : length_(length) {
  HF_CHECK(length >= 1);
  // The bits of the largest index, not of the length: 4^k indices need exactly 2k bits, 4^k + 1 need two
  // more.
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(length - 1)) + 1) / 2);
  half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = mix64(key, i);
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & half_mask_;
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t mixed =
        left ^ (round_function(right, keys_[static_cast<std::size_t>(i)]) & half_mask_);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

// Cycle walking: the cipher permutes 4^half_bits values; following it until it is back below the length
// permutes those.
std::uint64_t Permutation::operator()(std::uint64_t index) const {
  HF_CHECK(index < length_);
  std::uint64_t value = encrypt(index);
  while (value >= length_) value = encrypt(value);
  return value;
}

}  // namespace holdfast::data
