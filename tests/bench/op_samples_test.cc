#include "tools/bench_native/op_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "kernels/cost.h"
#include "kernels/visit_op.h"
#include "runtime/config/loader.h"
#include "runtime/measure/op_text.h"

namespace holdfast::test {
namespace {

std::vector<OpId> all_ops() {
  std::vector<OpId> ops;
  for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(OpId::count); ++i)
    ops.push_back(static_cast<OpId>(i));
  return ops;
}

TEST(OpSamples, EveryOpHasSomeAndTheyAreOfThatOp) {
  for (const SampleSizes sizes : {SampleSizes::cpu, SampleSizes::gpu, SampleSizes::toy}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      for (const OpId id : all_ops()) {
        std::size_t count = 0;
        for (const SampleSource& source : sample_sources(id, dtype, sizes)) {
          for (const OpSample& sample : op_samples(id, source)) {
            OpMemory none(OpMemory::Mode::shapes_only);
            const OpCall call = sample.make(none);
            EXPECT_EQ(call.id(), id);
            EXPECT_GT(cost_of(id, call.arguments()).bytes_moved(), 0U) << sample.use;
            EXPECT_FALSE(shape_text(id, call.arguments()).empty());
            ++count;
          }
        }
        EXPECT_GT(count, 0U) << name_of(id) << ", " << name_of(sizes);
      }
    }
  }
}

// The uses of an op at some sizes, each with its arguments.
template <typename Op>
std::map<std::string, Op> calls_at(SampleSizes sizes) {
  std::map<std::string, Op> calls;
  for (const SampleSource& source : sample_sources(Op::id, DType::bf16, sizes)) {
    for (const OpSample& sample : op_samples(Op::id, source)) {
      OpMemory none(OpMemory::Mode::shapes_only);
      const OpCall call = sample.make(none);
      calls[sample.use] = *static_cast<const Op*>(call.arguments());
    }
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
  for (const SampleSource& source : sample_sources(AttentionForward::id, DType::bf16, SampleSizes::gpu)) {
    if (source.batch.rows() != 16384 || source.spec.width != 2048) continue;
    const OpSample sample = op_samples(AttentionForward::id, source).front();
    OpMemory none(OpMemory::Mode::shapes_only);
    const OpCall call = sample.make(none);
    const auto& op = *static_cast<const AttentionForward*>(call.arguments());
    EXPECT_EQ(op.heads * op.head_size, 2048);
    EXPECT_EQ(op.batch * op.sequence_length, 16384);
    EXPECT_EQ(op.first_key != nullptr, sample.flops_share < 1.0);
    EXPECT_EQ(op.first_key != nullptr, sample.variant == " in documents");
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
  for (const SampleSource& source : sample_sources(AttentionForward::id, DType::fp32, SampleSizes::toy)) {
    if (source.document_unit == 0) continue;
    const OpSample sample = op_samples(AttentionForward::id, source).front();
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
  for (const OpId id : all_ops()) {
    std::vector<SampleSource> sources = sample_sources(id, DType::bf16, SampleSizes::toy);
    sources.push_back(sample_sources(id, DType::bf16, SampleSizes::cpu)[2]);
    for (const SampleSource& source : sources) {
      for (const OpSample& sample : op_samples(id, source)) {
        OpMemory memory;
        const OpCall call = sample.make(memory);
        ASSERT_TRUE(memory.outcome().ok());
        if (cost_of(id, call.arguments()).working_set_bytes() > (16U << 20U)) continue;
        call.launch(*device);
        device->synchronize();
      }
    }
  }
}

TEST(ShapeText, TellsDifferentWorkApart) {
  Matmul op{.m = 2, .n = 3, .k = 4, .transpose_b = true};
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT");
  op.accumulate = true;
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT accumulate");
  op.accumulate = false;
  op.dtype = DType::bf16;
  EXPECT_EQ(shape_text(Matmul::id, &op), "2x3x4 NT bf16->fp32");
  const AttentionForward attention{
      .batch = 1, .sequence_length = 8, .heads = 4, .kv_heads = 2, .head_size = 16};
  EXPECT_EQ(shape_text(AttentionForward::id, &attention), "1x8 4/2 heads of 16");
}

}  // namespace
}  // namespace holdfast::test
