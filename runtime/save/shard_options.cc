#include "runtime/save/shard_options.h"

#include <set>

#include "runtime/os/io_queue.h"

namespace holdfast::save {

ShardWriteOptions shard_options(const StateView& view, const CheckpointStore& store) {
  const CheckpointConfig& config = view.rank.config.checkpoint;
  const std::optional<Compression> compression = compression_of(config.compression);
  HF_CHECK(compression.has_value(), "checkpoint.compression = {}", config.compression);
  ShardWriteOptions options{.compression = *compression, .io = io_backend_of(config.io)};
  std::set<std::string> frozen;
  for (const ParameterSpec& parameter : parameter_specs(view.spec)) {
    if (parameter.is_frozen) frozen.insert(parameter.name);
  }
  if (!config.delta || frozen.empty() || store.has_part()) return options;
  options.is_constant = [frozen](const ShardSpec& spec) { return frozen.contains(spec.tensor); };
  options.parent_directory = store.newest_directory();
  return options;
}

}  // namespace holdfast::save
