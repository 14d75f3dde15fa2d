// Judges damage of the state: some rank's update has read weights or moments that are not what the update
// before had written, or what was loaded (ShardedOptimizer::finding()), or was made with another learning rate
// than the step has; or what is no tensor is not the same on all ranks (run_state_check.h). Nothing of that step can be kept, so the ranks go back to a state that is older than the
// damage, and the rank whose state it was leaves where the others can go on without it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/run/event.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

struct DamagedState {
  std::uint64_t trusted_step = 0;       // newest step whose state is known to be sound
  std::vector<int> leaving_ranks = {};  // of the communicator
  VerdictEvent report = {};             // without time_us
};

// Returns whether the last update of this rank found damage, or was itself not the one that its step has. The
// device has run what was launched.
bool finds_damage(Worker& worker);

// Returns what this rank adds to Ballot::run_state.
Digest run_state_term(const Worker& worker);

// Says what follows from damage that some rank found in the state that the update of step `read_by` reads. All
// ranks call it together, between two updates.
Result<DamagedState> judge_damage(Worker& worker, std::uint64_t read_by);

// Looks for damage between two steps, before their state is saved. All ranks call it together; none: nobody
// found any.
Result<std::optional<DamagedState>> look_for_damage(Worker& worker);

// Compares the state in memory with the digests of the last update, or of what was loaded: that a step in doubt begins
// from, or before a save that no update follows. All ranks call it together, before the step's update; none:
// nobody found damage.
Result<std::optional<DamagedState>> examine_state(Worker& worker);

// Returns whether the run can go on without a rank of one of its copies of the model.
bool can_spare_a_replica(const Worker& worker);

}  // namespace holdfast::train
