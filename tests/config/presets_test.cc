// The presets have the published numbers of parameters.
#include "runtime/config/presets.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

std::int64_t parameters_gpt2(const ModelConfig& m) {
  const std::int64_t norm = 2 * m.width;
  const std::int64_t attention = m.width * 3 * m.width + 3 * m.width + m.width * m.width + m.width;
  const std::int64_t feed_forward = 2 * m.width * m.feed_forward + m.feed_forward + m.width;
  return (m.vocabulary + m.positions) * m.width + m.layers * (2 * norm + attention + feed_forward) + norm;
}

std::int64_t parameters_llama(const ModelConfig& m) {
  const std::int64_t kv_width = m.width / m.heads * m.kv_heads;
  const std::int64_t attention = 2 * m.width * m.width + 2 * m.width * kv_width;
  const std::int64_t layer = attention + 3 * m.width * m.feed_forward + 2 * m.width;
  const std::int64_t embeddings = (m.head == "tied" ? 1 : 2) * m.vocabulary * m.width;
  return embeddings + m.layers * layer + m.width;
}

struct Published {
  const char* name;
  std::int64_t parameters;
};

TEST(Presets, ParameterCountsAreThePublishedOnes) {
  const std::vector<Published> table = {
      {"gpt2-124m", 124'439'808},    {"gpt2-355m", 354'823'168},  {"gpt2-774m", 774'030'080},
      {"gpt2-1558m", 1'557'611'200}, {"llama-15m", 15'191'712},   {"llama-110m", 109'529'856},
      {"llama-1b", 1'235'814'400},   {"llama-3b", 3'212'749'824}, {"llama-8b", 8'030'261'248},
  };
  EXPECT_EQ(table.size(), model_presets().size());
  for (const Published& published : table) {
    const ModelPreset* preset = find_preset(published.name);
    ASSERT_NE(preset, nullptr) << published.name;
    const bool gpt2 = preset->model.style == "gpt2";
    EXPECT_EQ(gpt2 ? parameters_gpt2(preset->model) : parameters_llama(preset->model), published.parameters)
        << published.name;
    EXPECT_EQ(preset->model.preset, published.name);
  }
}

TEST(Presets, UnknownNameIsNull) {
  EXPECT_EQ(find_preset("gpt2"), nullptr);
}

}  // namespace
}  // namespace holdfast
