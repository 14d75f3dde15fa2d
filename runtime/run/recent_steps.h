// RecentSteps: the newest steps of a run as in its event log. It is part of the state (RunState), in
// snapshots and checkpoints too, so that a leader that resumes from a state has the lines of the steps that
// are not computed again, and can write those that were lost when the leader before died (missing_steps.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/digest.h"
#include "runtime/run/event.h"

namespace holdfast::run {

// One step, as its line in the event log says it. Times are those of the rank that notes it.
struct CompletedStep {
  std::uint64_t step = 0;    // 0: none
  std::int64_t time_us = 0;  // when it ended, since 1970
  std::uint64_t tokens = 0;  // of all steps up to it
  double loss = 0.0, grad_norm = 0.0, learning_rate = 0.0;
  double duration_ms = 0.0, tokens_per_sec = 0.0;
  Digest data_digest = {};
};

// Returns the event of the step, without the fields that are not in each.
StepEvent step_event(const CompletedStep& step);

// The newest steps of a run. Allocates nothing except the texts.
class RecentSteps {
 public:
  static constexpr std::size_t capacity = 64;

  void add(const CompletedStep& step) { steps_[step.step % capacity] = step; }
  // Returns the step, or null if it is not among the newest.
  const CompletedStep* find(std::uint64_t step) const {
    const CompletedStep& found = steps_[step % capacity];
    return step > 0 && found.step == step ? &found : nullptr;
  }

  // Formats the steps as hex digits, 160 for each step: the bits stay as they are.
  std::string text() const;
  // Parses them; a text of another kind gives none.
  static RecentSteps from_text(std::string_view text);

 private:
  std::array<CompletedStep, capacity> steps_ = {};
};

}  // namespace holdfast::run
