// ExactSum: adds doubles without rounding, so that the order of addition (and so the number of ranks and
// threads) cannot matter. A fixed-point accumulator over the whole range of double in 32-bit digits held in
// 64-bit words: 2^30 additions fit before a carry is forced; carries are also propagated by normalise().
// Source: Kulisch's long accumulator.
//
// Sums are added as words, element by element: normalised words of several ranks may go through any integer
// reduction.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace holdfast::core {

class ExactSum {
 public:
  // Number of words: 2100 bits of range (2^-1074 .. 2^1024) in 32-bit digits, plus head room, plus one word
  // that counts NaN, +inf, -inf.
  static constexpr std::size_t word_count = 72;

  void add(double value);
  double value() const;  // correctly rounded to nearest even; NaN or an infinity if one was added

  // Normalises the words for transport: digits in ascending significance, word_count words. Sums of up to
  // 2^20 ranks' words fit.
  void normalise();
  std::span<std::int64_t, word_count> words() { return words_; }
  std::span<const std::int64_t, word_count> words() const { return words_; }

 private:
  std::array<std::int64_t, word_count> words_{};
  std::uint32_t pending_ = 0;  // additions since the last carry propagation
};

}  // namespace holdfast::core
