#include "tests/fuzz/mutation.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace holdfast::fuzz {
namespace {

constexpr std::array<std::uint64_t, 16> favourite_numbers = {
    0,    1,      2,      7,          8,          127,        128,        255,
    4096, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 63, ~0ULL >> 1};
constexpr std::array<std::string_view, 12> favourite_digits = {"0",
                                                               "1",
                                                               "-1",
                                                               "2147483647",
                                                               "4294967296",
                                                               "9223372036854775807",
                                                               "18446744073709551615",
                                                               "1e308",
                                                               "-0.0",
                                                               "1e-320",
                                                               "99999999999999999999",
                                                               "0.5"};

// splitmix64: any two seeds give streams that have nothing to do with each other.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t number) : state_(seed * 0x9e3779b97f4a7c15U ^ number) { next(); }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  // 0 where there is nothing to choose from.
  std::size_t below(std::size_t end) { return end == 0 ? 0 : next() % end; }

 private:
  std::uint64_t state_;
};

class Mutator {
 public:
  Mutator(std::span<const Bytes> corpus, std::span<const std::string_view> words, std::uint64_t seed,
          std::uint64_t number)
      : corpus_(corpus), words_(words), draws_(seed, number), bytes_(corpus[draws_.below(corpus.size())]) {}

  Bytes mutate() {
    const std::size_t longest = std::max(bytes_.size(), mutated_bytes_max);
    for (std::size_t changes = std::size_t{1} << draws_.below(4); changes > 0; --changes) change();
    if (bytes_.size() > longest) bytes_.resize(longest);
    return std::move(bytes_);
  }

 private:
  // Files are padded with zeros, of which nothing follows: other places are preferred.
  std::size_t place() {
    std::size_t at = draws_.below(bytes_.size());
    for (int tries = 0; tries < 12 && at < bytes_.size() && bytes_[at] == std::byte{0}; ++tries)
      at = draws_.below(bytes_.size());
    return at;
  }
  std::size_t length(std::size_t at) {
    const std::size_t most = std::size_t{1} << draws_.below(10);
    return std::min(bytes_.size() - at, 1 + draws_.below(most));
  }
  void insert(std::size_t at, std::span<const std::byte> part) {
    const Bytes copy(part.begin(), part.end());  // it may be a part of what moves
    bytes_.insert(bytes_.begin() + static_cast<std::ptrdiff_t>(at), copy.begin(), copy.end());
  }
  void insert(std::size_t at, std::string_view text) { insert(at, std::as_bytes(std::span(text))); }
  void erase(std::size_t at, std::size_t count) {
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(at);
    bytes_.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  std::span<const std::byte> part_of(const Bytes& from) {
    if (from.empty()) return {};
    const std::size_t at = draws_.below(from.size());
    return std::span(from).subspan(at, 1 + draws_.below(std::min<std::size_t>(from.size() - at, 512)));
  }

  void change_number() {
    const std::size_t width = std::size_t{1} << draws_.below(4);
    const std::size_t at = place();
    if (bytes_.size() - at < width) return;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at, width);
    switch (draws_.below(3)) {
      case 0:
        value = favourite_numbers[draws_.below(favourite_numbers.size())];
        break;
      case 1:
        value += draws_.below(71) - 35;
        break;
      default:
        value = draws_.next();
    }
    std::memcpy(bytes_.data() + at, &value, width);
  }
  void change_digits() {
    const auto is_digit = [](std::byte each) { return each >= std::byte{'0'} && each <= std::byte{'9'}; };
    std::size_t at = place();
    while (at < bytes_.size() && !is_digit(bytes_[at])) ++at;
    std::size_t end = at;
    while (end < bytes_.size() && is_digit(bytes_[end])) ++end;
    erase(at, end - at);
    insert(at, favourite_digits[draws_.below(favourite_digits.size())]);
  }
  // Depth: many opening brackets, or any other bytes many times over.
  void repeat() {
    const std::size_t at = place();
    const Bytes part(bytes_.begin() + static_cast<std::ptrdiff_t>(at),
                     bytes_.begin() + static_cast<std::ptrdiff_t>(at + std::min<std::size_t>(length(at), 8)));
    const std::size_t times = std::size_t{1} << draws_.below(14);
    Bytes many;
    for (std::size_t i = 0; i < times && many.size() < mutated_bytes_max / 2; ++i)
      many.insert(many.end(), part.begin(), part.end());
    insert(at, many);
  }

  void change() {
    const std::size_t kind = bytes_.empty() ? 9 : draws_.below(words_.empty() ? 10 : 13);
    const std::size_t at = place();
    switch (kind) {
      case 0:
        bytes_[at] ^= static_cast<std::byte>(1U << draws_.below(8));
        break;
      case 1:
        bytes_[at] = static_cast<std::byte>(draws_.below(256));
        break;
      case 2:
      case 3:
        change_number();
        break;
      case 4:
        change_digits();
        break;
      case 5:
        erase(at, length(at));
        break;
      case 6:
        insert(place(), std::span(bytes_).subspan(at, length(at)));
        break;
      case 7:
        bytes_.resize(at);
        break;
      case 8:
        if (draws_.below(8) == 0) repeat();
        break;
      case 9:
        insert(at, part_of(corpus_[draws_.below(corpus_.size())]));
        break;
      default:
        insert(at, words_[draws_.below(words_.size())]);
    }
  }

  std::span<const Bytes> corpus_;
  std::span<const std::string_view> words_;
  Draws draws_;
  Bytes bytes_;
};

}  // namespace

Bytes mutated(std::span<const Bytes> corpus, std::span<const std::string_view> words, std::uint64_t seed,
              std::uint64_t number) {
  return Mutator(corpus, words, seed, number).mutate();
}

}  // namespace holdfast::fuzz
