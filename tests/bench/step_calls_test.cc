#include "tools/bench_native/step_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "kernels/visit_op.h"
#include "runtime/config/loader.h"
#include "runtime/device/device.h"
#include "tests/support/temporary_directory.h"

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

// Twenty bytes of each line: documents, where the end of a line begins one.
std::shared_ptr<DataSet> data_of(const Config& config, const TemporaryDirectory& directory) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i % 20 == 0 ? '\n' : static_cast<char>('a' + i % 7);
  HF_CHECK(posix_env().replace_text(directory / "train.txt", text).ok(), "there is room");
  return DataSet::open(posix_env(), {{.path = directory / "train.txt"}}, config.training.sequence_length,
                       data_options(config))
      .value();
}

std::vector<StepCall> calls(OpId op, const char* precision = "fp32") {
  const TemporaryDirectory directory;
  const Config config = config_of(precision);
  Result<std::vector<StepCall>> found = calls_of_step(posix_env(), config, *data_of(config, directory), op);
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

// The keys that the first tokens of the run see are those of its data.
TEST(StepCalls, HaveTheDocumentsOfTheRun) {
  const TemporaryDirectory directory;
  Config config = config_of("fp32");
  config.data.document_mask = true;
  config.data.document_begin = '\n';
  const std::shared_ptr<DataSet> data = data_of(config, directory);
  const Result<std::vector<StepCall>> found =
      calls_of_step(posix_env(), config, *data, OpId::attention_forward);
  ASSERT_TRUE(found.ok()) << found.error().message;
  ASSERT_EQ(found->size(), 1U);
  const OpSample& sample = found->front().sample;
  ASSERT_EQ(sample.contents.first_keys.size(), 2U * 16U);
  double pairs = 0;
  for (std::size_t row = 0; row < 2; ++row) {
    std::vector<std::int32_t> window(17);
    const SampleId id = data->order(static_cast<std::uint64_t>(config.run.seed)).at(row);
    ASSERT_TRUE(data->read(id, window, 256).ok());
    std::int32_t begin = 0;
    for (std::int32_t i = 0; i < 16; ++i) {
      if (window[static_cast<std::size_t>(i)] == '\n') begin = i;
      EXPECT_EQ(sample.contents.first_keys[row * 16 + static_cast<std::size_t>(i)], begin);
      pairs += i - begin + 1;
    }
  }
  EXPECT_DOUBLE_EQ(sample.flops_share, pairs / (2 * 16 * 17 / 2));
  EXPECT_LT(sample.flops_share, 1.0);

  config.data.document_mask = false;
  const std::shared_ptr<DataSet> whole = data_of(config, directory);
  config.data.document_mask = true;
  const Result<std::vector<StepCall>> refused =
      calls_of_step(posix_env(), config, *whole, OpId::attention_forward);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "a call of attention_forward in documents has 32 tokens, where a microbatch of the run has 0: it "
            "cannot be measured");
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
