#include "tools/bench_native/op_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "kernels/cost.h"
#include "kernels/visit_op.h"
#include "runtime/config/loader.h"
#include "runtime/measure/call_key.h"
#include "runtime/measure/op_text.h"

namespace holdfast::test {
namespace {

std::vector<OpSample> samples_of(DType dtype, SampleSizes sizes) {
  Result<std::vector<OpSample>> samples = op_samples(posix_env(), dtype, sizes);
  HF_CHECK(samples.ok(), "{}", samples.error().message);
  return std::move(samples).value();
}

TEST(OpSamples, EveryOpHasSome) {
  for (const SampleSizes sizes : {SampleSizes::cpu, SampleSizes::gpu, SampleSizes::toy}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      std::set<OpId> sampled;
      for (const OpSample& sample : samples_of(dtype, sizes)) {
        const OpId id = sample.shape.id();
        EXPECT_GT(cost_of(id, sample.shape.arguments()).bytes_moved(), 0U) << sample.use;
        EXPECT_FALSE(shape_text(id, sample.shape.arguments()).empty());
        sampled.insert(id);
      }
      for (std::size_t i = 0; i < op_count; ++i)
        EXPECT_TRUE(sampled.contains(static_cast<OpId>(i))) << op_names[i] << ", " << name_of(sizes);
    }
  }
}

// The uses of an op at some sizes, each with its arguments.
template <typename Op>
std::map<std::string, Op> calls_at(SampleSizes sizes) {
  std::map<std::string, Op> calls;
  for (const OpSample& sample : samples_of(DType::bf16, sizes)) {
    if (sample.shape.id() == Op::id) calls[sample.use] = *static_cast<const Op*>(sample.shape.arguments());
  }
  return calls;
}

// The chunk of the LM head is the run's on that device.
TEST(OpSamples, ChunksOfTheHeadAreThoseOfTheDevice) {
  EXPECT_EQ(calls_at<CrossEntropy>(SampleSizes::cpu).at("gpt2-124m 1x1024, head").rows, 256);
  Config config;
  config.device = "cuda";
  config.training.precision = "bf16";
  config.model.vocabulary = 50257;
  EXPECT_EQ(calls_at<CrossEntropy>(SampleSizes::gpu).at("gpt2-124m 64x1024, head").rows,
            default_head_rows(config));
  EXPECT_GE(default_head_rows(config), 4096);
}

TEST(OpSamples, AGpuHasATableOfAttention) {
  const auto calls = calls_at<AttentionForward>(SampleSizes::gpu);
  const AttentionForward& model = calls.at("llama-8b 1x8192, attention");
  EXPECT_EQ(std::tuple(model.heads, model.kv_heads, model.head_size), std::tuple(32, 8, 128));
  std::set<std::tuple<std::int64_t, std::int64_t, bool, bool>> seen;  // head size, length, grouped, masked
  for (const OpSample& sample : samples_of(DType::bf16, SampleSizes::gpu)) {
    if (sample.shape.id() != AttentionForward::id || sample.use.find("16384 tokens") == std::string::npos)
      continue;
    const auto& op = *static_cast<const AttentionForward*>(sample.shape.arguments());
    EXPECT_EQ(op.heads * op.head_size, 2048);
    EXPECT_EQ(op.batch * op.sequence_length, 16384);
    EXPECT_EQ(op.first_key != nullptr, sample.flops_share < 1.0);
    EXPECT_EQ(op.first_key != nullptr,
              measure::call_text(sample.shape.id(), sample.shape.arguments()).ends_with(" in documents"));
    seen.emplace(op.head_size, op.sequence_length, op.kv_heads < op.heads, op.first_key != nullptr);
  }
  EXPECT_EQ(seen.size(), 2U * 5U * 3U);
  for (const std::int64_t head_size : {64, 128}) {
    for (const std::int64_t length : {1024, 2048, 4096, 8192, 16384}) {
      for (const auto& [grouped, masked] :
           {std::pair(false, false), std::pair(true, false), std::pair(false, true)})
        EXPECT_TRUE(seen.contains({head_size, length, grouped, masked})) << head_size << ' ' << length;
    }
  }
}

// Every query sees the keys from the first of its document on, and the share of the pairs is what is left.
TEST(OpSamples, DocumentsAreWhatAttentionMayBeAskedFor) {
  for (const OpSample& sample : samples_of(DType::fp32, SampleSizes::toy)) {
    if (sample.shape.id() != AttentionForward::id || sample.contents.first_keys.empty()) continue;
    OpMemory memory;
    const OpCall call = sample.make(memory);
    const auto& op = *static_cast<const AttentionForward*>(call.arguments());
    double pairs = 0.0, causal = 0.0;
    for (std::int64_t t = 0; t < op.sequence_length; ++t) {
      for (std::int64_t sequence = 0; sequence < op.batch; ++sequence)
        EXPECT_EQ(op.first_key[sequence * op.sequence_length + t], op.first_key[t]);
      EXPECT_LE(op.first_key[t], t);
      EXPECT_GE(op.first_key[t], t == 0 ? 0 : op.first_key[t - 1]);
      pairs += static_cast<double>(t + 1 - op.first_key[t]);
      causal += static_cast<double>(t + 1);
    }
    EXPECT_DOUBLE_EQ(sample.flops_share, pairs / causal);
    EXPECT_LT(sample.flops_share, 0.75);
  }
}

TEST(OpSamples, RunOnADevice) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
  std::vector<OpSample> samples = samples_of(DType::bf16, SampleSizes::toy);
  for (OpSample& sample : samples_of(DType::bf16, SampleSizes::cpu)) {
    if (sample.use.starts_with("llama-15m 4x64")) samples.push_back(std::move(sample));
  }
  std::set<OpId> launched;
  for (const OpSample& sample : samples) {
    if (cost_of(sample.shape.id(), sample.shape.arguments()).working_set_bytes() > (16U << 20U)) continue;
    OpMemory memory;
    const OpCall call = sample.make(memory);
    ASSERT_TRUE(memory.outcome().ok());
    call.launch(*device);
    device->synchronize();
    launched.insert(call.id());
  }
  EXPECT_EQ(launched.size(), op_count);
}

// Backward of a block rotates the other way, and its norms work in place over the gradient that flows around them; the
// norm before the head does not.
TEST(OpSamples, CallsOfAShapeInOtherStatesAreSamplesOfTheirOwn) {
  std::set<bool> rotations, in_place, compared;
  for (const OpSample& sample : samples_of(DType::fp32, SampleSizes::toy)) {
    const void* const arguments = sample.shape.arguments();
    if (sample.shape.id() == Rotary::id) rotations.insert(static_cast<const Rotary*>(arguments)->inverse);
    if (sample.shape.id() == AdamW::id)
      compared.insert(static_cast<const AdamW*>(arguments)->gradient_digests != nullptr);
    if (sample.shape.id() != RmsNormBackward::id) continue;
    const auto& norm = *static_cast<const RmsNormBackward*>(arguments);
    in_place.insert(norm.dresidual == norm.dx);
  }
  for (const std::set<bool>& states : {rotations, in_place, compared}) EXPECT_EQ(states.size(), 2U);
}

TEST(ShapeText, TellsDifferentWorkApart) {
  Matmul op{.m = 2, .n = 3, .k = 4, .transpose_b = true};
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT");
  op.accumulate = true;
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT accumulate");
  op.accumulate = false;
  op.residual = &op;
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT residual");
  op.residual = nullptr;
  op.gelu_of = &op;
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT gelu_of");
  op.gelu_of = nullptr;
  op.dtype = DType::bf16;
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT bf16->fp32");
  const AttentionForward attention{
      .batch = 1, .sequence_length = 8, .heads = 4, .kv_heads = 2, .head_size = 16};
  EXPECT_EQ(shape_text(AttentionForward::id, &attention), "1x8 4/2 heads of 16");
  AttentionForward cached = attention;
  cached.cache = &cached;
  cached.first_position = 5;
  EXPECT_EQ(shape_text(AttentionForward::id, &cached), "1x8 4/2 heads of 16 after 5 in a cache");
  EXPECT_EQ(measure::call_text(AttentionForward::id, &cached), "1x8 4/2 heads of 16 after 5 in a cache");
}

}  // namespace
}  // namespace holdfast::test
