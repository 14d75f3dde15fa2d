// What a rank contributes to a checkpoint, and what rank 0 makes of it: shared by saving at once (save.h) and
// saving while training goes on (disk_saver.h).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/state_view.h"

namespace holdfast::inline save {

// The state that this rank saves, in the device's memory: what it owns; of what all ranks of a tensor group
// have, one saves it.
std::vector<StatePiece> saved_state(StateView& view);

// A ShardFile on its way to rank 0.
std::string to_text(const ShardFile& file);
ShardFile shard_from_text(const std::string& text);  // written by to_text
std::uint64_t bytes_of_shards(const std::vector<std::string>& shard_texts);

// Of the shards of all ranks, which hold `state`.
Manifest make_manifest(StateView& view, const RunState& state, const std::vector<std::string>& shard_texts);

// Completes the manifest of a checkpoint in parts: who has which shard, and the tensors that no single host
// could tell. All ranks together; does nothing where there is one directory.
Result<void> describe_parts(StateView& view, const DiskTier& tier, Manifest& manifest);

// Removes, on a rank that publishes, what is older than the newest `keep`. What could not be removed is told
// on stderr and tried again after the next one.
void retain_or_complain(CheckpointStore& store, std::int64_t keep);

// For agreements of ranks that read or write files: one may find them in memory and another on a disk far
// slower than is meant to be used.
Waiter patient_waiter(const StateView& view);

}  // namespace holdfast::inline save
