// Builds the parts that ranks contribute to a checkpoint, and the manifest that rank 0 makes of them. Saving
// at once (save.h) and saving while training goes on (disk_saver.h) share these functions.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

// Returns the state that this rank saves, in the device's memory: what it owns. State that all ranks of a
// tensor group have is saved by one of them.
std::vector<StatePiece> saved_state(StateView& view);

std::uint64_t bytes_of_shards(const std::vector<ShardFile>& shards);

// Makes the manifest of the shards of all ranks, which hold `state`.
Manifest make_manifest(StateView& view, const RunState& state, std::vector<ShardFile> shards);

// Notes in the manifest of a checkpoint that its state was found sound, where updates check the state that they
// read (ShardedOptimizer::finding()). Called before it is published.
void note_checked(const StateView& view, Manifest& manifest);

// Completes the manifest of a checkpoint in parts: which host has which shard, and the tensors that no single
// host could list. All ranks call it together; it does nothing where there is one directory.
Result<void> describe_parts(StateView& view, const DiskTier& tier, Manifest& manifest);

// Removes, on a rank that publishes, checkpoints older than the newest `keep`. A checkpoint that cannot be
// removed is reported on stderr and tried again after the next save.
void retain_or_complain(CheckpointStore& store, std::int64_t keep);

// Returns a waiter for agreements of ranks that read or write files: one rank may find them in memory and
// another on a disk that is far slower than expected.
Waiter patient_waiter(const StateView& view);

// Converts the [checkpoint] section of the config to the options with which shard files are written.

// Returns the options for shard files. With checkpoint.delta frozen tensors are constant, and the newest
// checkpoint of the store's run may have them; a rank that sees another one, or none, writes more data but
// nothing wrong. Where each host has a run directory of its own, shards are copied between hosts, and each has
// everything itself.
ShardWriteOptions shard_options(const StateView& view, const CheckpointStore& store);

}  // namespace holdfast::save
