// How the [checkpoint] section of the config wants shard files written.
#pragma once

#include "checkpoint/store.h"
#include "runtime/config/config.h"

namespace holdfast::inline save {

// With checkpoint.delta the parent is the newest checkpoint of the store's run; a rank that sees another one,
// or none, writes more and nothing wrong.
ShardWriteOptions shard_options(const CheckpointConfig& config, const CheckpointStore& store);

}  // namespace holdfast::inline save
