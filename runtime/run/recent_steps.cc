#include "runtime/run/recent_steps.h"

#include <bit>

namespace holdfast::run {
namespace {

constexpr std::size_t pairs = 5;  // of 64-bit words that hold one step
constexpr std::size_t digits_of_pair = 32;
constexpr std::size_t digits_of_step = pairs * digits_of_pair;

std::array<Digest, pairs> arguments_of(const CompletedStep& step) {
  const auto bits = [](auto value) { return std::bit_cast<std::uint64_t>(value); };
  return {Digest{step.step, bits(step.time_us)}, Digest{step.tokens, bits(step.loss)},
          Digest{bits(step.grad_norm), bits(step.learning_rate)},
          Digest{bits(step.duration_ms), bits(step.tokens_per_sec)}, step.data_digest};
}

CompletedStep step_of(const std::array<Digest, pairs>& words) {
  const auto real = [](std::uint64_t bits) { return std::bit_cast<double>(bits); };
  return {.step = words[0].high,
          .time_us = std::bit_cast<std::int64_t>(words[0].low),
          .tokens = words[1].high,
          .loss = real(words[1].low),
          .grad_norm = real(words[2].high),
          .learning_rate = real(words[2].low),
          .duration_ms = real(words[3].high),
          .tokens_per_sec = real(words[3].low),
          .data_digest = words[4]};
}

}  // namespace

StepEvent step_event(const CompletedStep& step) {
  return {.time_us = step.time_us,
          .step = step.step,
          .loss = step.loss,
          .grad_norm = step.grad_norm,
          .learning_rate = step.learning_rate,
          .tokens = step.tokens,
          .step_duration_ms = step.duration_ms,
          .tokens_per_sec = step.tokens_per_sec,
          .data_digest = step.data_digest};
}

std::string RecentSteps::text() const {
  std::string text;
  text.reserve(capacity * digits_of_step);
  for (const CompletedStep& step : steps_) {
    if (step.step == 0) continue;
    for (const Digest& pair : arguments_of(step)) text += hex_text(pair).view();
  }
  return text;
}

RecentSteps RecentSteps::from_text(std::string_view text) {
  RecentSteps steps;
  if (text.size() % digits_of_step != 0 || text.size() > capacity * digits_of_step) return {};
  for (; !text.empty(); text.remove_prefix(digits_of_step)) {
    std::array<Digest, pairs> words{};
    for (std::size_t i = 0; i < pairs; ++i)
      if (!from_hex(text.substr(i * digits_of_pair, digits_of_pair), words[i])) return {};
    steps.add(step_of(words));
  }
  return steps;
}

}  // namespace holdfast::run
