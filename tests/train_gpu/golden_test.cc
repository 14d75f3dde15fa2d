// Whole models on a GPU against PyTorch (tests/golden/make_goldens.py): logits, loss, every gradient, and ten
// AdamW steps.
#include <fmt/core.h>

#include "tests/support/golden_model.h"
#include "tests/support/golden_training.h"
#include "tests/train_gpu/gpu.h"

namespace holdfast::test {
namespace {

// As on the CPU where attention keeps its probabilities in fp32 (tests/model/golden_test.cc), because heads
// of these models are too small for the tensor cores.
constexpr GoldenBounds model_bounds[] = {
    {"gpt2", "fp32", 1e-5, 1e-5, 1e-5},       {"gpt2", "bf16", 1e-2, 1.5e-3, 2e-2},
    {"llama", "fp32", 1e-5, 1e-5, 1e-5},      {"llama", "bf16", 1e-2, 5e-4, 2e-2},
    {"llama3", "fp32", 1e-5, 1e-5, 1e-5},     {"qwen2", "fp32", 1e-5, 1e-5, 1e-5},
    {"qwen3", "fp32", 1e-5, 1e-5, 1e-5},      {"llama_tied", "fp32", 1e-5, 1e-5, 1e-5},
    {"llama_tied", "bf16", 1e-2, 5e-4, 2e-2},
};

class GoldenModelTest : public testing::TestWithParam<GoldenBounds> {
 protected:
  GoldenModel model_{GetParam(), {.make_device = make_gpu_device}};
};

TEST_P(GoldenModelTest, Logits) {
  model_.expect_logits(emulated() ? 16 : 1);
}
TEST_P(GoldenModelTest, Loss) {
  model_.expect_loss();
}
TEST_P(GoldenModelTest, EveryGradient) {
  model_.expect_gradients();
}

// As on the CPU (tests/train/golden_steps_test.cc).
constexpr StepBounds step_bounds[] = {
    {"gpt2", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},       {"gpt2", "bf16", 7e-3, 1.5e-2, 4e-3, 4e-2},
    {"llama", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},      {"llama", "bf16", 1e-3, 5e-3, 3e-3, 5e-2},
    {"qwen3", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},      {"llama_tied", "fp32", 1e-5, 1e-5, 1e-5, 1e-4},
    {"llama_tied", "bf16", 3e-3, 8e-3, 1e-3, 4e-2},
};

class GoldenSteps : public testing::TestWithParam<StepBounds> {};

TEST_P(GoldenSteps, TenStepsOfAdamW) {
  expect_ten_steps(GetParam(), {.make_device = make_gpu_device});
}

template <typename Bounds>
std::string name_of_case(const testing::TestParamInfo<Bounds>& test) {
  return fmt::format("{}_{}", test.param.model, test.param.precision);
}
INSTANTIATE_TEST_SUITE_P(Models, GoldenModelTest, testing::ValuesIn(model_bounds),
                         name_of_case<GoldenBounds>);
INSTANTIATE_TEST_SUITE_P(Models, GoldenSteps, testing::ValuesIn(step_bounds), name_of_case<StepBounds>);

}  // namespace
}  // namespace holdfast::test
