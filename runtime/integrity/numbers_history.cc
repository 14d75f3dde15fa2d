#include "runtime/integrity/numbers_history.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "runtime/core/check.h"

namespace holdfast::integrity {
namespace {

constexpr std::size_t digits_of_word = 16;
constexpr std::size_t words_of_step = 3;

// Writes the digits itself, because the state is written as often as once a step.
void put_word(std::string& text, std::uint64_t word) {
  std::array<char, digits_of_word> digits{};
  for (std::size_t i = digits_of_word; i-- > 0; word >>= 4) digits[i] = "0123456789abcdef"[word & 15];
  text.append(digits.data(), digits.size());
}

// Takes words from the front of a text; `whole` turns false at the first that is none.
struct WordReader {
  std::string_view text;
  bool whole = true;

  std::uint64_t take() {
    std::uint64_t word = 0;
    const std::string_view digits = text.substr(0, digits_of_word);
    const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), word, 16);
    whole = whole && digits.size() == digits_of_word && end.ec == std::errc() &&
            end.ptr == digits.data() + digits.size();
    text.remove_prefix(digits.size());
    return word;
  }
  double take_real() { return std::bit_cast<double>(take()); }
};

}  // namespace

void NumbersHistory::set_window(std::int64_t window_steps) {
  HF_CHECK(window_steps >= 1 && window_steps <= capacity);
  window_steps_ = window_steps;
  size_ = std::min(size_, window_steps_);
}

void NumbersHistory::add(const StepNumbers& numbers) {
  HF_CHECK(std::isfinite(numbers.loss) && std::isfinite(numbers.grad_norm));
  if (numbers.counted_targets == 0) return;
  HF_CHECK(size_ == 0 || newest(0).step < numbers.step);
  ring_[static_cast<std::size_t>(next_)] = {numbers.step, numbers.loss, numbers.grad_norm};
  next_ = (next_ + 1) % capacity;
  size_ = std::min(size_ + 1, window_steps_);
}

void NumbersHistory::skip(std::uint64_t step) {
  HF_CHECK(skipped_.empty() || skipped_.back() < step);
  skipped_.push_back(step);
}

const CommittedNumbers& NumbersHistory::newest(std::int64_t age) const {
  HF_CHECK(age >= 0 && age < size_);
  return ring_[static_cast<std::size_t>((next_ + capacity - 1 - age) % capacity)];
}

std::int64_t NumbersHistory::skipped_since(std::uint64_t step) const {
  return skipped_.end() - std::ranges::lower_bound(skipped_, step);
}

std::string NumbersHistory::text() const {
  std::string text;
  const std::size_t words = 2 + words_of_step * static_cast<std::size_t>(size_) + skipped_.size();
  text.reserve(words * digits_of_word);
  put_word(text, static_cast<std::uint64_t>(window_steps_));
  put_word(text, static_cast<std::uint64_t>(size_));
  for (std::int64_t age = size_ - 1; age >= 0; --age) {
    const CommittedNumbers& numbers = newest(age);
    put_word(text, numbers.step);
    put_word(text, std::bit_cast<std::uint64_t>(numbers.loss));
    put_word(text, std::bit_cast<std::uint64_t>(numbers.grad_norm));
  }
  for (const std::uint64_t step : skipped_) put_word(text, step);
  return text;
}

std::optional<NumbersHistory> NumbersHistory::from_text(std::string_view text) {
  WordReader reader{text};
  const std::uint64_t window_steps = reader.take();
  const std::uint64_t held = reader.take();
  if (!reader.whole || window_steps < 1 || window_steps > capacity || held > window_steps) return {};
  NumbersHistory history(static_cast<std::int64_t>(window_steps));
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < held; ++i) {
    const CommittedNumbers numbers{reader.take(), reader.take_real(), reader.take_real()};
    const bool is_finite = std::isfinite(numbers.loss) && std::isfinite(numbers.grad_norm);
    if (!reader.whole || numbers.step <= last || !is_finite) return {};
    history.add(
        {.step = numbers.step, .loss = numbers.loss, .grad_norm = numbers.grad_norm, .counted_targets = 1});
    last = numbers.step;
  }
  last = 0;
  while (!reader.text.empty()) {
    const std::uint64_t step = reader.take();
    if (!reader.whole || step <= last) return {};
    history.skip(step);
    last = step;
  }
  return history;
}

}  // namespace holdfast::integrity
