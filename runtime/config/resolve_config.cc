#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/config/model_family.h"
#include "runtime/config/presets.h"

namespace holdfast::config {
namespace {

void fill(std::int64_t& value, std::int64_t if_left_out) {
  if (value == 0) value = if_left_out;
}

void resolve_shapes(ModelConfig& model, std::int64_t sequence_length) {
  if (const ModelPreset* preset = find_preset(model.preset)) {
    std::vector<std::string> freeze = std::move(model.freeze);
    model = preset->model;
    model.freeze = std::move(freeze);
  }
  const ModelFamily& family = family_of(model.style);
  fill(model.kv_heads, model.heads);
  if (model.head_size * model.heads == model.width) model.head_size = 0;
  constexpr std::int64_t multiple = 64;
  const std::int64_t eight_thirds = (8 * model.width + 3 * multiple - 1) / (3 * multiple) * multiple;
  fill(model.feed_forward, family.activation == ActivationKind::gelu ? 4 * model.width : eight_thirds);
  if (!family.is_rotary) fill(model.positions, sequence_length);
  if (model.head == "auto") model.head = family.has_tied_head ? "tied" : "untied";
}

Result<void> resolve_vocabulary(ModelConfig& model, std::int64_t vocabulary_of_data) {
  fill(model.vocabulary, vocabulary_of_data);
  if (model.vocabulary == 0) {
    return fail(ExitCode::config, "model.vocabulary is missing and does not follow from the data: give it");
  }
  if (model.vocabulary < vocabulary_of_data) {
    return fail(ExitCode::config,
                "model.vocabulary = {} is smaller than the {} tokens that data.sources can hold (text has "
                "256): raise "
                "it to {} or leave it out",
                model.vocabulary, vocabulary_of_data, vocabulary_of_data);
  }
  return {};
}

void resolve_layout(ParallelConfig& parallel) {
  fill(parallel.lanes, parallel.data != 0 ? parallel.data : default_lanes);
  fill(parallel.tensor_lanes, parallel.tensor != 0 ? parallel.tensor : 1);
  fill(parallel.tensor, 1);
  fill(parallel.pipeline, 1);
}

}  // namespace

std::int64_t padded_vocabulary(const ModelConfig& model) {
  constexpr std::int64_t multiple = 64;
  return (model.vocabulary + multiple - 1) / multiple * multiple;
}

std::int64_t default_head_rows(const Config& config) {
  if (config.device != "cuda") return 0;
  constexpr std::int64_t chunk_bytes = std::int64_t{1} << 30;
  constexpr std::int64_t fewest = 256, most = std::int64_t{1} << 20;
  const std::int64_t row_bytes =
      padded_vocabulary(config.model) * (config.training.precision == "bf16" ? 2 : 4);
  const auto rows = static_cast<std::uint64_t>(std::clamp(chunk_bytes / row_bytes, fewest, most));
  return static_cast<std::int64_t>(std::bit_floor(rows));
}

Result<void> resolve_config(Config& config, std::int64_t vocabulary_of_data) {
  resolve_shapes(config.model, config.training.sequence_length);
  HF_TRY_VOID(resolve_vocabulary(config.model, vocabulary_of_data));
  resolve_layout(config.parallel);
  fill(config.training.head_rows, default_head_rows(config));
  return {};
}

void inherit_resolved(Config& config, const Config& stored) {
  // A run of a preset that had plain rotary frequencies when it began goes on with them.
  if (!config.model.preset.empty() && config.model.preset == plain_preset_of(stored.model)) {
    std::vector<std::string> freeze = std::move(config.model.freeze);
    config.model = stored.model;
    config.model.freeze = std::move(freeze);
  }
  fill(config.parallel.lanes, stored.parallel.lanes);
  fill(config.parallel.tensor_lanes, stored.parallel.tensor_lanes);
  fill(config.parallel.ranks_per_gpu, stored.parallel.ranks_per_gpu);
  fill(config.training.head_rows, stored.training.head_rows);
  fill(config.model.kv_heads, stored.model.kv_heads);
  fill(config.model.feed_forward, stored.model.feed_forward);
  fill(config.model.vocabulary, stored.model.vocabulary);
  fill(config.model.positions, stored.model.positions);
  if (config.model.head == "auto") config.model.head = stored.model.head;
  if (config.device == "auto") config.device = stored.device;
}

}  // namespace holdfast::config
