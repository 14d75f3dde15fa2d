// Tests which key an unknown one is taken for.
#include <gtest/gtest.h>

#include <string>

#include "runtime/config/option.h"
#include "runtime/config/option_value.h"
#include "runtime/config/suggest_key.h"

namespace holdfast::test {
namespace {

TEST(SuggestKey, TakesTheNearestOfTheSection) {
  EXPECT_EQ(suggest_key("training.stpes"), "training.steps");
  EXPECT_EQ(suggest_key("theads"), "threads");
  EXPECT_EQ(suggest_key("data.qqqqqq"), "");
}

TEST(SuggestKey, KnowsTheNamesOfOtherPrograms) {
  for (const auto& [foreign, own] :
       {std::pair("training.batch_size", "training.microbatch_size"),
        std::pair("lr", "optimizer.learning_rate"), std::pair("optimizer.lr", "optimizer.learning_rate"),
        std::pair("model.n_embd", "model.width"), std::pair("model.num_key_value_heads", "model.kv_heads"),
        std::pair("parallel.tensor_model_parallel_size", "parallel.tensor"),
        std::pair("save_interval", "checkpoint.every_steps"),
        std::pair("training.grad_clip", "optimizer.gradient_clip")}) {
    EXPECT_EQ(suggest_key(foreign), own);
    EXPECT_NE(find_option(own), nullptr) << own;
  }
}

TEST(SuggestKey, TakesTheSameNameOfAnotherSection) {
  EXPECT_EQ(suggest_key("training.learning_rate"), "optimizer.learning_rate");
}

}  // namespace
}  // namespace holdfast::test
