#include "runtime/save/checkpoint_parts.h"

#include <fmt/ranges.h>

#include <map>
#include <set>
#include <utility>

#include "checkpoint/snapshot_slot.h"
#include "kernels/plugin_loader.h"
#include "kernels/product_plan.h"
#include "parallel/comm/collectives.h"
#include "runtime/config/document.h"
#include "runtime/os/console.h"
#include "runtime/os/io_queue.h"

namespace holdfast::save {

std::vector<StatePiece> saved_state(StateView& view) {
  std::vector<StatePiece> pieces;
  for (const OwnedState& piece : view.optimizer.state()) {
    if (!view.snapshots.saves(piece.spec)) continue;
    StatePiece& saved = pieces.emplace_back(StatePiece{.spec = piece.spec, .bytes = bytes_of_state(piece)});
    if (piece.digests != nullptr)
      saved.digests = std::as_bytes(std::span(piece.digests, piece.spec.block_count));
  }
  return pieces;
}

std::uint64_t bytes_of_shards(const std::vector<ShardFile>& shards) {
  std::uint64_t bytes = 0;
  for (const ShardFile& shard : shards) bytes += shard.bytes;
  return bytes;
}

Manifest make_manifest(StateView& view, const RunState& state, std::vector<ShardFile> shards) {
  Manifest manifest;
  put_state(state, manifest);
  manifest.identity = config_identity(view.rank.config);
  manifest.config = record_config(view.rank.config);
  manifest.values["device"] = view.rank.device.identity(view.rank.spec.dtype);
  if (const std::vector<std::string> plugins = plugins_of(view.rank.device.kernels()); !plugins.empty())
    manifest.values["plugins"] = fmt::format("{}", fmt::join(plugins, "; "));
  if (!view.device_plan.empty() && view.device_plan.size() <= stored_plan_bytes_max)
    manifest.values["device_plan"] = view.device_plan;
  manifest.shards = std::move(shards);
  return manifest;
}

void note_checked(const StateView& view, Manifest& manifest) {
  if (view.optimizer.checks_state()) manifest.values["checked_step"] = std::to_string(manifest.step);
}

Result<void> describe_parts(StateView& view, const DiskTier& tier, Manifest& manifest) {
  if (!tier.in_parts()) return {};
  std::vector<ShardSpec> own;
  std::set<std::pair<std::string, std::string>> seen;
  for (const StatePiece& piece : saved_state(view)) {
    if (!seen.insert({piece.spec.tensor, piece.spec.kind}).second) continue;
    ShardSpec& tensor = own.emplace_back(piece.spec);
    tensor.slice = 0;
    tensor.first_block = 0;
    tensor.block_count = tensor.slice_blocks();
  }
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(view.rank.communicator, view.rank.waiter, to_text(own)));
  std::map<std::pair<std::string, std::string>, ShardSpec> tensors;
  for (const std::string& text : texts) {
    for (ShardSpec& tensor : specs_from_text(text))
      tensors.try_emplace({tensor.tensor, tensor.kind}, std::move(tensor));
  }
  manifest.tensors.clear();
  for (auto& [name, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  const std::vector<int> keepers = tier.domains()->copy_keepers();
  for (std::size_t rank = 0; rank < manifest.shards.size(); ++rank) {
    std::vector<std::string>& hosts = manifest.shards[rank].hosts;
    hosts = {tier.domains()->of(static_cast<int>(rank)).host};
    if (tier.copies() != nullptr) hosts.push_back(tier.domains()->of(keepers[rank]).host);
  }
  return {};
}

void retain_or_complain(CheckpointStore& store, std::int64_t keep) {
  const Result<void> retained = store.retain(keep);
  // A writer that has been replaced ends with this error, which is reported then.
  if (!retained.ok() && retained.error().code != ExitCode::communication)
    print_message("an old checkpoint stays: {}", retained.error().message);
}

Waiter patient_waiter(const StateView& view) {
  constexpr std::int64_t slow_bytes_per_ms = 20'000;
  const auto patience_ms = static_cast<std::int64_t>(view.state_bytes()) / slow_bytes_per_ms;
  return view.rank.waiter.with_timeout(view.rank.waiter.timeout_ms() + patience_ms);
}

ShardWriteOptions shard_options(const StateView& view, const CheckpointStore& store) {
  const CheckpointConfig& config = view.rank.config.checkpoint;
  const std::optional<Compression> compression = compression_of(config.compression);
  HF_CHECK(compression.has_value(), "checkpoint.compression = {}", config.compression);
  ShardWriteOptions options{.compression = *compression, .io = io_backend_of(config.io)};
  std::set<std::string> frozen;
  for (const ParameterSpec& parameter : parameter_specs(view.rank.spec)) {
    if (parameter.is_frozen) frozen.insert(parameter.name);
  }
  if (!config.delta || frozen.empty() || store.has_part()) return options;
  options.is_constant = [frozen](const ShardSpec& spec) { return frozen.contains(spec.tensor); };
  options.parent_directory = store.newest_directory();
  return options;
}

}  // namespace holdfast::save
