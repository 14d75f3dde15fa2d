// Fetches the shards that the ranks of each host need and the host does not have, before a checkpoint is read
// that is in parts on several hosts (checkpoint/part_inventory.h). The copies, with the files of older saves
// that they refer to, go into the host's own directory of that checkpoint.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/shard_spec.h"
#include "runtime/run/claim.h"
#include "runtime/save/state_view.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::save {

// Function that returns the pieces that this rank reads of a checkpoint with this manifest.
using WantedOf = std::function<Result<std::vector<ShardSpec>>(const Manifest& manifest)>;

// Fetches the missing shards; all ranks call it together. `directory`: that of the checkpoint, by the same
// path on every host; it is made where it is missing, or where it is another one of the same step. `content`:
// content_of() its shards. `check`: check of this rank's claim; made before the directory is changed. When
// the function returns, each rank finds there all the pieces that it needs. Errors: ExitCode::checkpoint, the
// same on all ranks; communication.
Result<void> fetch_missing_shards(StateView& view, const StorageDomains& domains,
                                  const std::string& directory, const std::string& content,
                                  const WantedOf& wanted_of, const ClaimCheck& check);

// ShardFetch is one copy of a shard from one storage domain to another. Both storage domains are given by the
// ranks that lead them.
struct ShardFetch {
  std::size_t shard = 0;
  int source = 0, target = 0;
  bool operator==(const ShardFetch&) const = default;
};
// Returns the copies that are needed. Where several storage domains have a shard, the work is divided among
// them. `holders`, `needed_by`: for each shard the leaders that have it and that need it. Pure.
std::vector<ShardFetch> plan_fetches(const std::vector<std::vector<int>>& holders,
                                     const std::vector<std::vector<int>>& needed_by);

}  // namespace holdfast::save
