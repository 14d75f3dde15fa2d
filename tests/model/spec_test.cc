#include "runtime/model/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/config/presets.h"

namespace holdfast::test {
namespace {

ModelSpec preset_spec(const std::string& name) {
  Config config;
  config.model = find_preset(name)->model;
  return make_model_spec(config);
}

ModelSpec tiny_spec(const std::string& style, const std::string& head) {
  Config config;
  config.model = {.preset = "",
                  .style = style,
                  .layers = 2,
                  .heads = 4,
                  .kv_heads = 2,
                  .width = 32,
                  .feed_forward = 48,
                  .vocabulary = 65,
                  .head = head};
  config.training.sequence_length = 20;
  return make_model_spec(config);
}

std::vector<std::string> first_tensors(const std::vector<Bucket>& buckets) {
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets) names.push_back(bucket.tensors.front().name);
  return names;
}

TEST(ModelSpec, StylesFromConfig) {
  const ModelSpec gpt2 = tiny_spec("gpt2", "tied");
  EXPECT_EQ(gpt2.positions, 20);
  EXPECT_EQ(gpt2.norm, NormKind::layer_norm);
  EXPECT_EQ(gpt2.activation, ActivationKind::gelu);
  EXPECT_EQ(gpt2.biases, Biases::all);
  EXPECT_TRUE(gpt2.tied_head);
  EXPECT_EQ(gpt2.up_width(), 48);
  const ModelSpec llama = tiny_spec("llama", "untied");
  EXPECT_EQ(llama.positions, 0);
  EXPECT_EQ(llama.norm, NormKind::rms_norm);
  EXPECT_EQ(llama.activation, ActivationKind::swiglu);
  EXPECT_EQ(llama.biases, Biases::none);
  EXPECT_FALSE(llama.tied_head);
  EXPECT_EQ(llama.up_width(), 96);
  EXPECT_EQ(llama.head_size, 8);
  EXPECT_EQ(llama.qkv_width(), 64);
}

TEST(ModelSpec, FamiliesDifferInWhatABlockHas) {
  const auto has = [](const ModelSpec& spec, const std::string& name) {
    const std::vector<ParameterSpec> parameters = parameter_specs(spec);
    return std::ranges::find(parameters, name, &ParameterSpec::name) != parameters.end();
  };
  for (const ModelFamily& family : model_families()) {
    const ModelSpec spec = tiny_spec(std::string(family.style), "untied");
    EXPECT_EQ(has(spec, "layers.0.attention.qkv.bias"), family.biases != Biases::none) << family.style;
    EXPECT_EQ(has(spec, "layers.0.attention.output.bias"), family.biases == Biases::all) << family.style;
    EXPECT_EQ(has(spec, "layers.1.attention.query_norm.weight"), family.has_head_norms) << family.style;
    EXPECT_EQ(has(spec, "embedding.position.weight"), !family.is_rotary) << family.style;
  }
}

TEST(ModelSpec, HeadsOfASizeOfTheirOwn) {
  Config config;
  config.model = {.preset = "",
                  .style = "qwen3",
                  .layers = 1,
                  .heads = 4,
                  .kv_heads = 2,
                  .head_size = 24,
                  .width = 32,
                  .feed_forward = 48,
                  .vocabulary = 64,
                  .head = "tied"};
  const ModelSpec spec = make_model_spec(config);
  EXPECT_EQ(spec.attention_width(), 96);
  std::map<std::string, std::vector<std::uint64_t>> shapes;
  for (const ParameterSpec& parameter : parameter_specs(spec)) shapes[parameter.name] = parameter.shape;
  EXPECT_THAT(shapes["layers.0.attention.qkv.weight"], testing::ElementsAre(192, 32));
  EXPECT_THAT(shapes["layers.0.attention.output.weight"], testing::ElementsAre(32, 96));
  EXPECT_THAT(shapes["layers.0.attention.query_norm.weight"], testing::ElementsAre(24));
}

// The frequencies of Llama 3.1 8B, from the two ends and both sides of the two borders. Computed from the description in
// Meta's llama-models (use_scaled_rope) by hand: waves of 8192 / 4 tokens and of 8192 are the borders.
TEST(RotaryFrequency, Llama3DividesLongWavesOnly) {
  ModelSpec spec = preset_spec("llama-8b"), plain = spec;
  plain.rope_scaling = {};
  const auto share = [&](std::int64_t pair) {
    return rotary_frequency(spec, pair) / rotary_frequency(plain, pair);
  };
  const auto wave = [&](std::int64_t pair) { return 2.0 * 3.14159265358979 / rotary_frequency(plain, pair); };
  for (std::int64_t pair = 0; pair < 64; ++pair) {
    const double length = wave(pair);
    if (2048.0 <= length && length <= 8192.0) continue;
    EXPECT_DOUBLE_EQ(share(pair), length < 2048.0 ? 1.0 : 0.125) << pair;
  }
  EXPECT_LT(wave(28), 2048.0);
  EXPECT_GT(wave(35), 8192.0);
  const double kept = (8192.0 / wave(30) - 1.0) / 3.0;
  EXPECT_GT(kept, 0.0);
  EXPECT_LT(kept, 1.0);
  EXPECT_NEAR(share(30), kept + (1.0 - kept) / 8.0, 1e-12);
  spec.rope_scaling = {.kind = RotaryScaling::Kind::linear, .factor = 3.0};
  EXPECT_DOUBLE_EQ(share(5), 1.0 / 3.0);
}

TEST(ModelSpec, VocabularyIsPaddedButNotCounted) {
  const ModelSpec spec = tiny_spec("llama", "untied");
  EXPECT_EQ(spec.padded_vocabulary, 128);
  const ParameterSpec table = parameter_specs(spec).front();
  EXPECT_EQ(table.name, "embedding.token.weight");
  EXPECT_THAT(table.shape, testing::ElementsAre(128, 32));
  EXPECT_EQ(table.padding_elements, 63u * 32u);
  ModelSpec unpadded = spec;
  unpadded.padded_vocabulary = spec.vocabulary;
  EXPECT_EQ(parameter_count(spec), parameter_count(unpadded));
}

TEST(BackwardBuckets, OrderOfATiedModelStartsWithTheShadow) {
  const std::vector<Bucket> buckets = backward_buckets(tiny_spec("gpt2", "tied"));
  EXPECT_THAT(first_tensors(buckets),
              testing::ElementsAre("embedding.token.weight", "final_norm.weight",
                                   "layers.1.feed_forward_norm.weight", "layers.1.attention_norm.weight",
                                   "layers.0.feed_forward_norm.weight", "layers.0.attention_norm.weight",
                                   "embedding.position.weight", "embedding.token.weight"));
  EXPECT_EQ(buckets.front().tied_to, 7);
  EXPECT_EQ(buckets.front().tensors.front().shape, buckets.back().tensors.front().shape);
}

TEST(BackwardBuckets, OrderOfAnUntiedModelStartsWithTheHead) {
  const std::vector<Bucket> buckets = backward_buckets(tiny_spec("llama", "untied"));
  EXPECT_THAT(first_tensors(buckets),
              testing::ElementsAre("final_norm.weight", "layers.1.feed_forward_norm.weight",
                                   "layers.1.attention_norm.weight", "layers.0.feed_forward_norm.weight",
                                   "layers.0.attention_norm.weight", "embedding.token.weight"));
  EXPECT_EQ(buckets.front().tensors.back().name, "head.weight");
  for (const Bucket& bucket : buckets) EXPECT_EQ(bucket.tied_to, -1);
}

ModelSpec frozen_spec(const char* style, const char* head, const std::vector<std::string>& freeze) {
  ModelSpec spec = tiny_spec(style, head);
  spec.freeze = parse_freeze_list(freeze).value();
  return spec;
}

TEST(BackwardBuckets, FrozenOnesComeLast) {
  const std::vector<Bucket> buckets =
      backward_buckets(frozen_spec("gpt2", "tied", {"embedding", "layers 0-0"}));
  EXPECT_THAT(first_tensors(buckets),
              testing::ElementsAre("final_norm.weight", "layers.1.feed_forward_norm.weight",
                                   "layers.1.attention_norm.weight", "layers.0.feed_forward_norm.weight",
                                   "layers.0.attention_norm.weight", "embedding.position.weight",
                                   "embedding.token.weight"));
  for (std::size_t i = 0; i < buckets.size(); ++i) EXPECT_EQ(buckets[i].is_frozen(), i >= 3) << i;
}

TEST(BackwardBuckets, FrozenMatricesLeaveTheirBucket) {
  const std::vector<Bucket> buckets =
      backward_buckets(frozen_spec("llama", "untied", {"all but biases and norms"}));
  ASSERT_EQ(buckets.size(), 5U + 6U);
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(buckets[i].is_frozen(), i >= 5) << i;
    for (const BucketTensor& tensor : buckets[i].tensors)
      EXPECT_EQ(tensor.is_frozen, tensor.shape.size() > 1);
  }
}

// The stage of the head needs the weight, and has no gradient for it.
TEST(BackwardBuckets, AFrozenTiedWeightIsOnBothStages) {
  const ModelSpec spec = frozen_spec("gpt2", "tied", {"embedding"});
  const ModelPart first{.first_layer = 0, .end_layer = 1, .has_embedding = true};
  const ModelPart last{.first_layer = 1, .end_layer = 2, .has_head = true};
  const BucketPlan of_embedding(backward_buckets(spec, std::span(&first, 1), all_slices(1)), 1);
  const BucketPlan of_head(backward_buckets(spec, std::span(&last, 1), all_slices(1)), 1);
  ASSERT_GE(of_embedding.imported(), 0);
  EXPECT_TRUE(of_embedding.is_frozen(of_embedding.imported()));
  ASSERT_GE(of_head.exported(), 0);
  EXPECT_TRUE(of_head.is_frozen(of_head.exported()));
  EXPECT_EQ(of_head.local_count(), 3);
  EXPECT_EQ(of_head.frozen_segments(0).size(), 0U) << "the state is the embedding's";
}

TEST(FlopsPerToken, CountsWhatAFrozenModelComputes) {
  constexpr std::int64_t length = 16;
  const ModelSpec whole = tiny_spec("llama", "untied");
  const double head = 6.0 * static_cast<double>(whole.vocabulary * whole.width);
  const double layer = (flops_per_token(whole, length) - head) / static_cast<double>(whole.layers);
  const double attention = 6.0 * static_cast<double>(whole.attention_width() * length);
  EXPECT_DOUBLE_EQ(flops_per_token(frozen_spec("llama", "untied", {"embedding"}), length),
                   flops_per_token(whole, length));
  EXPECT_DOUBLE_EQ(flops_per_token(frozen_spec("llama", "untied", {"embedding", "layer 0"}), length),
                   head + layer + layer / 3.0);
  EXPECT_DOUBLE_EQ(flops_per_token(frozen_spec("llama", "untied", {"layer 1"}), length),
                   head + layer + (layer - attention) * 2.0 / 3.0 + attention);
  EXPECT_DOUBLE_EQ(flops_per_token(frozen_spec("llama", "untied", {"all but biases and norms"}), length),
                   (head + static_cast<double>(whole.layers) * (layer - attention)) * 2.0 / 3.0 +
                       static_cast<double>(whole.layers) * attention);
}

TEST(StateBytes, FrozenTensorsHaveNoMoments) {
  const ModelSpec whole = tiny_spec("gpt2", "tied"), frozen = frozen_spec("gpt2", "tied", {"embedding"});
  EXPECT_EQ(state_bytes(whole, {}), 12 * parameter_count(whole));
  const auto embedding = static_cast<std::uint64_t>((whole.vocabulary + whole.positions) * whole.width);
  EXPECT_EQ(trained_parameter_count(frozen), parameter_count(whole) - embedding);
  EXPECT_EQ(state_bytes(frozen, {}), state_bytes(whole, {}) - 8 * embedding);
  const OptimizerConfig halves{.moments = "bf16"};
  EXPECT_EQ(state_bytes(whole, halves), 8 * parameter_count(whole));
  EXPECT_EQ(state_bytes(frozen, halves), state_bytes(whole, halves) - 4 * embedding);
}

// So that the flat buffer lies in forward order and a rank can be handed any part of it.
TEST(BackwardBuckets, BackwardsTheyListEveryTensorInForwardOrder) {
  for (const char* style : {"gpt2", "llama", "qwen2", "qwen3"}) {
    for (const char* head : {"tied", "untied"}) {
      const ModelSpec spec = tiny_spec(style, head);
      const BucketPlan plan(backward_buckets(spec), 1);
      std::vector<std::string> names, expected;
      std::uint64_t end = 0;
      for (auto bucket = plan.buckets().rbegin(); bucket != plan.buckets().rend(); ++bucket) {
        if (bucket->tied_to >= 0) continue;
        for (const BucketTensor& tensor : bucket->tensors) {
          names.push_back(tensor.name);
          EXPECT_GE(tensor.parameter_offset, end) << tensor.name;
          end = tensor.parameter_offset + tensor.elements();
        }
      }
      for (const ParameterSpec& parameter : parameter_specs(spec)) expected.push_back(parameter.name);
      EXPECT_EQ(names, expected) << style << " " << head;
    }
  }
}

TEST(BackwardBuckets, OnlyMatricesDecay) {
  for (const Bucket& bucket : backward_buckets(tiny_spec("gpt2", "tied"))) {
    for (const BucketTensor& tensor : bucket.tensors) {
      EXPECT_EQ(tensor.weight_decay, tensor.shape.size() == 2) << tensor.name;
    }
  }
}

TEST(Flops, SixPerMatmulWeightAndCausalAttentionOnce) {
  for (const ModelPreset& preset : model_presets()) {
    const ModelSpec spec = preset_spec(std::string(preset.name));
    std::uint64_t weights =
        static_cast<std::uint64_t>(spec.vocabulary * spec.width);  // the head, tied or not
    for (const ParameterSpec& parameter : parameter_specs(spec)) {
      if (parameter.shape.size() == 2 && parameter.name.starts_with("layers."))
        weights += parameter.elements();
    }
    // Queries times keys and probabilities times values, 2 FLOP each, three times for backward, half of it
    // masked.
    const std::int64_t attention = 2 * 2 * 3 * spec.layers * spec.heads * spec.head_size * 1000 / 2;
    EXPECT_DOUBLE_EQ(flops_per_token(spec, 1000),
                     6.0 * static_cast<double>(weights) + static_cast<double>(attention))
        << preset.name;
  }
  EXPECT_DOUBLE_EQ(flops_per_token(preset_spec("gpt2-124m"), 1024), 797'815'296.0);
}

TEST(Flops, AWindowLeavesOutWhatItHides) {
  ModelSpec spec = preset_spec("llama-15m");
  const double whole = flops_per_token(spec, 1000);
  spec.attention_window = 1000;
  EXPECT_EQ(flops_per_token(spec, 1000), whole);
  spec.attention_window = 300;
  spec.attention_sinks = 50;
  // The last token does not see 650 of 1000, the others fewer: 325 of a sequence's 500 in the mean of the last 650.
  const double hidden = 2 * 2 * 3 * static_cast<double>(spec.layers * spec.attention_width()) * 325 * 0.65;
  EXPECT_NEAR(flops_per_token(spec, 1000), whole - hidden, 1.0);
}

}  // namespace
}  // namespace holdfast::test
