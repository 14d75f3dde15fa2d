#include "tools/bench_native/step_calls.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/visit_op.h"
#include "runtime/config/loader.h"
#include "runtime/device/device.h"

namespace holdfast::test {
namespace {

Config config_of(const char* precision) {
  Config config;
  config.model = {
      .preset = {}, .style = "llama", .layers = 3, .heads = 4, .kv_heads = 2, .width = 64, .vocabulary = 256};
  config.device = "cpu";
  config.training.sequence_length = 16;
  config.training.microbatch_size = 2;
  config.training.microbatches_per_lane = 2;
  config.training.precision = precision;
  config.parallel.lanes = 2;
  HF_CHECK(resolve_config(config, 0).ok(), "the config is right");
  return config;
}

std::vector<StepCall> calls(OpId op, const char* precision = "fp32") {
  Result<std::vector<StepCall>> found = calls_of_step(posix_env(), config_of(precision), op);
  HF_CHECK(found.ok(), "{}", found.error().message);
  return std::move(found).value();
}

// Two norms of each block and one before the head, in each microbatch of each lane.
TEST(StepCalls, CountTheCallsOfAStep) {
  const std::vector<StepCall> norms = calls(OpId::rmsnorm_forward);
  ASSERT_EQ(norms.size(), 1U);
  EXPECT_EQ(norms[0].calls, (2 * 3 + 1) * 2 * 2);
  std::set<bool> directions;
  for (const StepCall& each : calls(OpId::rotary))
    directions.insert(static_cast<const Rotary*>(each.sample.shape.arguments())->inverse);
  EXPECT_EQ(directions.size(), 2U);
}

// What calls point to outlives the plan, and can be given memory.
TEST(StepCalls, OfTablesAndSegmentsRun) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
  for (const char* const precision : {"fp32", "bf16"}) {
    for (const OpId op : {OpId::adamw, OpId::accumulate, OpId::embedding_backward, OpId::cross_entropy}) {
      const std::vector<StepCall> found = calls(op, precision);
      EXPECT_FALSE(found.empty()) << name_of(op);
      for (const StepCall& each : found) {
        OpMemory memory;
        const OpCall call = each.sample.make(memory);
        ASSERT_TRUE(memory.outcome().ok());
        call.launch(*device);
        device->synchronize();
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
