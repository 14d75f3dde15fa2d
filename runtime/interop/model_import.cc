#include "runtime/interop/model_import.h"

#include <algorithm>

#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/interop/hugging_face_folder.h"
#include "runtime/interop/llmc_model.h"

namespace holdfast::interop {
namespace {

constexpr std::uint64_t config_bytes_max = std::uint64_t{1} << 20;
constexpr std::uint64_t shard_bytes_wanted = std::uint64_t{1} << 30;
constexpr std::uint64_t imported_at_once = std::uint64_t{4} << 20;
// Default context length, for which sampling plans memory unless its options say otherwise. Longer contexts
// are possible.
constexpr std::int64_t usual_sequence_length = 1024;

// Makes a config of the shape; its rules decide whether the numbers make a model. `place`: the file that they
// are from.
Result<Config> config_of(Env& env, const ForeignShape& shape, const std::string& place) {
  Config config;
  config.model = shape.model;
  config.training.sequence_length =
      std::clamp<std::int64_t>(shape.longest_sequence, 1, usual_sequence_length);
  const Result<LoadedConfig> loaded = load_stored_config(
      env, dump_config(config), place + " (as keys of a config)", StoredConfig::of_weights);
  if (!loaded.ok()) return with_code(ExitCode::data, loaded.error());
  config = loaded->config;
  constexpr std::int64_t says_itself = 0;
  if (const Result<void> resolved = resolve_config(config, says_itself); !resolved.ok())
    return fail(ExitCode::data, "{}: {}", place, resolved.error().message);
  return config;
}

// Transposes rows [first, first + rows) of a matrix that is stored [columns, all rows].
void transpose(std::span<const float> source, std::uint64_t rows, std::uint64_t columns,
               std::span<float> target) {
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t column = 0; column < columns; ++column)
      target[row * columns + column] = source[column * rows + row];
  }
}

}  // namespace

Result<ModelImport> ModelImport::open(Env& env, const std::string& source,
                                      const ForeignShapeOptions& options) {
  HF_TRY(const FileStatus status, env.status(source));
  if (!status.exists) {
    return fail(ExitCode::data, "{} does not exist; give a Hugging Face folder or a model file of llm.c",
                source);
  }
  if (status.directory) {
    const std::string place = source + "/config.json";
    HF_TRY(const std::string text, read_small_text(env, place, config_bytes_max));
    HF_TRY(const ForeignShape shape, parse_hugging_face_config(text, place, options));
    HF_TRY(Config config, config_of(env, shape, place));
    const ModelSpec spec = make_model_spec(config);
    std::vector<ForeignTensor> tensors = hugging_face_tensors(spec);
    HF_TRY(WeightFiles weights, open_hugging_face_weights(env, source, spec.tied_head));
    HF_TRY_VOID(match_tensors(weights, source, tensors));
    return ModelImport(std::move(config), std::move(tensors), std::move(weights));
  }
  HF_TRY(std::unique_ptr<File> file, env.open(source, OpenMode::read));
  HF_TRY(const LlmcHeader header, read_llmc_header(*file));
  HF_TRY(Config config, config_of(env, shape_of(header), source));
  std::vector<ForeignTensor> tensors = llmc_tensors(make_model_spec(config));
  HF_TRY(WeightFiles weights, open_llmc_weights(std::move(file), header, tensors));
  return ModelImport(std::move(config), std::move(tensors), std::move(weights));
}

Result<void> ModelImport::add_adapters(Env& env, const std::string& folder) {
  HF_TRY(adapter_, open_peft_adapter(env, folder, config_));
  config_.lora = adapter_->lora;
  return {};
}

Result<void> ModelImport::read_parameter(const std::string& parameter, std::span<float> target) {
  std::ranges::fill(target, 0.0F);  // elements that no part covers are padding of the vocabulary
  for (const ForeignTensor& tensor : tensors_) {
    if (tensor.parameter == parameter) HF_TRY_VOID(read_tensor(weights_, tensor, target));
  }
  if (!adapter_.has_value()) return {};
  for (const ForeignTensor& tensor : adapter_->tensors) {
    if (tensor.parameter == parameter) HF_TRY_VOID(read_tensor(adapter_->weights, tensor, target));
  }
  return {};
}

// Reads a tensor into the rows of `target`, the whole parameter, that it holds.
Result<void> ModelImport::read_tensor(WeightFiles& weights, const ForeignTensor& tensor,
                                      std::span<float> target) {
  const StoredWeight& weight = *weights.find(tensor.name);
  const std::uint64_t count = tensor.rows * tensor.row_elements();
  const std::span<float> part = target.subspan(tensor.first_row * tensor.row_elements(), count);
  if (tensor.is_transposed) {
    std::vector<float> stored(count);
    HF_TRY_VOID(weights.read(weight, 0, stored));
    transpose(stored, tensor.rows, tensor.columns, part);
    return {};
  }
  for (std::uint64_t first = 0; first < count; first += imported_at_once)
    HF_TRY_VOID(weights.read(weight, first, part.subspan(first, std::min(imported_at_once, count - first))));
  return {};
}

Result<std::vector<ShardFile>> ModelImport::write_shards(Env& env, const std::string& directory,
                                                         const std::string& run_id) {
  std::vector<ShardFile> shards;
  std::vector<std::vector<float>> memory;
  std::vector<StatePiece> pieces;
  std::uint64_t bytes = 0;
  const auto write = [&]() -> Result<void> {
    if (pieces.empty()) return {};
    HF_TRY(ShardFile shard,
           write_shard_file(env, directory, CheckpointStore::shard_name(static_cast<int>(shards.size())),
                            /*step=*/0, run_id, pieces));
    shards.push_back(std::move(shard));
    pieces.clear();
    memory.clear();
    bytes = 0;
    return {};
  };
  for (const ParameterSpec& parameter : parameter_specs(make_model_spec(config_))) {
    const std::uint64_t parameter_bytes = parameter.elements() * sizeof(float);
    if (bytes + parameter_bytes > shard_bytes_wanted) HF_TRY_VOID(write());
    bytes += parameter_bytes;
    std::vector<float>& values = memory.emplace_back(parameter.elements());
    HF_TRY_VOID(read_parameter(parameter.name, values));
    ShardSpec spec{
        .tensor = parameter.name, .kind = "weight", .dtype = DType::fp32, .global_shape = parameter.shape};
    spec.block_count = spec.slice_blocks();
    pieces.push_back({.spec = std::move(spec), .bytes = std::as_bytes(std::span(values))});
  }
  HF_TRY_VOID(write());
  return shards;
}

}  // namespace holdfast::interop
