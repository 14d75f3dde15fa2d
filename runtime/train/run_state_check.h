// Checks the state of a run that is no tensor (RunState): each rank holds it in memory, it decides what the next steps
// read and compute, and that of rank 0 goes into every checkpoint. A bit of it that changes is found before the next
// update:
//
//   - RunPosition: step and position in the data follow from those that the worker began with.
//   - All ranks hold the same: each adds a term of its digest to the vote of every step (Ballot::run_state), and the
//     sum is 0 where they do.
//
// Pure. Nothing is allocated but by dissent_of().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

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

// Returns what a rank adds to the vote. `is_at`: of its RunPosition; no sum is 0 where it is false.
Digest run_state_term(const Digest& digest, bool is_at, int rank, int ranks);

// HeldRunState is what one rank holds.
struct HeldRunState {
  std::string digest = {};
  bool is_at = true;
  std::uint64_t step = 0;  // RunPosition::step_of()

  static void visit_fields(auto& self, auto&& visit) {
    visit("digest", self.digest);
    visit("is_at", self.is_at);
    visit("step", self.step);
  }
};

// RunStateDissent says whose state has changed.
struct RunStateDissent {
  std::vector<int> changed = {};  // ranks, ascending; all that differ where it is not known
  bool is_known = true;           // of two that differ nobody knows which
  std::uint64_t step = 0;         // that all ranks have made
};
RunStateDissent dissent_of(std::span<const HeldRunState> ranks);

}  // namespace holdfast::train
