#include <gtest/gtest.h>

#include "runtime/config/document.h"
#include "runtime/config/loader.h"

namespace holdfast::test {
namespace {

Config small() {
  Config config;
  config.run.directory = "r";
  config.data.sources = {{"a", "text", 0.0}};
  config.training.steps = 10;
  config.model.layers = 2;
  config.model.heads = 4;
  config.model.width = 100;
  return config;
}

TEST(ResolveConfig, FillsInLlamaShapes) {
  Config config = small();
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.feed_forward, 320);  // 8/3 x 100 = 266.7, up to a multiple of 64
  EXPECT_EQ(config.model.vocabulary, 256);
  EXPECT_EQ(config.model.head, "untied");
  EXPECT_EQ(config.model.positions, 0);
  EXPECT_EQ(config.parallel.lanes, 8);
  EXPECT_EQ(config.parallel.tensor_lanes, 1);
  EXPECT_EQ(config.parallel.tensor, 1);
  EXPECT_EQ(config.parallel.pipeline, 1);
}

TEST(ResolveConfig, LlamaFeedForwardThatIsAMultipleStays) {
  Config config = small();
  config.model.width = 288;
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.model.feed_forward, 768);
}

TEST(ResolveConfig, FillsInGpt2Shapes) {
  Config config = small();
  config.model.style = "gpt2";
  config.training.sequence_length = 77;
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.model.feed_forward, 400);
  EXPECT_EQ(config.model.head, "tied");
  EXPECT_EQ(config.model.positions, 77);
}

TEST(ResolveConfig, PresetFixesShapes) {
  Config config = small();
  config.model = {};
  config.model.preset = "llama-1b";
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.model.layers, 16);
  EXPECT_EQ(config.model.kv_heads, 8);
  EXPECT_EQ(config.model.vocabulary, 128256);
  EXPECT_EQ(config.model.head, "tied");
  EXPECT_DOUBLE_EQ(config.model.rope_theta, 500000.0);
  EXPECT_EQ(config.model.preset, "llama-1b");
  EXPECT_EQ(config.model.rope_scaling, "llama3");
  EXPECT_DOUBLE_EQ(config.model.rope_factor, 32.0);
}

TEST(ResolveConfig, TheUsualHeadSizeIsThatOfNone) {
  Config config = small();
  config.model.head_size = 25;
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.model.head_size, 0);
  config.model.head_size = 26;
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.model.head_size, 26);
}

TEST(ResolveConfig, GivenValuesStay) {
  Config config = small();
  config.model.kv_heads = 2;
  config.model.feed_forward = 99;
  config.model.vocabulary = 300;
  config.model.head = "tied";
  config.parallel.lanes = 5;
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.model.kv_heads, 2);
  EXPECT_EQ(config.model.feed_forward, 99);
  EXPECT_EQ(config.model.vocabulary, 300);
  EXPECT_EQ(config.model.head, "tied");
  EXPECT_EQ(config.parallel.lanes, 5);
}

TEST(ResolveConfig, TheNumberOfRanksLeavesNoTrace) {
  Config one = small();
  Config four = small();
  ASSERT_TRUE(resolve_config(one, 256).ok());
  ASSERT_TRUE(resolve_config(four, 256).ok());
  EXPECT_EQ(four.parallel.data, 0);
  EXPECT_TRUE(diff_config(one, four).empty());
  EXPECT_EQ(config_identity(one), config_identity(four));
}

TEST(ResolveConfig, LanesFollowAGivenDegree) {
  Config config = small();
  config.parallel.data = 3;
  ASSERT_TRUE(resolve_config(config, 256).ok());
  EXPECT_EQ(config.parallel.lanes, 3);
  EXPECT_EQ(config.parallel.data, 3);
}

// On a GPU the logits of a chunk are 0.5 to 1 GiB; on a CPU the chunk follows from its cache.
TEST(ResolveConfig, ChunksOfTheHeadFillABoundedPartOfAGpu) {
  struct Row {
    const char* device;
    std::int64_t vocabulary;
    const char* precision;
    std::int64_t given, rows;
  };
  for (const Row& row : {Row{"cpu", 50257, "bf16", 0, 0}, Row{"auto", 50257, "bf16", 0, 0},
                         Row{"cuda", 50257, "bf16", 0, 8192}, Row{"cuda", 50257, "fp32", 0, 4096},
                         Row{"cuda", 128256, "bf16", 0, 4096}, Row{"cuda", 151936, "bf16", 0, 2048},
                         Row{"cuda", 256, "bf16", 0, 1 << 20}, Row{"cuda", 50257, "bf16", 300, 300},
                         Row{"cpu", 50257, "bf16", 300, 300}}) {
    Config config = small();
    config.device = row.device;
    config.model.vocabulary = row.vocabulary;
    config.training.precision = row.precision;
    config.training.head_rows = row.given;
    ASSERT_TRUE(resolve_config(config, 256).ok());
    EXPECT_EQ(config.training.head_rows, row.rows)
        << row.device << ", " << row.vocabulary << ", " << row.precision;
  }
}

TEST(ResolveConfig, IsIdempotent) {
  Config once = small();
  ASSERT_TRUE(resolve_config(once, 256).ok());
  Config twice = once;
  ASSERT_TRUE(resolve_config(twice, 256).ok());
  EXPECT_EQ(dump_config(once), dump_config(twice));
}

struct BadStart {
  std::int64_t vocabulary, vocabulary_of_data;
  const char* expected;
};

TEST(ResolveConfig, BadStartsAreSentences) {
  const std::vector<BadStart> table = {
      {100, 256,
       "model.vocabulary = 100 is smaller than the 256 tokens that data.sources can hold (text has 256): "
       "raise it to "
       "256 or leave it out"},
      {0, 0, "model.vocabulary is missing and does not follow from the data: give it"},
  };
  for (const BadStart& bad : table) {
    Config config = small();
    config.model.vocabulary = bad.vocabulary;
    const auto result = resolve_config(config, bad.vocabulary_of_data);
    ASSERT_FALSE(result.ok()) << bad.expected;
    EXPECT_EQ(result.error().code, ExitCode::config);
    EXPECT_EQ(result.error().message, bad.expected);
  }
}

TEST(InheritResolved, WhatTheFirstStartResolvedWins) {
  Config first = small();
  first.parallel.data = 4;
  ASSERT_TRUE(resolve_config(first, 256).ok());
  ASSERT_EQ(first.parallel.lanes, 4);

  Config later = small();
  later.parallel.data = 2;
  inherit_resolved(later, first);
  ASSERT_TRUE(resolve_config(later, 256).ok());
  EXPECT_EQ(later.parallel.lanes, 4);
  EXPECT_EQ(config_identity(later), config_identity(first));

  Config other = small();
  other.parallel.lanes = 2;
  inherit_resolved(other, first);
  EXPECT_EQ(other.parallel.lanes, 2);  // an explicit other value is seen by the diff
}

TEST(InheritResolved, TheRunsChunksOfTheHeadStay) {
  Config stored = small();
  stored.training.head_rows = 4096;
  Config config = small();
  config.device = "cuda";
  inherit_resolved(config, stored);
  ASSERT_TRUE(resolve_config(config, 50257).ok());
  EXPECT_EQ(config.training.head_rows, 4096);
}

}  // namespace
}  // namespace holdfast::test
