// Converts the [checkpoint] section of the config to the options with which shard files are written.
#pragma once

#include "checkpoint/store.h"
#include "runtime/config/config.h"

namespace holdfast::inline save {

// Returns the options for shard files. With checkpoint.delta the parent is the newest checkpoint of the
// store's run; a rank that sees another one, or none, writes more data but nothing wrong.
ShardWriteOptions shard_options(const CheckpointConfig& config, const CheckpointStore& store);

}  // namespace holdfast::inline save
