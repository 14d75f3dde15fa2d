// The window of numbers and the skipped steps, as the text in a snapshot or a manifest has them.
#include "runtime/integrity/numbers_history.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "runtime/integrity/verdict.h"
#include "tests/fuzz/fuzz.h"

namespace holdfast::fuzz {
namespace {

void check_numbers(const NumbersHistory& history) {
  const std::int64_t size = history.size(), window = history.window_steps();
  require(window >= 1 && window <= NumbersHistory::capacity && size <= window, "a window beyond its limits");
  for (std::int64_t age = 0; age < size; ++age) {
    const CommittedNumbers& numbers = history.newest(age);
    require(std::isfinite(numbers.loss) && std::isfinite(numbers.grad_norm), "numbers that are not finite");
    require(age == 0 || numbers.step < history.newest(age - 1).step, "steps are not in increasing order");
  }
  const std::vector<std::uint64_t>& skipped = history.skipped();
  for (std::size_t i = 1; i < skipped.size(); ++i)
    require(skipped[i - 1] < skipped[i], "skipped steps are not in increasing order");
  require(history.skipped_since(0) == static_cast<std::int64_t>(skipped.size()), "a skipped step is lost");
}

// Judges a step by the numbers and adds it, as a run that goes on does.
void go_on_with(NumbersHistory history) {
  const std::uint64_t last_step = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t step = history.size() > 0 ? history.newest(0).step : 0;
  if (!history.skipped().empty()) step = std::max(step, history.skipped().back());
  if (step == last_step) return;
  const VerdictConfig config{.window_steps = history.window_steps()};
  const StepNumbers next{.step = step + 1, .loss = 2.5, .grad_norm = 1.0, .counted_targets = 8};
  const Verdict verdict = verdict_of(history, next, config);
  require(verdict.kind != VerdictKind::nonfinite, "finite numbers are taken for others");
  history.add(next);
  require(history.newest(0).step == step + 1, "the newest step is another one");
}

bool run_numbers_history(Input input) {
  const std::string text = text_of(input);
  const std::optional<NumbersHistory> history = NumbersHistory::from_text(text);
  if (!history.has_value()) return false;
  check_numbers(*history);
  const std::string written = history->text();
  require(written.size() == text.size(), "what is written is longer or shorter than what was read");
  const std::optional<NumbersHistory> again = NumbersHistory::from_text(written);
  require(again.has_value() && again->text() == written, "what was written reads as another history");
  go_on_with(*history);
  return true;
}

NumbersHistory history_of(std::int64_t window, std::uint64_t steps) {
  NumbersHistory history(window);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    history.add({.step = step,
                 .loss = 5.0 - 0.01 * static_cast<double>(step % 8),
                 .grad_norm = 1.0 + 0.125 * static_cast<double>(step % 3),
                 .counted_targets = 64});
  }
  return history;
}

std::vector<Seed> numbers_history_seeds() {
  NumbersHistory skips = history_of(4, 7);
  skips.skip(3);
  skips.skip(9);
  NumbersHistory absurd(1);
  absurd.add({.step = std::numeric_limits<std::uint64_t>::max(),
              .loss = -std::numeric_limits<double>::max(),
              .grad_norm = std::numeric_limits<double>::denorm_min(),
              .counted_targets = 1});
  return {{"empty", bytes_of_text(NumbersHistory(128).text())},
          {"skips", bytes_of_text(skips.text())},
          {"judged", bytes_of_text(history_of(48, 40).text())},
          {"absurd", bytes_of_text(absurd.text())}};
}

constexpr std::array<std::string_view, 5> numbers_history_words = {
    "0000000000000000", "0000000000000001", "ffffffffffffffff", "7ff0000000000000", "0000000000000400"};

}  // namespace

extern const Target numbers_history_target;
const Target numbers_history_target{.name = "numbers_history",
                                    .run = run_numbers_history,
                                    .seeds = numbers_history_seeds,
                                    .memory_per_byte = 16,
                                    .memory_beside = 256 << 10,
                                    .words = numbers_history_words};

}  // namespace holdfast::fuzz
