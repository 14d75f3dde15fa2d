// The live state is one of the sources of a recovery. A step that is given up although no rank with a
// coordinate was lost (a transport that failed, a rank that was late for longer than the others wait) leaves
// every part of the state of the step before in the memory of the ranks. Each rank seals its part as one more
// RAM snapshot, and a recovery finds it by the same rule as any other snapshot: the newest step that exists
// whole. So this step is redone, and nothing else. If the ranks differ in the step that they have reached
// (only some have received the result of a vote), or one cannot seal its part, no such step is whole, and the
// newest snapshot counts.
#pragma once

#include <cstdint>

#include "parallel/group/membership.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/train/worker.h"

namespace holdfast::elastic {

// Returns true if all ranks that had a coordinate are left. `assignment`: by rank of `before`. Pure.
bool no_coordinate_is_lost(const RankAssignment& assignment, const MembershipView& before,
                           const MembershipView& now);

// Seals the live state. `worker`: between two updates, and for the last time; its communicator is not used.
// `slot`: StateSaver::unused_slot() of this `writer`, whose object is gone (it may have drained this slot). Errors: those of the device, that the
// slot does not exist any more, or that the state has changed in memory since the last update.
Result<void> seal_live_state(Worker& worker, std::uint64_t writer, int slot);

}  // namespace holdfast::elastic
