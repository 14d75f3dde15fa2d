// Ten AdamW steps of tiny models against PyTorch (tests/golden/make_goldens.py).
#include <fmt/core.h>

#include "tests/support/golden_training.h"

namespace holdfast::test {
namespace {

// fp32: rounding the weights themselves costs 2e-5 of the update. Where a gradient is about as small as the
// rounding of the sum it comes from, AdamW's ratio of moments is rounding too; these few elements decide
// `weights`. bf16: activations and working weights are rounded to 8 bits, the master weights are not. Steps
// smaller than a working weight's spacing do not show in the loss; PyTorch with bf16 working weights is as
// far from its float64.
constexpr StepBounds all_bounds[] = {
    {"gpt2", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},       {"llama", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},
    {"llama3", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},     {"qwen2", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},
    {"qwen3", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},      {"llama_tied", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},
    {"gpt2", "bf16", 7e-3, 1.5e-2, 4e-3, 4e-2},     {"llama", "bf16", 1e-3, 5e-3, 3e-3, 5e-2},
    {"llama_tied", "bf16", 3e-3, 8e-3, 1e-3, 4e-2},
};

class GoldenSteps : public testing::TestWithParam<StepBounds> {};

TEST_P(GoldenSteps, TenStepsOfAdamW) {
  expect_ten_steps(GetParam(), {});
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenSteps, testing::ValuesIn(all_bounds), [](const auto& test) {
  return fmt::format("{}_{}", test.param.model, test.param.precision);
});

}  // namespace
}  // namespace holdfast::test
