// NumbersHistory holds the numbers of the newest committed steps and the steps that were skipped. It is part
// of the state of a run (RunState), in snapshots and checkpoints too, and equal on all ranks after every
// step: what is computed again after a recovery, a resume or a resize gets its verdict by the same numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/config.h"

namespace holdfast::integrity {

// StepNumbers holds what the vote of a step says about its numbers: all that a verdict is made of. They are
// equal on all ranks, because the vote adds exactly.
struct StepNumbers {
  std::uint64_t step = 0;            // counted from 1
  double loss = 0.0;                 // mean over the targets that count, in nats
  double grad_norm = 0.0;            // global norm, before clipping
  std::int64_t counted_targets = 0;  // targets that count; with 0 of them loss and norm are 0
};

// Numbers of one committed step.
struct CommittedNumbers {
  std::uint64_t step = 0;
  double loss = 0.0, grad_norm = 0.0;
};

// A ring of the newest numbers, as many as verdict.window_steps says, and the list of skipped steps. Only
// skip(), text() and from_text() allocate memory. Not thread-safe.
class NumbersHistory {
 public:
  static constexpr std::int64_t capacity = 1024;  // largest verdict.window_steps

  NumbersHistory() = default;
  explicit NumbersHistory(std::int64_t window_steps) { set_window(window_steps); }

  // Sets how many numbers are kept, in 1 .. capacity, and drops older ones. Whoever starts or resumes a run
  // calls it with verdict.window_steps, which may differ from the stored one; verdict_of() checks that it was
  // called.
  void set_window(std::int64_t window_steps);
  std::int64_t window_steps() const { return window_steps_; }

  // Adds the numbers of a step whose update was made, spikes and clipped steps included, so that the window
  // follows a loss that stays on another level. Numbers of a step without targets say nothing and are left
  // out. Steps are added in increasing order, and finite ones only.
  void add(const StepNumbers& numbers);

  // Notes that the step counts, but that its update was not made. Steps are noted in increasing order.
  void skip(std::uint64_t step);

  // Returns how many numbers are held, at most window_steps().
  std::int64_t size() const { return size_; }
  // Returns the numbers of the step that was added `age` calls of add() before the newest; 0 <= age < size().
  const CommittedNumbers& newest(std::int64_t age) const;

  // Returns all steps that the run skipped, in increasing order.
  const std::vector<std::uint64_t>& skipped() const { return skipped_; }
  // Returns how many of the skipped steps are `step` or later.
  std::int64_t skipped_since(std::uint64_t step) const;

  // Formats the history as hex digits, 48 for each step held and 16 for each skipped one: the bits stay as
  // they are, and equal histories have equal texts.
  std::string text() const;
  // Parses such a text; nothing if it is another kind of text.
  static std::optional<NumbersHistory> from_text(std::string_view text);

 private:
  std::array<CommittedNumbers, capacity> ring_ = {};
  std::int64_t next_ = 0;  // place of the next one in the ring
  std::int64_t size_ = 0;
  std::int64_t window_steps_ = VerdictConfig().window_steps;
  std::vector<std::uint64_t> skipped_;
};

}  // namespace holdfast::integrity
