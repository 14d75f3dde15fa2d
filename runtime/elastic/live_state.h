// The live state as a place to recover from. A step that is given up though no rank with a coordinate was
// lost (an exchange that failed, a rank that was late for longer than the others wait) leaves every part of
// the state of the step before in the memory of the ranks. Each seals its part as one more RAM snapshot, and
// a recovery finds it by the same rule as any other: the newest step that exists whole. So the step is
// redone, and nothing else. Where ranks differ in the step they have come to (a vote that only some have
// heard the end of), or one cannot seal, no such step is whole, and the newest snapshot counts.
#pragma once

#include <cstdint>

#include "parallel/group/membership.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/train/worker.h"

namespace holdfast::inline elastic {

// Whether everyone who had a coordinate is still there. `rank assignment`: by rank of `before`. Pure.
bool no_coordinate_is_lost(const RankAssignment& assignment, const MembershipView& before,
                           const MembershipView& now);

// `worker`: between two updates, and for the last time; its communicator is not used. `slot`:
// StateSaver::unused_slot() of this `writer`, whose object is gone. Errors: the device's, or that the slot is
// not there any more.
Result<void> seal_live_state(Worker& worker, std::uint64_t writer, int slot);

}  // namespace holdfast::inline elastic
