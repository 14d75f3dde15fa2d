// Checks the state of a run that is no tensor (RunState): each rank holds it in memory, it decides what the next steps
// read and compute, and that of rank 0 goes into every checkpoint. A bit of it that changes is found before the next
// update:
//
//   - RunPosition: step and position in the data follow from those that the worker began with.
//   - All ranks hold the same: each adds a term of its digest to the vote of every step (run_state_term()), and the
//     sum is 0 where they do.
//
// Pure. Nothing is allocated.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/core/digest.h"
#include "runtime/save/run_state.h"

namespace holdfast::train {

// RunPosition counts the steps of a worker beside RunState.
class RunPosition {
 public:
  // Begins at this state. Until then every state is at the position.
  void begin(const RunState& state, std::uint64_t samples_per_step);
  void made_step() { ++made_; }

  bool is_at(const RunState& state) const;
  // Returns the number of the step that two of the state's step, its position in the data, and this count say; that
  // of the state where they are three numbers.
  std::uint64_t step_of(const RunState& state) const;

 private:
  struct Begin {
    std::uint64_t step = 0, data_cursor = 0;
  };
  std::optional<Begin> begin_;
  std::uint64_t made_ = 0, samples_per_step_ = 1;
};

// Returns the digest of what is the same on all ranks after every step.
Digest digest_of_run_state(const RunState& state);

}  // namespace holdfast::train
