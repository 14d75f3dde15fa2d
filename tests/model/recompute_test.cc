// Recompute: the same bits from less memory, by computing again exactly what was not kept.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/support/model_rig.h"

namespace holdfast::test {
namespace {

constexpr Recompute all_modes[] = {Recompute::none, Recompute::selective, Recompute::full};
constexpr BatchShapeBT shape{.batch = 3, .sequence_length = 21};

ModelSpec spec_of(const std::string& style, const std::string& precision, std::int64_t layers) {
  Config config;
  config.model = {.preset = "",
                  .style = style,
                  .layers = layers,
                  .heads = 4,
                  .kv_heads = style == "gpt2" ? 4 : 2,
                  .width = 96,
                  .feed_forward = 208,
                  .vocabulary = 150,
                  .head = style == "llama" ? "untied" : "tied",
                  .positions = 40};
  config.training.precision = precision;
  return make_model_spec(config);
}

class RecomputeTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  ModelSpec spec(std::int64_t layers) const {
    return spec_of(std::get<0>(GetParam()), std::get<1>(GetParam()), layers);
  }
};

// Loss and gradients of two microbatches, one on top of the other; the second has documents of seven tokens.
std::vector<float> two_microbatches(ModelRig& rig) {
  rig.set_initial_weights(11);
  std::vector<std::int32_t> first_key(static_cast<std::size_t>(shape.rows()));
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    first_key[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(row % shape.sequence_length / 7 * 7);
  }
  std::vector<float> bits;
  for (const std::uint64_t microbatch : {1U, 2U}) {
    TokenBatch batch = rig.set_tokens(random_tokens(shape.rows(), 150, microbatch),
                                      random_tokens(shape.rows(), 150, microbatch + 100));
    if (microbatch == 2) batch.first_key = first_key.data();
    EXPECT_TRUE(rig.model()
                    .forward_backward(rig.device(), batch, rig.loss_sum(),
                                      {.accumulate = microbatch > 1, .gradient_scale = 1.0F / 126.0F})
                    .ok());
    rig.device().synchronize();
    EXPECT_TRUE(std::isfinite(*rig.loss_sum()));
    const auto words = std::bit_cast<std::array<float, 2>>(*rig.loss_sum());
    bits.insert(bits.end(), words.begin(), words.end());
  }
  const std::vector<float> gradients = rig.all_gradients();
  bits.insert(bits.end(), gradients.begin(), gradients.end());
  return bits;
}

TEST_P(RecomputeTest, SameBits) {
  constexpr std::int64_t layers = 4;
  ModelRig kept(spec(layers), shape);
  const std::vector<float> expected = two_microbatches(kept);
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    for (const int threads : {1, 3}) {
      ModelRig rig(spec(layers), shape, {.threads = threads, .recompute = recompute});
      const std::vector<float> found = two_microbatches(rig);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << name_of(recompute) << " on " << threads << " threads";
    }
  }
}

// The last block is never computed again: what it left is still there.
TEST_P(RecomputeTest, ComputesAgainWhatWasNotKeptAndNothingElse) {
  constexpr std::int64_t layers = 4;
  std::map<Recompute, std::map<OpId, int>> launches;
  for (const Recompute recompute : all_modes) {
    std::map<OpId, int>& of_mode = launches[recompute];
    ModelRig rig(spec(layers), shape,
                 {.observer = [&of_mode](OpId id) { ++of_mode[id]; }, .recompute = recompute});
    rig.set_initial_weights(11);
    rig.set_tokens(random_tokens(shape.rows(), 150, 1), random_tokens(shape.rows(), 150, 2));
    rig.forward_backward({.gradient_scale = 1.0F / 63.0F});
  }
  const bool llama = spec(layers).norm == NormKind::rms_norm, head_norms = spec(layers).has_head_norms;
  const OpId norm = llama ? OpId::rmsnorm_forward : OpId::layernorm_forward;
  const OpId activation = llama ? OpId::swiglu_forward : OpId::gelu_forward;
  std::map<OpId, int> selective = launches[Recompute::none];
  selective[norm] += 2 * (layers - 1);
  selective[activation] += layers - 1;
  EXPECT_EQ(launches[Recompute::selective], selective);
  std::map<OpId, int> full = selective;
  full[OpId::matmul] += 3 * (layers - 1);  // qkv, output, up; the block's output is not needed
  full[OpId::attention_forward] += layers - 1;
  if (llama) full[OpId::rotary] += layers - 1;
  if (head_norms) {
    full[norm] += 2 * (layers - 1);
    full[OpId::copy_rows] += 4 * (layers - 1);
  }
  EXPECT_EQ(launches[Recompute::full], full);
}

TEST_P(RecomputeTest, ALayerCostsWhatItKeeps) {
  const auto planned_bytes = [&](std::int64_t layers, Recompute recompute) {
    MemoryPlan plan;
    const ActivationMemory memory(spec(layers), shape, true, recompute, plan);
    return static_cast<std::int64_t>(plan.total_bytes(MemoryClass::activations));
  };
  const ModelSpec model = spec(1);
  const auto element = static_cast<std::int64_t>(bytes_of(model.dtype));
  const bool llama = model.norm == NormKind::rms_norm;
  const std::int64_t stream = 96 * element;                      // of a row
  const std::int64_t cheap = (96 + 96 + 208) * element;          // two norms, activation
  const std::int64_t costly = ((llama ? 2 : 3) * 96 + 96 + 96 +  // qkv, attention, mid
                               (llama ? 2 : 1) * 208) *
                                  element +
                              (4 + 4) * 4 +  // up; statistics, logsumexp
                              (model.has_head_norms ? (96 + 48) * element + (4 + 2) * 4 : 0);
  const std::map<Recompute, std::int64_t> row_bytes = {{Recompute::none, stream + cheap + costly},
                                                       {Recompute::selective, stream + costly},
                                                       {Recompute::full, stream}};
  for (const Recompute recompute : all_modes) {
    EXPECT_EQ(planned_bytes(1, recompute), planned_bytes(1, Recompute::none));
    EXPECT_EQ(planned_bytes(9, recompute) - planned_bytes(1, recompute),
              8 * shape.rows() * row_bytes.at(recompute));
  }
}

TEST_P(RecomputeTest, ForwardOnlyKeepsNothing) {
  const auto planned_bytes = [&](std::int64_t layers, Recompute recompute) {
    MemoryPlan plan;
    const ActivationMemory memory(spec(layers), shape, false, recompute, plan);
    return plan.total_bytes();
  };
  for (const Recompute recompute : all_modes)
    EXPECT_EQ(planned_bytes(9, recompute), planned_bytes(1, recompute));
}

INSTANTIATE_TEST_SUITE_P(Models, RecomputeTest,
                         testing::Combine(testing::Values("gpt2", "llama", "qwen3"),
                                          testing::Values("fp32", "bf16")),
                         [](const auto& test) {
                           return fmt::format("{}_{}", std::get<0>(test.param), std::get<1>(test.param));
                         });

}  // namespace
}  // namespace holdfast::test
