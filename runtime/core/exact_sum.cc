#include "runtime/core/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace holdfast::core {
namespace {

// Digit i weighs 2^(32 i - 1074). After normalise() all digits but the top one are in [0, 2^32); the top one
// is signed.
constexpr std::size_t digit_count = ExactSum::word_count - 1;
constexpr std::size_t top_digit = digit_count - 1;
constexpr std::size_t special_word = ExactSum::word_count - 1;
constexpr std::int64_t digit_mask = 0xffffffff;

// The special word has three 21-bit counters that saturate at 1, so the words of 2^20 ranks add without
// carry.
constexpr std::int64_t nan_unit = 1;
constexpr std::int64_t infinity_unit = std::int64_t{1} << 21;
constexpr std::int64_t minus_infinity_unit = std::int64_t{1} << 42;
constexpr std::int64_t counter_mask = (std::int64_t{1} << 21) - 1;

// |word| <= 2^32 (pending + 2^20): a word may also hold the sum of 2^20 ranks' normalised words.
constexpr std::uint32_t pending_limit = 1u << 30;

bool counted(std::int64_t special, std::int64_t unit) {
  return ((special / unit) & counter_mask) != 0;
}

std::int64_t saturated(std::int64_t special) {
  std::int64_t result = 0;
  for (const std::int64_t unit : {nan_unit, infinity_unit, minus_infinity_unit}) {
    if (counted(special, unit)) result |= unit;
  }
  return result;
}

void propagate_carries(std::span<std::int64_t, ExactSum::word_count> words) {
  for (std::size_t i = 0; i < top_digit; ++i) {
    words[i + 1] += words[i] >> 32;  // arithmetic: rounds down, so what is left is not negative
    words[i] &= digit_mask;
  }
}

// Returns bits [first, first + 64) of non-negative normalised digits.
std::uint64_t bits_from(const std::array<std::int64_t, ExactSum::word_count>& digits, std::size_t first) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t digit = first / 32 + i;
    if (digit > top_digit) break;
    const std::uint64_t value = static_cast<std::uint64_t>(digits[digit]);
    const std::size_t offset = first % 32;
    if (i == 0) {
      bits |= value >> offset;
    } else {
      const std::size_t shift = 32 * i - offset;
      if (shift < 64) bits |= value << shift;
    }
  }
  return bits;
}

bool any_bit_below(const std::array<std::int64_t, ExactSum::word_count>& digits, std::size_t end) {
  for (std::size_t i = 0; i < end / 32; ++i) {
    if (digits[i] != 0) return true;
  }
  return end % 32 != 0 && (digits[end / 32] & ((std::int64_t{1} << (end % 32)) - 1)) != 0;
}

// The double nearest to non-negative normalised digits, ties to even.
double rounded(const std::array<std::int64_t, ExactSum::word_count>& digits) {
  std::size_t top = digit_count;
  while (top > 0 && digits[top - 1] == 0) --top;
  if (top == 0) return 0.0;
  const std::size_t bit_count =
      32 * (top - 1) + static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(digits[top - 1])));
  if (bit_count <= 53) return std::ldexp(static_cast<double>(bits_from(digits, 0)), -1074);
  const std::size_t shift = bit_count - 53;
  std::uint64_t mantissa = bits_from(digits, shift) & ((std::uint64_t{1} << 53) - 1);
  const bool half = (bits_from(digits, shift - 1) & 1u) != 0;
  if (half && ((mantissa & 1u) != 0 || any_bit_below(digits, shift - 1))) ++mantissa;
  return std::ldexp(static_cast<double>(mantissa), static_cast<int>(shift) - 1074);
}

}  // namespace

void ExactSum::add(double value) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const bool negative = (bits >> 63) != 0;
  const std::uint64_t exponent = (bits >> 52) & 0x7ffu;
  std::uint64_t mantissa = bits & 0x000fffffffffffffu;
  if (exponent == 0x7ffu) {
    const std::int64_t unit = mantissa != 0 ? nan_unit : negative ? minus_infinity_unit : infinity_unit;
    if (!counted(words_[special_word], unit)) words_[special_word] += unit;
    return;
  }
  if (pending_ >= pending_limit) normalise();
  ++pending_;
  if (exponent != 0) mantissa |= std::uint64_t{1} << 52;
  const std::uint64_t shift = exponent == 0 ? 0 : exponent - 1;
  const std::size_t digit = shift / 32;
  const std::uint64_t offset = shift % 32;
  const std::uint64_t low = (mantissa & 0xffffffffu) << offset;
  const std::uint64_t high = ((mantissa >> 32) << offset) + (low >> 32);
  const std::int64_t sign = negative ? -1 : 1;
  words_[digit] += sign * static_cast<std::int64_t>(low & 0xffffffffu);
  words_[digit + 1] += sign * static_cast<std::int64_t>(high & 0xffffffffu);
  words_[digit + 2] += sign * static_cast<std::int64_t>(high >> 32);
}

void ExactSum::normalise() {
  propagate_carries(words_);
  words_[special_word] = saturated(words_[special_word]);
  pending_ = 0;
}

double ExactSum::value() const {
  const std::int64_t special = words_[special_word];
  const bool plus = counted(special, infinity_unit);
  const bool minus = counted(special, minus_infinity_unit);
  if (counted(special, nan_unit) || (plus && minus)) return std::numeric_limits<double>::quiet_NaN();
  if (plus) return std::numeric_limits<double>::infinity();
  if (minus) return -std::numeric_limits<double>::infinity();
  std::array<std::int64_t, word_count> digits = words_;
  propagate_carries(digits);
  const bool negative = digits[top_digit] < 0;
  if (negative) {
    for (std::size_t i = 0; i < digit_count; ++i) digits[i] = -digits[i];
    propagate_carries(digits);
  }
  const double magnitude = rounded(digits);
  return negative ? -magnitude : magnitude;
}

}  // namespace holdfast::core
