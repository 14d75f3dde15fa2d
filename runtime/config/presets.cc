#include "runtime/config/presets.h"

#include <array>

namespace holdfast::config {
namespace {

ModelPreset gpt2(std::string_view name, std::int64_t layers, std::int64_t heads, std::int64_t width) {
  ModelPreset preset{.name = name, .model = {}, .source = "GPT-2, openai/gpt-2 hparams.json"};
  preset.model = {.preset = std::string(name),
                  .style = "gpt2",
                  .layers = layers,
                  .heads = heads,
                  .kv_heads = heads,
                  .width = width,
                  .feed_forward = 4 * width,
                  .vocabulary = 50257,
                  .head = "tied",
                  .positions = 1024};
  return preset;
}

// Shape of a model with rotary positions.
struct RotaryShape {
  std::int64_t layers, heads, kv_heads, width, feed_forward, vocabulary;
  bool tied;
  double rope_theta;
  double norm_epsilon = 1e-5;
  std::int64_t head_size = 0;
  double rope_factor = 0;  // of Llama 3's scaling; 0: none
};

ModelPreset rotary(std::string_view name, std::string_view style, std::string_view source,
                   const RotaryShape& shape) {
  ModelPreset preset{.name = name, .model = {}, .source = source};
  preset.model = {.preset = std::string(name),
                  .style = std::string(style),
                  .layers = shape.layers,
                  .heads = shape.heads,
                  .kv_heads = shape.kv_heads,
                  .head_size = shape.head_size,
                  .width = shape.width,
                  .feed_forward = shape.feed_forward,
                  .vocabulary = shape.vocabulary,
                  .head = shape.tied ? "tied" : "untied",
                  .positions = 0,
                  .rope_theta = shape.rope_theta,
                  .norm_epsilon = shape.norm_epsilon};
  if (shape.rope_factor > 0) {
    preset.model.rope_scaling = "llama3";
    preset.model.rope_factor = shape.rope_factor;
    preset.model.rope_original_positions = 8192;
  }
  return preset;
}

constexpr std::string_view kStories = "TinyStories models of karpathy/llama2.c";
constexpr std::string_view kLlama32 = "Llama 3.2, meta-llama config.json";
constexpr std::string_view kLlama31 = "Llama 3.1, meta-llama config.json";
constexpr std::string_view kQwen25 = "Qwen2.5, Qwen config.json";
constexpr std::string_view kQwen3 = "Qwen3, Qwen config.json";

}  // namespace

std::span<const ModelPreset> model_presets() {
  static const std::array presets = {
      gpt2("gpt2-124m", 12, 12, 768),
      gpt2("gpt2-355m", 24, 16, 1024),
      gpt2("gpt2-774m", 36, 20, 1280),
      gpt2("gpt2-1558m", 48, 25, 1600),
      rotary("llama-15m", "llama", kStories, {6, 6, 6, 288, 768, 32000, true, 10000.0}),
      rotary("llama-110m", "llama", kStories, {12, 12, 12, 768, 2048, 32000, true, 10000.0}),
      rotary("llama-1b", "llama", kLlama32, {16, 32, 8, 2048, 8192, 128256, true, 500000.0, 1e-5, 0, 32.0}),
      rotary("llama-3b", "llama", kLlama32, {28, 24, 8, 3072, 8192, 128256, true, 500000.0, 1e-5, 0, 32.0}),
      rotary("llama-8b", "llama", kLlama31, {32, 32, 8, 4096, 14336, 128256, false, 500000.0, 1e-5, 0, 8.0}),
      rotary("qwen2.5-0.5b", "qwen2", kQwen25, {24, 14, 2, 896, 4864, 151936, true, 1e6, 1e-6}),
      rotary("qwen2.5-1.5b", "qwen2", kQwen25, {28, 12, 2, 1536, 8960, 151936, true, 1e6, 1e-6}),
      rotary("qwen2.5-7b", "qwen2", kQwen25, {28, 28, 4, 3584, 18944, 152064, false, 1e6, 1e-6}),
      rotary("qwen3-0.6b", "qwen3", kQwen3, {28, 16, 8, 1024, 3072, 151936, true, 1e6, 1e-6, 128}),
      rotary("qwen3-1.7b", "qwen3", kQwen3, {28, 16, 8, 2048, 6144, 151936, true, 1e6, 1e-6}),
      rotary("qwen3-4b", "qwen3", kQwen3, {36, 32, 8, 2560, 9728, 151936, true, 1e6, 1e-6, 128}),
      rotary("qwen3-8b", "qwen3", kQwen3, {36, 32, 8, 4096, 12288, 151936, false, 1e6, 1e-6}),
  };
  return presets;
}

const ModelPreset* find_preset(std::string_view name) {
  for (const ModelPreset& preset : model_presets()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

}  // namespace holdfast::config
