#include "tools/bench_native/op_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/visit_op.h"
#include "runtime/config/loader.h"
#include "runtime/config/presets.h"
#include "runtime/measure/op_text.h"
#include "runtime/model/activations.h"

namespace holdfast::bench {
namespace {

// Every op has its part of the model.
Samples samples_of(OpId id, const SampleSource& source) {
  switch (id) {
    case Matmul::id:
    case BiasGradient::id:
    case EmbeddingForward::id:
    case EmbeddingBackward::id:
    case LayerNormForward::id:
    case LayerNormBackward::id:
    case RmsNormForward::id:
    case RmsNormBackward::id:
    case Rotary::id:
    case AttentionForward::id:
    case AttentionBackward::id:
    case GeluForward::id:
    case GeluBackward::id:
    case SwigluForward::id:
    case SwigluBackward::id:
    case Add::id:
      return layer_samples(id, source);
    case CrossEntropy::id:
    case CrossEntropySlice::id:
    case CrossEntropyJoin::id:
    case CrossEntropyGradient::id:
    case LossSum::id:
    case TreeSum::id:
      return head_samples(id, source);
    case AdamW::id:
    case SquareSum::id:
    case Accumulate::id:
    case Cast::id:
    case FillZero::id:
    case Copy::id:
    case TensorDigest::id:
    case OptimizerDigest::id:
      return parameter_samples(id, source);
    case OpId::count:
      break;
  }
  return {};
}

// Makes a model from its shapes, as a config names them.
Result<ModelSpec> spec_of(const ModelConfig& model, DType dtype, std::int64_t sequence_length,
                          const std::string& device) {
  Config config;
  config.model = model;
  config.device = device;
  config.training.sequence_length = sequence_length;
  config.training.precision = dtype == DType::bf16 ? "bf16" : "fp32";
  HF_TRY_VOID(resolve_config(config, 0));
  return make_model_spec(config);
}

SampleSource source_of(const std::string& name, const ModelSpec& spec, BatchShapeBT batch) {
  return {.name = name, .spec = spec, .batch = batch, .rows_of_head = head_chunk_rows(batch.rows(), spec)};
}

SampleSource preset_source(std::string_view preset, BatchShapeBT batch, DType dtype,
                           const std::string& device) {
  return source_of(fmt::format("{} {}x{}", preset, batch.batch, batch.sequence_length),
                   preset_spec(preset, dtype, batch.sequence_length, device).value(), batch);
}

std::vector<SampleSource> cpu_sources(OpId id, DType dtype) {
  std::vector<BatchShapeBT> batches = {{.batch = 4, .sequence_length = 64},
                                       {.batch = 1, .sequence_length = 1024}};
  const OpClass op_class = class_of(id);
  const bool by_memory = op_class == OpClass::norm || op_class == OpClass::activation ||
                         op_class == OpClass::residual || op_class == OpClass::bias_gradient;
  if (by_memory) batches.push_back({.batch = 16, .sequence_length = 1024});
  std::vector<SampleSource> sources;
  for (const std::string_view preset : {"gpt2-124m", "llama-15m", "llama-110m"}) {
    for (const BatchShapeBT& batch : batches) sources.push_back(preset_source(preset, batch, dtype, "cpu"));
  }
  return sources;
}

// `tokens` tokens in sequences of each length, by the width and head sizes of a model that is all attention.
struct AttentionTable {
  std::int64_t tokens = 0, width = 0, shortest = 0, longest = 0;
  std::int64_t document_unit = 0;
};

void add_attention_table(std::vector<SampleSource>& sources, const AttentionTable& table, DType dtype) {
  for (const std::int64_t head_size : {64, 128}) {
    for (std::int64_t length = table.shortest; length <= table.longest; length *= 2) {
      const BatchShapeBT batch{.batch = table.tokens / length, .sequence_length = length};
      ModelConfig model{.preset = {},
                        .layers = 1,
                        .heads = table.width / head_size,
                        .width = table.width,
                        .vocabulary = 64};
      const auto add = [&](const char* name, std::int64_t groups, std::int64_t document_unit) {
        model.kv_heads = std::max<std::int64_t>(1, model.heads / groups);
        sources.push_back(source_of(fmt::format("{} {} tokens", name, table.tokens),
                                    spec_of(model, dtype, length, "cuda").value(), batch));
        sources.back().document_unit = document_unit;
      };
      constexpr std::int64_t grouped = 4;
      add("plain", 1, 0);
      add("grouped", grouped, 0);
      add("documents,", 1, table.document_unit);
    }
  }
}

bool is_attention(OpId id) {
  return id == AttentionForward::id || id == AttentionBackward::id;
}

std::vector<SampleSource> gpu_sources(OpId id, DType dtype) {
  const std::pair<const char*, BatchShapeBT> models[] = {
      {"gpt2-124m", {.batch = 64, .sequence_length = 1024}},
      {"gpt2-1558m", {.batch = 8, .sequence_length = 1024}},
      {"llama-1b", {.batch = 8, .sequence_length = 1024}},
      {"llama-8b", {.batch = 1, .sequence_length = 8192}}};
  std::vector<SampleSource> sources;
  for (const auto& [preset, batch] : models) sources.push_back(preset_source(preset, batch, dtype, "cuda"));
  constexpr AttentionTable table{
      .tokens = 16384, .width = 2048, .shortest = 1024, .longest = 16384, .document_unit = 256};
  if (is_attention(id)) add_attention_table(sources, table, dtype);
  return sources;
}

std::vector<SampleSource> toy_sources(OpId id, DType dtype) {
  constexpr BatchShapeBT batch{.batch = 2, .sequence_length = 16};
  std::vector<SampleSource> sources;
  for (const char* style : {"gpt2", "llama"}) {
    const bool is_llama = std::string_view(style) == "llama";
    const ModelConfig model{.preset = {},
                            .style = style,
                            .layers = 1,
                            .heads = 4,
                            .kv_heads = is_llama ? 2 : 4,
                            .width = 64,
                            .vocabulary = 256};
    sources.push_back(source_of(fmt::format("toy-{} {}x{}", style, batch.batch, batch.sequence_length),
                                spec_of(model, dtype, batch.sequence_length, "cuda").value(), batch));
  }
  constexpr AttentionTable table{
      .tokens = 32, .width = 256, .shortest = 32, .longest = 32, .document_unit = 2};
  if (is_attention(id)) add_attention_table(sources, table, dtype);
  return sources;
}

}  // namespace

void OpCall::launch(Device& device) const {
  visit_op(id_, arguments(), [&](const auto& op) { device.launch(op); });
}

Result<ModelSpec> preset_spec(std::string_view preset, DType dtype, std::int64_t sequence_length,
                              const std::string& device) {
  std::vector<std::string_view> names;
  for (const ModelPreset& each : model_presets()) names.push_back(each.name);
  const ModelPreset* found = find_preset(preset);
  if (found == nullptr) {
    return fail(ExitCode::config, "there is no preset {}; there are {}", preset, fmt::join(names, ", "));
  }
  return spec_of(found->model, dtype, sequence_length, device);
}

std::vector<OpSample> op_samples(OpId id, const SampleSource& source) {
  std::vector<OpSample> samples = samples_of(id, source);
  for (OpSample& sample : samples) sample.use = fmt::format("{}, {}", source.name, sample.use);
  return samples;
}

std::string_view name_of(SampleSizes sizes) {
  switch (sizes) {
    case SampleSizes::cpu:
      return "cpu";
    case SampleSizes::gpu:
      return "gpu";
    case SampleSizes::toy:
      return "toy";
  }
  return "unknown";
}

std::vector<SampleSource> sample_sources(OpId id, DType dtype, SampleSizes sizes) {
  switch (sizes) {
    case SampleSizes::cpu:
      return cpu_sources(id, dtype);
    case SampleSizes::gpu:
      return gpu_sources(id, dtype);
    case SampleSizes::toy:
      return toy_sources(id, dtype);
  }
  return {};
}

}  // namespace holdfast::bench
