// Adapters of LoRA: what they compute, beside a model that has them merged into its weights.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/random.h"
#include "runtime/model/adapter_spec.h"
#include "tests/support/model_rig.h"

namespace holdfast::test {
namespace {

constexpr BatchShapeBT adapter_shape{.batch = 2, .sequence_length = 10};

struct AdapterCase {
  std::string style = "llama";
  std::vector<std::string> targets = {"all"};
  double alpha = 6.0;  // with rank 3
};

ModelSpec adapted_spec(const AdapterCase& of, const std::string& precision = "fp32", int tensor_lanes = 1) {
  Config config;
  config.model = {.preset = "",
                  .style = of.style,
                  .layers = 2,
                  .heads = 4,
                  .kv_heads = 2,
                  .width = 32,
                  .feed_forward = 48,
                  .vocabulary = 65,
                  .head = "untied"};
  config.training.sequence_length = adapter_shape.sequence_length;
  config.training.precision = precision;
  config.parallel.tensor_lanes = tensor_lanes;
  config.lora = {.rank = 3, .alpha = of.alpha, .targets = of.targets};
  return make_model_spec(config);
}

ModelSpec without_adapters(ModelSpec spec) {
  spec.lora = {};
  spec.freeze = {};
  return spec;
}

// Returns initial weights, but with a B that is not zero.
std::vector<float> weights_of(const ParameterSpec& parameter) {
  std::vector<float> values(parameter.elements());
  if (parameter.name.ends_with(".lora_b.weight")) {
    RandomStream(5, std::hash<std::string>()(parameter.name)).fill_normals(0, 0.1F, values);
  } else {
    initial_values(parameter, 3, 0, values);
  }
  return values;
}

using Weights = std::map<std::string, std::vector<float>>;

Weights all_weights(const ModelSpec& spec) {
  Weights weights;
  for (const ParameterSpec& parameter : parameter_specs(spec))
    weights[parameter.name] = weights_of(parameter);
  return weights;
}

std::vector<AdapterSpec> all_adapters(const ModelSpec& spec) {
  std::vector<AdapterSpec> adapters;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    for (AdapterSpec& adapter : adapters_of(spec, layer)) adapters.push_back(std::move(adapter));
  }
  return adapters;
}

Weights merged(const ModelSpec& spec, Weights weights) {
  for (const AdapterSpec& adapter : all_adapters(spec)) {
    std::vector<float>& weight = weights.at(adapter.layer + ".weight");
    const std::vector<float>&a = weights.at(adapter.a()), &b = weights.at(adapter.b());
    for (std::uint64_t row = 0; row < adapter.outputs; ++row) {
      for (std::uint64_t column = 0; column < adapter.inputs; ++column) {
        double sum = 0.0;
        for (std::uint64_t i = 0; i < adapter.rank; ++i)
          sum += static_cast<double>(b[row * adapter.rank + i]) *
                 static_cast<double>(a[i * adapter.inputs + column]);
        float& value = weight[(adapter.first_output + row) * adapter.inputs + column];
        value = static_cast<float>(static_cast<double>(value) + static_cast<double>(spec.lora.scale) * sum);
      }
    }
  }
  return weights;
}

void start_with(ModelRig& rig, const Weights& weights) {
  rig.set_weights([&](const ParameterSpec& parameter) { return weights.at(parameter.name); });
  rig.set_tokens(random_tokens(adapter_shape.rows(), 65, 1), random_tokens(adapter_shape.rows(), 65, 2));
}

// The gradients of A and B by the chain rule from that of the whole matrix, W' = W + s B A.
struct Expected {
  std::vector<double> a, b;
};
Expected by_chain_rule(const AdapterSpec& adapter, double scale, const Weights& weights,
                       const std::vector<float>& whole) {
  const std::vector<float>&a = weights.at(adapter.a()), &b = weights.at(adapter.b());
  Expected expected{.a = std::vector<double>(a.size()), .b = std::vector<double>(b.size())};
  for (std::uint64_t row = 0; row < adapter.outputs; ++row) {
    for (std::uint64_t column = 0; column < adapter.inputs; ++column) {
      const double gradient =
          scale * static_cast<double>(whole[(adapter.first_output + row) * adapter.inputs + column]);
      for (std::uint64_t i = 0; i < adapter.rank; ++i) {
        expected.a[i * adapter.inputs + column] += gradient * static_cast<double>(b[row * adapter.rank + i]);
        expected.b[row * adapter.rank + i] += gradient * static_cast<double>(a[i * adapter.inputs + column]);
      }
    }
  }
  return expected;
}

void expect_near(const std::vector<float>& found, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2.0);
    size += std::pow(expected[i], 2.0);
  }
  EXPECT_GT(size, 0.0) << what;
  EXPECT_LT(std::sqrt(difference), tolerance * std::sqrt(size)) << what;
}

void expect_merged(const AdapterCase& of, const std::string& precision, double tolerance) {
  SCOPED_TRACE(fmt::format("{} {} {}", of.style, of.targets.front(), precision));
  const ModelSpec spec = adapted_spec(of, precision), plain = without_adapters(adapted_spec(of));
  const Weights weights = all_weights(spec);
  ModelRig adapted(spec, adapter_shape), whole(plain, adapter_shape);
  start_with(adapted, weights);
  start_with(whole, merged(spec, weights));
  const BackwardOptions options{.gradient_scale = 1.0F / static_cast<float>(adapter_shape.rows())};
  const double loss = whole.forward_backward(options);
  EXPECT_NEAR(adapted.forward_backward(options), loss, tolerance * loss);
  for (const AdapterSpec& adapter : all_adapters(spec)) {
    const Expected expected = by_chain_rule(adapter, static_cast<double>(spec.lora.scale), weights,
                                            whole.gradient(adapter.layer + ".weight"));
    expect_near(adapted.gradient(adapter.a()), expected.a, 3.0 * tolerance, adapter.a());
    expect_near(adapted.gradient(adapter.b()), expected.b, 3.0 * tolerance, adapter.b());
  }
}

TEST(Adapter, GradientsAreThoseOfTheMergedModelByTheChainRule) {
  for (const AdapterCase& of :
       {AdapterCase{}, AdapterCase{.targets = {"q", "v"}}, AdapterCase{.targets = {"down"}},
        AdapterCase{.alpha = 0.0}, AdapterCase{.style = "gpt2"},
        AdapterCase{.style = "qwen3", .targets = {"k", "o", "gate"}}}) {
    expect_merged(of, "fp32", 2e-6);
    expect_merged(of, "bf16", 0.02);
  }
}

// Calls visit(element of a whole tensor, element of the flat buffer) for the slices of `tensor` that the rig has.
void visit_elements(const ModelRig& rig, const ParameterSpec& parameter, std::uint64_t BucketTensor::*offset,
                    const std::function<void(std::uint64_t, std::uint64_t)>& visit) {
  for (const Bucket& bucket : rig.buckets().buckets()) {
    for (const BucketTensor& tensor : bucket.tensors) {
      if (tensor.name != parameter.name) continue;
      for (const SliceRun& run :
           runs_of_slice(parameter, tensor.slice, tensor.slices, 0, tensor.elements())) {
        for (std::uint64_t i = 0; i < run.count; ++i)
          visit(run.tensor_offset + i, tensor.*offset + run.slice_offset + i);
      }
    }
  }
}

TEST(Adapter, GradientsOfSlicesAreThoseOfTheWhole) {
  for (const AdapterCase& of : {AdapterCase{}, AdapterCase{.style = "gpt2"}}) {
    SCOPED_TRACE(of.style);
    const ModelSpec sliced = adapted_spec(of, "fp32", 2), plain = without_adapters(adapted_spec(of));
    const Weights weights = all_weights(sliced);
    ModelRig rig(sliced, adapter_shape), whole(plain, adapter_shape);
    start_with(whole, merged(sliced, weights));
    auto* const flat = reinterpret_cast<float*>(rig.parameters());
    std::map<std::string, std::vector<float>> gradients;
    for (const ParameterSpec& parameter : parameter_specs(sliced)) {
      visit_elements(rig, parameter, &BucketTensor::parameter_offset,
                     [&](std::uint64_t of_tensor, std::uint64_t place) {
                       flat[place] = weights.at(parameter.name)[of_tensor];
                     });
    }
    rig.set_tokens(random_tokens(adapter_shape.rows(), 65, 1), random_tokens(adapter_shape.rows(), 65, 2));
    const BackwardOptions options{.gradient_scale = 1.0F / static_cast<float>(adapter_shape.rows())};
    const double loss = whole.forward_backward(options);
    EXPECT_NEAR(rig.forward_backward(options), loss, 2e-6 * loss);
    for (const ParameterSpec& parameter : parameter_specs(sliced)) {
      if (parameter.is_frozen) continue;
      std::vector<float>& gradient = gradients[parameter.name];
      gradient.resize(parameter.elements());
      visit_elements(rig, parameter, &BucketTensor::gradient_offset,
                     [&](std::uint64_t of_tensor, std::uint64_t place) {
                       gradient[of_tensor] = rig.gradients()[place];
                     });
    }
    for (const AdapterSpec& adapter : all_adapters(sliced)) {
      const Expected expected = by_chain_rule(adapter, static_cast<double>(sliced.lora.scale), weights,
                                              whole.gradient(adapter.layer + ".weight"));
      expect_near(gradients.at(adapter.a()), expected.a, 6e-6, adapter.a());
      expect_near(gradients.at(adapter.b()), expected.b, 6e-6, adapter.b());
    }
  }
}

TEST(Adapter, ChangesNothingBeforeTheFirstStep) {
  for (const char* style : {"llama", "gpt2"}) {
    const ModelSpec spec = adapted_spec({.style = style});
    ModelRig adapted(spec, adapter_shape), plain(without_adapters(spec), adapter_shape);
    for (ModelRig* rig : {&adapted, &plain}) {
      rig->set_initial_weights(7);
      rig->set_tokens(random_tokens(adapter_shape.rows(), 65, 1), random_tokens(adapter_shape.rows(), 65, 2));
    }
    EXPECT_EQ(adapted.forward_loss(), plain.forward_loss()) << style << ": B is zero";
  }
}

TEST(Adapter, RecomputingAndSplittingChangeNoBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* style : {"llama", "gpt2"}) {
      const ModelSpec spec = adapted_spec({.style = style}, precision);
      const Weights weights = all_weights(spec);
      std::vector<float> expected;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        for (const bool split : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", precision, style, name_of(recompute), split));
          ModelRig rig(spec, adapter_shape, {.recompute = recompute, .split_backward = split});
          start_with(rig, weights);
          rig.forward_backward({});
          rig.forward_backward({.accumulate = true});
          if (expected.empty()) expected = rig.all_gradients();
          EXPECT_EQ(rig.all_gradients(), expected);
        }
      }
    }
  }
}

TEST(Adapter, IsAllThatIsTrained) {
  const ModelSpec spec = adapted_spec({.targets = {"q", "down"}});
  std::uint64_t adapters = 0;
  for (const ParameterSpec& parameter : parameter_specs(spec)) {
    EXPECT_EQ(parameter.is_frozen, !is_adapter(parameter.name)) << parameter.name;
    if (!parameter.is_frozen) adapters += parameter.elements();
  }
  EXPECT_EQ(adapters, 2u * 3u * ((32u + 32u) + (48u + 32u)));
  EXPECT_EQ(trained_parameter_count(spec), adapters);
  EXPECT_EQ(parameter_count(spec), adapters + parameter_count(without_adapters(spec)));
  EXPECT_EQ(state_bytes(spec, {}), 4 * parameter_count(spec) + 8 * adapters);
  for (const Bucket& bucket : backward_buckets(spec)) {
    for (const BucketTensor& tensor : bucket.tensors) EXPECT_EQ(tensor.is_frozen, !is_adapter(tensor.name));
  }
}

// Kaiming uniform with a = sqrt(5), as PEFT has it.
TEST(Adapter, BeginsAsThoseOfPeft) {
  for (const ParameterSpec& parameter : parameter_specs(adapted_spec({}))) {
    if (!is_adapter(parameter.name)) continue;
    std::vector<float> values(parameter.elements());
    initial_values(parameter, 3, 0, values);
    const auto [least, most] = std::ranges::minmax(values);
    if (parameter.name.ends_with(".lora_b.weight")) {
      EXPECT_EQ(least, 0.0F) << parameter.name;
      EXPECT_EQ(most, 0.0F) << parameter.name;
      continue;
    }
    const float bound = 1.0F / std::sqrt(static_cast<float>(parameter.shape[1]));
    EXPECT_GE(least, -bound) << parameter.name;
    EXPECT_LT(most, bound) << parameter.name;
    EXPECT_LT(least, -0.9F * bound) << parameter.name;
    EXPECT_GT(most, 0.9F * bound) << parameter.name;
    std::vector<float> tail(values.size() - 5);
    initial_values(parameter, 3, 5, tail);
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), values.begin() + 5)) << parameter.name;
  }
}

}  // namespace
}  // namespace holdfast::test
