#include "runtime/bench/op_samples.h"

#include <algorithm>

#include "kernels/visit_op.h"
#include "runtime/bench/op_samples_internal.h"
#include "runtime/bench/op_text.h"
#include "runtime/config/presets.h"

namespace holdfast {
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
      return parameter_samples(id, source);
    case OpId::count:
      break;
  }
  return {};
}

SampleSource source_of(std::string_view preset, BatchShapeBT batch, DType dtype) {
  constexpr std::int64_t head_rows = 256;  // the fewest that a chunk of the head has
  return {.name = fmt::format("{} {}x{}", preset, batch.batch, batch.sequence_length),
          .spec = preset_spec(preset, dtype, batch.sequence_length).value(),
          .batch = batch,
          .rows_of_head = std::min(head_rows, batch.rows())};
}

}  // namespace

void OpCall::launch(Device& device) const {
  visit_op(id_, arguments(), [&](const auto& op) { device.launch(op); });
}

Result<ModelSpec> preset_spec(std::string_view preset, DType dtype, std::int64_t sequence_length) {
  std::vector<std::string_view> names;
  for (const ModelPreset& each : model_presets()) names.push_back(each.name);
  const ModelPreset* found = find_preset(preset);
  if (found == nullptr) {
    return fail(ExitCode::config, "there is no preset {}; there are {}", preset, fmt::join(names, ", "));
  }
  Config config;
  config.model = found->model;
  config.training.sequence_length = sequence_length;
  config.training.precision = dtype == DType::bf16 ? "bf16" : "fp32";
  return make_model_spec(config);
}

std::vector<OpSample> op_samples(OpId id, const SampleSource& source) {
  std::vector<OpSample> samples = samples_of(id, source);
  for (OpSample& sample : samples) sample.use = fmt::format("{}, {}", source.name, sample.use);
  return samples;
}

std::vector<SampleSource> sample_sources(OpId id, DType dtype) {
  std::vector<BatchShapeBT> batches = {{.batch = 4, .sequence_length = 64},
                                       {.batch = 1, .sequence_length = 1024}};
  const OpClass op_class = class_of(id);
  const bool by_memory = op_class == OpClass::norm || op_class == OpClass::activation ||
                         op_class == OpClass::residual || op_class == OpClass::bias_gradient;
  if (by_memory) batches.push_back({.batch = 16, .sequence_length = 1024});
  std::vector<SampleSource> sources;
  for (const std::string_view preset : {"gpt2-124m", "llama-15m", "llama-110m"}) {
    for (const BatchShapeBT& batch : batches) sources.push_back(source_of(preset, batch, dtype));
  }
  return sources;
}

}  // namespace holdfast
