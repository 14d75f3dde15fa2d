// The check of the state at rest: some rank's update has read weights or optimizer state that is not what the update
// before had written, or what was loaded, or sums of gradients that are not those whose norm the vote had, or was made
// with another learning rate than the step has; or what is no tensor is not the same on all ranks. Nothing of that step
// can be kept, so the ranks go back to a state that is older than the corruption, and the rank whose state it was
// leaves where the others can continue without it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/integrity/check_record.h"

namespace holdfast::integrity {

// HeldRunState is what one rank holds of the state of the run that is no tensor.
struct HeldRunState {
  std::string digest = {};
  bool is_at = true;       // step and position in the data are those that it has counted
  std::uint64_t step = 0;  // that two of step, position and count say

  static void visit_fields(auto& self, auto&& visit) {
    visit("digest", self.digest);
    visit("is_at", self.is_at);
    visit("step", self.step);
  }
};

// Returns what a rank adds to the vote of every step: the sum is 0 where all ranks hold the same, and none is where
// `is_at` is false. Pure.
Digest run_state_term(const Digest& digest, bool is_at, int rank, int ranks);

// RunStateSuspects says whose state of the run has changed.
struct RunStateSuspects {
  std::vector<int> ranks = {};  // ascending; all that differ where it is not known
  bool is_known = true;         // of two that differ nobody knows which
  std::uint64_t step = 0;       // that all ranks have made
};
RunStateSuspects attribute(std::span<const HeldRunState> ranks);

// HeldState says what the newest update of one rank found; no blocks: nothing. The learning rates are set where it was
// made with a wrong one.
struct HeldState {
  std::uint64_t blocks = 0;  // that are corrupted; the first of them:
  std::string tensor = {};
  std::uint64_t first_element = 0, elements = 0;
  bool is_of_gradients = false;  // `blocks`, not of the state
  bool is_of_update = false;
  double used_rate = 0.0, right_rate = 0.0;  // is_of_update
  bool has_frozen = false;                   // some of them are of frozen tensors,
  std::uint64_t frozen_verified_step = 0;    // which were right at this step
  HeldRunState run_state = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("blocks", self.blocks);
    visit("tensor", self.tensor);
    visit("first_element", self.first_element);
    visit("elements", self.elements);
    visit("is_of_gradients", self.is_of_gradients);
    visit("is_of_update", self.is_of_update);
    visit("used_rate", self.used_rate);
    visit("right_rate", self.right_rate);
    visit("has_frozen", self.has_frozen);
    visit("frozen_verified_step", self.frozen_verified_step);
    visit("run_state", self.run_state);
  }
};
using StateRecords = CheckRecords<HeldState>;

// Attributes corruption to the ranks that found it in their own memory, so it is known of every one of several.
// `steps_ahead`: the update that reads the corruption is so many steps after the newest one that was made;
// `first_step`: whose state was loaded, which was right. Pure.
Finding attribute(const StateRecords& records, std::uint64_t steps_ahead, std::uint64_t first_step);

// Says what follows from corruption that some rank found in the state that the update of the step so many steps after
// the newest one reads. All ranks call it together, between two updates.
Result<CheckedStep> check_found_state(const StepAccess& step, const Attempt& attempt,
                                      std::uint64_t steps_ahead);

// Compares the state in memory with the digests of the last update, or of what was loaded: that a suspicious step
// begins from. All ranks call it together, before the step's update; none: nobody found corruption.
Result<std::optional<CheckedStep>> check_state(const StepAccess& step, const Attempt& attempt);

// Looks for corruption between two steps, before their state is saved: what the last update found, and where no update
// follows all that is in memory. All ranks call it together; none: nobody found any.
Result<std::optional<CheckedStep>> check_state_to_save(const StepAccess& step, bool update_follows);

}  // namespace holdfast::integrity
