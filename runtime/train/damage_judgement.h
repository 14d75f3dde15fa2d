// Judges damage of the state at rest: some rank's update has read weights or moments that are not what the
// update before had written (ShardedOptimizer::finding()). Nothing of that step can be kept, so the ranks go
// back to a state that is older than the damage, and the rank whose memory it was leaves where the others can
// go on without it.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/core/result.h"
#include "runtime/run/event.h"
#include "runtime/train/worker.h"

namespace holdfast::inline train {

struct DamagedState {
  std::uint64_t trusted_step = 0;        // newest step whose state is known to be sound
  std::optional<int> leaving_rank = {};  // of the communicator
  VerdictEvent report = {};              // without time_us
};

// DamageLook says where a rank looks for damage.
enum class DamageLook {
  last_update,  // what the last update found while it read the state
  memory,       // all of the state in memory, on the host; where no update follows that would read it
};

// Says what follows from damage that the last update of some rank found. All ranks call it together, between
// two updates.
Result<DamagedState> judge_damage(Worker& worker);

// Looks for damage between two updates. All ranks call it together; none: nobody found any.
Result<std::optional<DamagedState>> look_for_damage(Worker& worker, DamageLook look);

// Returns whether the run can go on without a rank of one of its copies of the model.
bool can_spare_a_replica(const Worker& worker);

}  // namespace holdfast::inline train
