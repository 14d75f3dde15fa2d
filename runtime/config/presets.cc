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

struct LlamaShape {
  std::int64_t layers, heads, kv_heads, width, feed_forward, vocabulary;
  bool tied;
  double rope_theta;
};

ModelPreset llama(std::string_view name, std::string_view source, const LlamaShape& shape) {
  ModelPreset preset{.name = name, .model = {}, .source = source};
  preset.model = {.preset = std::string(name),
                  .style = "llama",
                  .layers = shape.layers,
                  .heads = shape.heads,
                  .kv_heads = shape.kv_heads,
                  .width = shape.width,
                  .feed_forward = shape.feed_forward,
                  .vocabulary = shape.vocabulary,
                  .head = shape.tied ? "tied" : "untied",
                  .positions = 0,
                  .rope_theta = shape.rope_theta};
  return preset;
}

// The Llama 3 models stretch rotary frequencies for contexts beyond 8,192 tokens; a preset is their shape and
// base.
constexpr std::string_view kStories = "TinyStories models of karpathy/llama2.c";
constexpr std::string_view kLlama32 = "Llama 3.2, meta-llama config.json";
constexpr std::string_view kLlama31 = "Llama 3.1, meta-llama config.json";

}  // namespace

std::span<const ModelPreset> model_presets() {
  static const std::array<ModelPreset, 9> presets = {
      gpt2("gpt2-124m", 12, 12, 768),
      gpt2("gpt2-355m", 24, 16, 1024),
      gpt2("gpt2-774m", 36, 20, 1280),
      gpt2("gpt2-1558m", 48, 25, 1600),
      llama("llama-15m", kStories, {6, 6, 6, 288, 768, 32000, true, 10000.0}),
      llama("llama-110m", kStories, {12, 12, 12, 768, 2048, 32000, true, 10000.0}),
      llama("llama-1b", kLlama32, {16, 32, 8, 2048, 8192, 128256, true, 500000.0}),
      llama("llama-3b", kLlama32, {28, 24, 8, 3072, 8192, 128256, true, 500000.0}),
      llama("llama-8b", kLlama31, {32, 32, 8, 4096, 14336, 128256, false, 500000.0}),
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
