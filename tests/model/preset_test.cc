// The presets are the published models: their parameter counts, and the shape of every kind of tensor, as the
// files that were published have them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/config/presets.h"
#include "runtime/model/spec.h"

namespace holdfast::test {
namespace {

struct PublishedModel {
  const char* name;
  std::uint64_t parameters;
  const char* source;  // of the parameter count and of the shapes
  std::uint64_t layers, vocabulary, positions, width, kv_width, feed_forward;
  bool tied_head;
  std::uint64_t attention_width = 0;  // 0: the width
};

// Where the numbers are published. gpt2-*: shapes from hparams.json of openai/gpt-2, counts from keras-hub's
// gpt2_presets.py, which equal the sums over the tensors of the named repositories. Llama 3: shapes from
// config.json, counts from `safetensors.parameters`, which huggingface.co/api/models/NAME reports. Stories:
// shapes from the table of models in the README of karpathy/llama2.c, counts from the size of the named file,
// which is 28 bytes of header, the weights and a rotary table (sequence length x head size), all fp32:
// stories15M.bin has 60,816,028 bytes = 28 + 4 x (15,191,712 + 256 x 48), stories110M.bin 438,381,596 =
// 28 + 4 x (109,529,856 + 1,024 x 64).
constexpr const char* kGpt2 = "openai-community/gpt2";
constexpr const char* kGpt2Medium = "openai-community/gpt2-medium";
constexpr const char* kGpt2Large = "openai-community/gpt2-large";
constexpr const char* kGpt2Xl = "openai-community/gpt2-xl";
constexpr const char* kStories15M = "karpathy/tinyllamas stories15M.bin";
constexpr const char* kStories110M = "karpathy/tinyllamas stories110M.bin";
constexpr const char* kLlama1B = "meta-llama/Llama-3.2-1B";
constexpr const char* kLlama3B = "meta-llama/Llama-3.2-3B";
constexpr const char* kLlama8B = "meta-llama/Llama-3.1-8B";
constexpr const char* kQwen05B = "Qwen/Qwen2.5-0.5B";
constexpr const char* kQwen15B = "Qwen/Qwen2.5-1.5B";
constexpr const char* kQwen7B = "Qwen/Qwen2.5-7B";
constexpr const char* kQwen06B = "Qwen/Qwen3-0.6B";
constexpr const char* kQwen17B = "Qwen/Qwen3-1.7B";
constexpr const char* kQwen4B = "Qwen/Qwen3-4B";
constexpr const char* kQwen8B = "Qwen/Qwen3-8B";

const std::vector<PublishedModel>& published_models() {
  // preset, parameters, source, layers, vocabulary, positions, width, kv width, feed-forward, tied
  static const std::vector<PublishedModel> table = {
      {"gpt2-124m", 124'439'808, kGpt2, 12, 50257, 1024, 768, 768, 3072, true},
      {"gpt2-355m", 354'823'168, kGpt2Medium, 24, 50257, 1024, 1024, 1024, 4096, true},
      {"gpt2-774m", 774'030'080, kGpt2Large, 36, 50257, 1024, 1280, 1280, 5120, true},
      {"gpt2-1558m", 1'557'611'200, kGpt2Xl, 48, 50257, 1024, 1600, 1600, 6400, true},
      {"llama-15m", 15'191'712, kStories15M, 6, 32000, 0, 288, 288, 768, true},
      {"llama-110m", 109'529'856, kStories110M, 12, 32000, 0, 768, 768, 2048, true},
      {"llama-1b", 1'235'814'400, kLlama1B, 16, 128256, 0, 2048, 512, 8192, true},
      {"llama-3b", 3'212'749'824, kLlama3B, 28, 128256, 0, 3072, 1024, 8192, true},
      {"llama-8b", 8'030'261'248, kLlama8B, 32, 128256, 0, 4096, 1024, 14336, false},
      {"qwen2.5-0.5b", 494'032'768, kQwen05B, 24, 151936, 0, 896, 128, 4864, true},
      {"qwen2.5-1.5b", 1'543'714'304, kQwen15B, 28, 151936, 0, 1536, 256, 8960, true},
      {"qwen2.5-7b", 7'615'616'512, kQwen7B, 28, 152064, 0, 3584, 512, 18944, false},
      {"qwen3-0.6b", 596'049'920, kQwen06B, 28, 151936, 0, 1024, 1024, 3072, true, 2048},
      {"qwen3-1.7b", 1'720'574'976, kQwen17B, 28, 151936, 0, 2048, 1024, 6144, true},
      {"qwen3-4b", 4'022'468'096, kQwen4B, 36, 151936, 0, 2560, 1024, 9728, true, 4096},
      {"qwen3-8b", 8'190'735'360, kQwen8B, 36, 151936, 0, 4096, 1024, 12288, false},
  };
  return table;
}

ModelSpec spec_of(const char* name) {
  Config config;
  config.model = find_preset(name)->model;
  return make_model_spec(config);
}

using Shapes = std::map<std::string, std::vector<std::uint64_t>>;

// Every tensor of the published model under our names, the vocabulary without padding. The published files
// hold q, k, v, gate and up one by one; here they are stacked, in this order.
Shapes published_shapes(const PublishedModel& m) {
  const bool gpt2 = m.positions > 0;
  const std::string_view preset = m.name;
  const bool qwen2 = preset.starts_with("qwen2"), qwen3 = preset.starts_with("qwen3");
  const std::uint64_t attention_width = m.attention_width != 0 ? m.attention_width : m.width;
  Shapes shapes;
  shapes["embedding.token.weight"] = {m.vocabulary, m.width};
  if (gpt2) shapes["embedding.position.weight"] = {m.positions, m.width};
  const auto norm = [&](const std::string& name) {
    shapes[name + ".weight"] = {m.width};
    if (gpt2) shapes[name + ".bias"] = {m.width};
  };
  const auto linear = [&](const std::string& name, std::uint64_t outputs, std::uint64_t inputs) {
    shapes[name + ".weight"] = {outputs, inputs};
    if (gpt2) shapes[name + ".bias"] = {outputs};
  };
  for (std::uint64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    norm(prefix + "attention_norm");
    linear(prefix + "attention.qkv", attention_width + 2 * m.kv_width, m.width);
    if (qwen2) shapes[prefix + "attention.qkv.bias"] = {attention_width + 2 * m.kv_width};
    if (qwen3)
      shapes[prefix + "attention.query_norm.weight"] = shapes[prefix + "attention.key_norm.weight"] = {128};
    linear(prefix + "attention.output", m.width, attention_width);
    norm(prefix + "feed_forward_norm");
    linear(prefix + "feed_forward.up", gpt2 ? m.feed_forward : 2 * m.feed_forward, m.width);
    linear(prefix + "feed_forward.down", m.width, m.feed_forward);
  }
  norm("final_norm");
  if (!m.tied_head) shapes["head.weight"] = {m.vocabulary, m.width};
  return shapes;
}

TEST(Preset, EveryPresetIsInTheTable) {
  EXPECT_EQ(published_models().size(), model_presets().size());
  for (const PublishedModel& model : published_models()) EXPECT_NE(find_preset(model.name), nullptr);
}

TEST(Preset, ParameterCountsAreThePublishedOnes) {
  for (const PublishedModel& model : published_models())
    EXPECT_EQ(parameter_count(spec_of(model.name)), model.parameters) << model.name << ", " << model.source;
}

TEST(Preset, TensorsHaveThePublishedShapes) {
  for (const PublishedModel& model : published_models()) {
    Shapes ours;
    for (const ParameterSpec& parameter : parameter_specs(spec_of(model.name))) {
      ours[parameter.name] = parameter.shape;
      if (parameter.shape.size() == 2)
        ours[parameter.name].front() -= parameter.padding_elements / parameter.shape.back();
    }
    EXPECT_EQ(ours, published_shapes(model)) << model.name << ", " << model.source;
  }
}

// What shapes do not show.
TEST(Preset, HeadsAndConstantsAreThePublishedOnes) {
  struct Constants {
    const char* name;
    std::int64_t head_size;
    double rope_theta, norm_epsilon;
    double rope_factor = 1.0;
  };
  const std::vector<Constants> table = {
      {"llama-15m", 48, 1e4, 1e-5},      {"llama-110m", 64, 1e4, 1e-5},
      {"llama-1b", 64, 5e5, 1e-5, 32.0}, {"llama-3b", 128, 5e5, 1e-5, 32.0},
      {"llama-8b", 128, 5e5, 1e-5, 8.0}, {"gpt2-124m", 64, 0, 1e-5},
      {"gpt2-355m", 64, 0, 1e-5},        {"gpt2-774m", 64, 0, 1e-5},
      {"gpt2-1558m", 64, 0, 1e-5},       {"qwen2.5-0.5b", 64, 1e6, 1e-6},
      {"qwen2.5-1.5b", 128, 1e6, 1e-6},  {"qwen2.5-7b", 128, 1e6, 1e-6},
      {"qwen3-0.6b", 128, 1e6, 1e-6},    {"qwen3-1.7b", 128, 1e6, 1e-6},
      {"qwen3-4b", 128, 1e6, 1e-6},      {"qwen3-8b", 128, 1e6, 1e-6},
  };
  EXPECT_EQ(table.size(), model_presets().size());
  for (const Constants& constants : table) {
    const ModelSpec spec = spec_of(constants.name);
    EXPECT_EQ(spec.head_size, constants.head_size) << constants.name;
    EXPECT_FLOAT_EQ(spec.norm_epsilon, static_cast<float>(constants.norm_epsilon)) << constants.name;
    EXPECT_EQ(spec.rope_scaling.factor, constants.rope_factor) << constants.name;
    const bool is_llama3 = spec.rope_scaling.kind == RotaryScaling::Kind::llama3;
    EXPECT_EQ(is_llama3, constants.rope_factor > 1.0) << constants.name;
    if (is_llama3) {
      EXPECT_EQ(spec.rope_scaling.original_positions, 8192.0);
      EXPECT_EQ(spec.rope_scaling.low_factor, 1.0);
      EXPECT_EQ(spec.rope_scaling.high_factor, 4.0);
    }
    if (constants.rope_theta > 0) {
      EXPECT_EQ(spec.rope_theta, constants.rope_theta) << constants.name;
    }
  }
}

}  // namespace
}  // namespace holdfast::test
