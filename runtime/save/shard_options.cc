#include "runtime/save/shard_options.h"

#include "runtime/os/io_queue.h"

namespace holdfast::inline save {

ShardWriteOptions shard_options(const CheckpointConfig& config, const CheckpointStore& store) {
  const std::optional<Compression> compression = compression_of(config.compression);
  HF_CHECK(compression.has_value(), "checkpoint.compression = {}", config.compression);
  return {.compression = *compression,
          .parent_directory = config.delta && !store.has_part() ? store.newest_directory() : std::string(),
          .io = io_backend_of(config.io),
          .takes_digests = config.delta};
}

}  // namespace holdfast::inline save
