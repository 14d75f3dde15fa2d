// Fetches what a rank needs and does not find on its host from the hosts that have it: parts of a RAM snapshot, after a
// host was lost and its replicas are elsewhere, or where ranks start on other hosts than before; and shards of a
// checkpoint that is in parts on several hosts (checkpoint/part_inventory.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/ram_tier.h"
#include "runtime/core/shard_spec.h"
#include "runtime/run/claim.h"
#include "runtime/save/state_view.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::save {

// Fetches the missing parts; all ranks call it together. `set`: the parts of one step that this rank's host
// has. Every rank adds to its set the parts of `wanted` that its host does not have. Each part is verified
// where it lies, and sent to each rank that needs it, which verifies what arrives by a checksum that comes
// after it. What arrives otherwise is requested again, from another rank that has it in the end.
// `changed_links`, the same on all ranks, gets a clause for each link that changed something. Errors:
// ExitCode::communication, or on some ranks ExitCode::checkpoint where a part is nowhere, is damaged where it
// is, or never arrives as it was sent.
Result<void> fetch_missing_parts(StateView& view, SnapshotSet& set, const std::vector<ShardSpec>& wanted,
                                 std::vector<std::string>& changed_links);

// Sends the manifest of the first rank that has one to all ranks, and returns it; empty where no rank has
// one.
Result<std::string> share_manifest(StateView& view, const SnapshotSet& set);

// Function that returns the pieces that this rank reads of a checkpoint with this manifest.
using WantedOf = std::function<Result<std::vector<ShardSpec>>(const Manifest& manifest)>;

// Fetches the missing shards, before the checkpoint is read; all ranks call it together. The copies, with the files of
// older saves that they refer to, go into the host's own directory of that checkpoint. `directory`: that of the
// checkpoint, by the same path on every host; it is made where it is missing, or where it is another one of the same
// step. `content`: content_of() its shards. `check`: check of this rank's claim; made before the directory is changed.
// When the function returns, each rank finds there all the pieces that it needs. Errors: ExitCode::checkpoint, the same
// on all ranks; communication.
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
