#include "runtime/interop/checkpoint_contents.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "runtime/config/loader.h"
#include "runtime/interop/model_import.h"
#include "runtime/model/spec.h"

namespace holdfast::interop {
namespace {

constexpr std::string_view layer_prefix = "layers.";

// LayerName splits "layers.12.attention.qkv.weight" into 12 and "attention.qkv.weight".
struct LayerName {
  std::uint64_t layer = 0;
  std::string part;
};
std::optional<LayerName> layer_name(const std::string& name) {
  if (!name.starts_with(layer_prefix)) return std::nullopt;
  LayerName result;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + layer_prefix.size(), end, result.layer);
  if (error != std::errc() || rest == end || *rest != '.') return std::nullopt;
  result.part.assign(rest + 1, end);
  return result;
}

}  // namespace

CheckpointContents contents_of(const Checkpoint& checkpoint, const Config& config) {
  std::map<std::string, std::size_t> place;
  for (const ParameterSpec& parameter : parameter_specs(make_model_spec(config)))
    place.emplace(parameter.name, place.size());
  std::map<std::tuple<std::size_t, std::string>, StoredTensor> tensors;
  const auto tensor_of = [&](const ShardSpec& piece) -> StoredTensor& {
    const auto known = place.find(piece.tensor);
    return tensors[{known == place.end() ? place.size() : known->second, piece.tensor}];
  };
  const std::vector<ShardSpec> pieces = checkpoint.pieces();
  for (const ShardSpec& piece : pieces) ++tensor_of(piece).pieces;
  CheckpointContents contents;
  contents.file_bytes = bytes_of_shards(checkpoint.manifest());
  for (const ShardSpec& whole : checkpoint.tensors()) {
    StoredTensor& tensor = tensor_of(whole);
    tensor.name = whole.tensor;
    tensor.shape = whole.global_shape;
    if (whole.kind == "weight") tensor.dtype = whole.dtype;
    if (whole.kind.starts_with("moment")) tensor.moments = whole.dtype;
    tensor.slices = whole.slices;
    tensor.bytes += whole.byte_count();
    contents.tensor_bytes += whole.byte_count();
    if (std::ranges::find(tensor.kinds, whole.kind) == tensor.kinds.end()) tensor.kinds.push_back(whole.kind);
  }
  for (auto& [key, tensor] : tensors) {
    std::ranges::sort(tensor.kinds, {}, [](const std::string& kind) {
      return std::pair(kind != "weight", kind);  // the weight comes first
    });
    contents.tensors.push_back(std::move(tensor));
  }
  return contents;
}

Result<std::set<std::string>> averaged_tensors(const Checkpoint& checkpoint) {
  std::set<std::string> names;
  for (const ShardSpec& whole : checkpoint.tensors()) {
    if (whole.kind == "ema") names.insert(whole.tensor);
  }
  if (!names.empty()) return names;
  return fail(
      ExitCode::config,
      "{} has no average of the weights, because its run has no optimizer.ema: leave --ema out, or take a "
      "checkpoint of a run that has one",
      checkpoint.directory());
}

std::uint64_t bytes_of_shards(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const ShardFile& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

std::vector<TensorRow> rows_by_layer(const std::vector<StoredTensor>& tensors) {
  struct Run {
    std::size_t row;
    std::uint64_t first, last;
  };
  std::vector<TensorRow> rows;
  std::map<std::string, Run> runs;  // by the part of the name after the layer
  for (const StoredTensor& tensor : tensors) {
    const std::optional<LayerName> name = layer_name(tensor.name);
    const auto found = name.has_value() ? runs.find(name->part) : runs.end();
    if (found != runs.end() && name->layer == found->second.last + 1) {
      TensorRow& row = rows[found->second.row];
      StoredTensor same = tensor;
      std::tie(same.name, same.pieces, same.bytes) =
          std::tie(row.tensor.name, row.tensor.pieces, row.tensor.bytes);
      if (same == row.tensor) {
        row.tensor.pieces += tensor.pieces;
        row.tensor.bytes += tensor.bytes;
        ++row.count;
        found->second.last = name->layer;
        row.name = fmt::format("{}{{{}-{}}}.{}", layer_prefix, found->second.first, name->layer, name->part);
        continue;
      }
    }
    if (name.has_value()) runs[name->part] = {.row = rows.size(), .first = name->layer, .last = name->layer};
    rows.push_back({.tensor = tensor, .name = tensor.name});
  }
  return rows;
}

Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint) {
  Result<Config> config = config_of_checkpoint(env, checkpoint, {});
  return config.ok() ? std::move(config) : with_code(ExitCode::checkpoint, config.error());
}

Result<Config> config_of_checkpoint(Env& env, const Checkpoint& checkpoint,
                                    const std::vector<Override>& overrides) {
  const std::string name = checkpoint.directory() + " (stored config)";
  const Manifest& manifest = checkpoint.manifest();
  const StoredConfig of =
      manifest.values.contains(imported_from_key) ? StoredConfig::of_weights : StoredConfig::of_run;
  HF_TRY(LoadedConfig loaded, load_stored_config(env, manifest.config, name, of, overrides));
  return std::move(loaded.config);
}

}  // namespace holdfast::interop
