// Converts the [checkpoint] section of the config to the options with which shard files are written.
#pragma once

#include "checkpoint/store.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

// Returns the options for shard files. With checkpoint.delta frozen tensors are constant, and the newest
// checkpoint of the store's run may have them; a rank that sees another one, or none, writes more data but
// nothing wrong. Where each host has a run directory of its own, shards are copied between hosts, and each has
// everything itself.
ShardWriteOptions shard_options(const StateView& view, const CheckpointStore& store);

}  // namespace holdfast::save
