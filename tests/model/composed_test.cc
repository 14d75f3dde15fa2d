// Composed ops in a model: launched where an implementation is named, and with the bits of their parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/support/model_rig.h"

namespace holdfast::test {
namespace {

using testing::SizeIs;

constexpr BatchShapeBT composed_shape{.batch = 2, .sequence_length = 32};
constexpr std::int64_t composed_layers = 3;

Config config_of(int tensor_lanes, const std::string& precision, const std::string& style = "llama") {
  Config config;
  config.model = {.preset = "",
                  .style = style,
                  .layers = composed_layers,
                  .heads = 4,
                  .kv_heads = 4,
                  .width = 96,
                  .feed_forward = 208,
                  .vocabulary = 152};
  config.parallel.tensor_lanes = tensor_lanes;
  config.training.precision = precision;
  return config;
}

OpId composed_op(const ModelSpec& spec) {
  return spec.norm == NormKind::layer_norm ? OpId::residual_layernorm : OpId::residual_rmsnorm;
}

ModelSpec with_composed(ModelSpec spec, const std::string& places = {}) {
  const OpId op = composed_op(spec);
  spec.composed.push_back({.op = op, .filter = CallFilter::parse(op, places, {}).value()});
  return spec;
}

struct Trained {
  std::vector<float> gradients;
  double loss = 0.0;
  std::map<OpId, int> launches;
};

Trained train(const ModelSpec& spec, RigOptions options = {}) {
  Trained trained;
  options.observer = [&trained](OpId id) { ++trained.launches[id]; };
  ModelRig rig(spec, composed_shape, options);
  rig.set_initial_weights(11);
  rig.set_tokens(random_tokens(composed_shape.rows(), 150, 1), random_tokens(composed_shape.rows(), 150, 2));
  trained.launches.clear();
  trained.loss = rig.forward_backward({.gradient_scale = 1.0F / 63.0F});
  trained.gradients = rig.all_gradients();
  return trained;
}

void expect_same_bits(const Trained& one, const Trained& other) {
  EXPECT_EQ(std::memcmp(&one.loss, &other.loss, sizeof(double)), 0);
  ASSERT_EQ(one.gradients.size(), other.gradients.size());
  EXPECT_EQ(std::memcmp(one.gradients.data(), other.gradients.data(), one.gradients.size() * sizeof(float)),
            0);
}

class ComposedTest : public testing::TestWithParam<std::tuple<int, const char*, const char*>> {
 protected:
  ModelSpec spec() const {
    const auto& [lanes, precision, style] = GetParam();
    return make_model_spec(config_of(lanes, precision, style));
  }
  OpId op() const { return composed_op(spec()); }
};

TEST_P(ComposedTest, HasTheBitsOfItsPartsInEveryMode) {
  const Trained parts = train(spec());
  EXPECT_FALSE(parts.launches.contains(op()));
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(name_of(recompute));
      const Trained composed = train(with_composed(spec()), {.threads = threads, .recompute = recompute});
      expect_same_bits(composed, parts);
      // The last layer is not computed again.
      EXPECT_EQ(composed.launches.at(op()),
                recompute == Recompute::full ? 2 * composed_layers - 1 : composed_layers);
    }
  }
  expect_same_bits(train(with_composed(spec()), {.split_backward = true}), parts);
  for (const char* const name : {"parts", "portable"})
    expect_same_bits(train(with_composed(spec()), {.kernels = {{op(), name}}}), parts);
}

// Each takes the place of a norm, and of a sum where there are tensor lanes; without any, products add the residual.
TEST_P(ComposedTest, IsLaunchedWhereItIsNamedInPlaceOfItsParts) {
  const bool has_lanes = spec().tensor_lanes > 1;
  const Trained parts = train(spec());
  for (const auto& [places, count] :
       {std::pair("*", composed_layers), std::pair("1", 1L), std::pair("0-1.feed_forward", 2L),
        std::pair("*.attention", 0L), std::pair("head", 0L)}) {
    SCOPED_TRACE(places);
    const Trained composed = train(with_composed(spec(), places));
    expect_same_bits(composed, parts);
    std::map<OpId, int> expected = parts.launches;
    if (count > 0) expected[op()] = static_cast<int>(count);
    expected[parts_of(op()).back()] -= static_cast<int>(count);
    if (has_lanes) expected[OpId::tree_sum] -= static_cast<int>(count);
    EXPECT_EQ(composed.launches, expected);
  }
}

// A kernel with other bits computes what the backward reads, too.
TEST_P(ComposedTest, IsWhatComputes) {
  const Trained parts = train(spec());
  const auto reference = [&](RigOptions options) {
    options.kernels = {{op(), "reference"}};
    return train(with_composed(spec()), options);
  };
  const Trained composed = reference({});
  EXPECT_NE(composed.gradients, parts.gradients);
  expect_same_bits(reference({.recompute = Recompute::full}), composed);
  expect_same_bits(reference({.threads = 3, .split_backward = true}), composed);
}

INSTANTIATE_TEST_SUITE_P(Lanes, ComposedTest,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values("fp32", "bf16"),
                                          testing::Values("llama", "gpt2")),
                         [](const auto& tested) {
                           return std::get<2>(tested.param) + std::string(std::get<1>(tested.param)) +
                                  std::to_string(std::get<0>(tested.param));
                         });

TEST(ComposedCalls, AreThoseThatTheConfigNames) {
  const auto calls = [](const std::string& name, const std::string& recompute = "none",
                        std::vector<KernelRuleConfig> rules = {}) {
    Config config = config_of(2, "fp32");
    config.kernels.implementations[static_cast<std::size_t>(OpId::residual_rmsnorm)] = name;
    config.kernels.rules = std::move(rules);
    config.training.recompute = recompute;
    return make_model_spec(config).composed;
  };
  EXPECT_THAT(calls("auto"), SizeIs(0));
  EXPECT_THAT(calls("mine"), SizeIs(1));
  EXPECT_THAT(calls("mine", "full"), SizeIs(1));
  EXPECT_THAT(calls("mine", "selective"), SizeIs(0)) << "the norm is computed alone in backward";
  EXPECT_THAT(calls("parts", "selective"), SizeIs(1));
  EXPECT_THAT(calls("reference", "selective"), SizeIs(0));
  const KernelRuleConfig rule{
      .op = "residual_rmsnorm", .layers = "1", .where = {{"rows", ">=32"}}, .use = "mine"};
  const std::vector<ModelSpec::ComposedCalls> of_rule = calls("auto", "none", {rule});
  ASSERT_THAT(of_rule, SizeIs(1));
  const CallPlace place{.layer = 1, .part = OpScope::Part::feed_forward};
  const ResidualRmsNorm large{.rows = 32}, small{.rows = 31};
  EXPECT_TRUE(of_rule.front().filter.has(place, &large));
  EXPECT_FALSE(of_rule.front().filter.has(place, &small));
  EXPECT_THAT(calls("auto", "selective", {rule}), SizeIs(0));
  KernelRuleConfig of_part = rule;
  of_part.op = "rmsnorm_forward";
  EXPECT_THAT(calls("auto", "none", {of_part}), SizeIs(0));
}

}  // namespace
}  // namespace holdfast::test
