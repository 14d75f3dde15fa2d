// Gives each host, before a checkpoint is read that is in parts on several hosts
// (checkpoint/part_inventory.h), a copy of the shards that its ranks need and that it does not have, with the
// files of older saves that these refer to, in its own directory of that checkpoint.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/shard_spec.h"
#include "runtime/run/claim.h"
#include "runtime/save/run_places.h"
#include "runtime/save/state_view.h"

namespace holdfast::inline save {

// Returns what this rank reads of a checkpoint with this manifest.
using WantedOf = std::function<Result<std::vector<ShardSpec>>(const Manifest& manifest)>;

// All ranks together. `directory`: of the checkpoint, by the same path on every host; made where it is
// missing, or where it is another one of the same step. `content`: content_of() its shards. `check`: of this
// rank's claim; asked before the directory is changed. When it returns, each rank finds there all that it
// wants. Errors: ExitCode::checkpoint, the same on all ranks; communication.
Result<void> fetch_missing_shards(StateView& view, const RunPlaces& places, const std::string& directory,
                                  const std::string& content, const WantedOf& wanted_of,
                                  const ClaimCheck& check);

// ShardFetch is one copy of a shard from one place to another, given by the ranks that lead them.
struct ShardFetch {
  std::size_t shard = 0;
  int source = 0, target = 0;
  bool operator==(const ShardFetch&) const = default;
};
// Returns the copies that are needed. Of several that have a shard the work is shared out. `holders`,
// `needed_by`: the leaders that have, and that need, each shard. Pure.
std::vector<ShardFetch> plan_fetches(const std::vector<std::vector<int>>& holders,
                                     const std::vector<std::vector<int>>& needed_by);

}  // namespace holdfast::inline save
