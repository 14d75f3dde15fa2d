// Logits, loss and every gradient of tiny models against PyTorch (tests/golden/make_goldens.py).
#include <fmt/core.h>

#include "tests/support/golden_model.h"

namespace holdfast::test {
namespace {

// In fp32 the goldens are met to 1e-5. In bf16 every activation is rounded to 8 bits (relative 2^-9 each), so
// these are what the format allows: a few roundings for logits, and more of them for the gradients, which
// pass every rounding twice. The loss is the mean of 48 rows, whose errors add up by chance: to 3.8e-4 of it in
// gpt2 (1.8e-2 a row), of which the bound is four, and to 2.5e-4 in llama.
struct Case {
  GoldenBounds bounds;
  const char* attention = nullptr;  // implementation; null: what the processor takes by itself

  friend std::ostream& operator<<(std::ostream& stream, const Case& each) { return stream << each.bounds; }
};
constexpr Case cases[] = {
    {{"gpt2", "fp32", 1e-5, 1e-5, 1e-5}},
    {{"llama", "fp32", 1e-5, 1e-5, 1e-5}},
    {{"llama_tied", "fp32", 1e-5, 1e-5, 1e-5}},
    {{"llama3", "fp32", 1e-5, 1e-5, 1e-5}},
    {{"qwen2", "fp32", 1e-5, 1e-5, 1e-5}},
    {{"qwen3", "fp32", 1e-5, 1e-5, 1e-5}},
    {{"gpt2", "bf16", 1e-2, 1.5e-3, 2e-2}},
    {{"llama", "bf16", 1e-2, 5e-4, 2e-2}},
    // With bf16 products attention also rounds probabilities and their gradients: more than twice the error.
    {{"llama_tied", "bf16", 1e-2, 5e-4, 4e-2}},
    // PyTorch's own bf16 is 0.9e-2 to 1.2e-2 from the logits of these three.
    {{"llama3", "bf16", 1.5e-2, 1.5e-3, 4e-2}},
    {{"qwen2", "bf16", 1.5e-2, 1.5e-3, 4e-2}},
    {{"qwen3", "bf16", 1.5e-2, 1.5e-3, 4e-2}},
    {{"gpt2", "bf16", 1e-2, 1.5e-3, 2e-2}, "portable"},
    {{"llama", "bf16", 1e-2, 5e-4, 2e-2}, "portable"},
    {{"llama_tied", "bf16", 1e-2, 5e-4, 2e-2}, "portable"},
};

std::vector<KernelPreference> requests(const char* attention) {
  if (attention == nullptr) return {};
  return {{OpId::attention_forward, attention}, {OpId::attention_backward, attention}};
}

class GoldenModelTest : public testing::TestWithParam<Case> {
 protected:
  GoldenModel model_{GetParam().bounds, {.kernels = requests(GetParam().attention)}};
};

TEST_P(GoldenModelTest, LogitsOfEveryRow) {
  model_.expect_logits();
}
TEST_P(GoldenModelTest, Loss) {
  model_.expect_loss();
}
TEST_P(GoldenModelTest, EveryGradient) {
  model_.expect_gradients();
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModelTest, testing::ValuesIn(cases), [](const auto& test) {
  const char* attention = test.param.attention;
  return fmt::format("{}_{}{}", test.param.bounds.model, test.param.bounds.precision,
                     attention == nullptr ? "" : fmt::format("_attention_{}", attention));
});

}  // namespace
}  // namespace holdfast::test
