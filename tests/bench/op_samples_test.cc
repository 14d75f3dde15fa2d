#include "runtime/bench/op_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cost.h"
#include "kernels/visit_op.h"
#include "runtime/bench/op_text.h"

namespace holdfast {
namespace {

std::vector<OpId> all_ops() {
  std::vector<OpId> ops;
  for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(OpId::count); ++i)
    ops.push_back(static_cast<OpId>(i));
  return ops;
}

TEST(OpSamples, EveryOpHasSomeAndTheyAreOfThatOp) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const OpId id : all_ops()) {
      std::size_t count = 0;
      for (const SampleSource& source : sample_sources(id, dtype)) {
        for (const OpSample& sample : op_samples(id, source)) {
          OpMemory none(OpMemory::Mode::shapes_only);
          const OpCall call = sample.make(none);
          EXPECT_EQ(call.id(), id);
          EXPECT_GT(cost_of(id, call.arguments()).bytes_moved(), 0U) << sample.use;
          EXPECT_FALSE(shape_text(id, call.arguments()).empty());
          ++count;
        }
      }
      EXPECT_GT(count, 0U) << name_of(id);
    }
  }
}

TEST(OpSamples, RunOnADevice) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
  for (const OpId id : all_ops()) {
    const SampleSource source = sample_sources(id, DType::bf16)[2];
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
}  // namespace holdfast
