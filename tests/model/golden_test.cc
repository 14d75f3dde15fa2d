// Logits, loss and every gradient of tiny models against PyTorch (tests/golden/make_goldens.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/model_rig.h"

namespace holdfast::test {
namespace {

// Largest relative error: difference / largest magnitude, per tensor for the gradients. In fp32 the goldens
// are met to 1e-5. In bf16 every activation is rounded to 8 bits (relative 2^-9 each), so these are what the
// format allows: a few roundings for logits, and more of them for the gradients, which pass every rounding
// twice.
struct Bounds {
  const char* model;
  const char* precision;
  double logits, loss, gradient;
  const char* attention = nullptr;  // implementation; null: what the processor takes by itself

  friend std::ostream& operator<<(std::ostream& stream, const Bounds& bounds) {
    return stream << bounds.model << " in " << bounds.precision;
  }
};
constexpr Bounds all_bounds[] = {
    {"gpt2", "fp32", 1e-5, 1e-5, 1e-5},
    {"llama", "fp32", 1e-5, 1e-5, 1e-5},
    {"llama_tied", "fp32", 1e-5, 1e-5, 1e-5},
    {"gpt2", "bf16", 1.5e-2, 5e-4, 2e-2},
    {"llama", "bf16", 1.5e-2, 5e-4, 2e-2},
    // With bf16 products attention also rounds probabilities and their gradients: more than twice the error.
    {"llama_tied", "bf16", 1.5e-2, 5e-4, 4e-2},
    {"gpt2", "bf16", 1.5e-2, 5e-4, 2e-2, "portable"},
    {"llama", "bf16", 1.5e-2, 5e-4, 2e-2, "portable"},
    {"llama_tied", "bf16", 1.5e-2, 5e-4, 2e-2, "portable"},
};

std::vector<KernelWish> wishes(const char* attention) {
  if (attention == nullptr) return {};
  return {{OpId::attention_forward, attention}, {OpId::attention_backward, attention}};
}

class GoldenModel : public testing::TestWithParam<Bounds> {
 protected:
  GoldenModel()
      : golden_(GetParam().model),
        rig_(make_model_spec(golden_.config(GetParam().precision)),
             {.batch = golden_.batch(), .sequence_length = golden_.sequence_length()},
             {.kernels = wishes(GetParam().attention)}) {
    rig_.set_weights(
        [this](const ParameterSpec& parameter) { return golden_.floats("initial/" + parameter.name); });
    rig_.set_tokens(golden_.tokens("inputs", 0), golden_.tokens("targets", 0));
  }

  double rows() const { return static_cast<double>(golden_.batch() * golden_.sequence_length()); }

  Golden golden_;
  ModelRig rig_;
};

TEST_P(GoldenModel, LogitsOfEveryRow) {
  const std::vector<float> truth = golden_.floats("logits");
  const auto vocabulary = static_cast<std::size_t>(rig_.model().spec().vocabulary);
  std::vector<float> logits;
  for (std::int64_t row = 0; row < golden_.batch() * golden_.sequence_length(); ++row) {
    const std::vector<float> row_logits = rig_.forward_logits(row);
    logits.insert(logits.end(), row_logits.begin(),
                  row_logits.begin() + static_cast<std::ptrdiff_t>(vocabulary));
  }
  ASSERT_EQ(logits.size(), truth.size());
  const double error = relative_error(logits, truth);
  RecordProperty("error", fmt::format("{:.1e}", error));
  EXPECT_LE(error, GetParam().logits);
}

TEST_P(GoldenModel, Loss) {
  const double error = std::abs(rig_.forward_loss() / rows() / golden_.losses().front() - 1.0);
  RecordProperty("error", fmt::format("{:.1e}", error));
  EXPECT_LE(error, GetParam().loss);
}

TEST_P(GoldenModel, EveryGradient) {
  rig_.forward_backward({.gradient_scale = static_cast<float>(1.0 / rows())});
  double largest_error = 0.0;
  for (const ParameterSpec& parameter : parameter_specs(rig_.model().spec())) {
    const std::vector<float> gradient = rig_.gradient(parameter.name);
    const std::vector<float> truth = golden_.floats("gradient/" + parameter.name);
    const double error = relative_error(gradient, truth);
    EXPECT_LE(error, GetParam().gradient) << parameter.name;
    largest_error = std::max(largest_error, error);
    ASSERT_EQ(gradient.size(), truth.size() + parameter.padding_elements) << parameter.name;
    EXPECT_EQ(largest_magnitude(std::span(gradient).subspan(truth.size())), 0.0)
        << "padding of " << parameter.name;
  }
  RecordProperty("error", fmt::format("{:.1e}", largest_error));
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModel, testing::ValuesIn(all_bounds), [](const auto& test) {
  const char* attention = test.param.attention;
  return fmt::format("{}_{}{}", test.param.model, test.param.precision,
                     attention == nullptr ? "" : fmt::format("_attention_{}", attention));
});

}  // namespace
}  // namespace holdfast::test
