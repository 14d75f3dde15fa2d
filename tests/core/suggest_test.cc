#include "runtime/core/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::test {
namespace {

TEST(Closest, FindsTypingMistakes) {
  const std::vector<std::string_view> words = {"learning_rate", "layers", "batch", "beta1", "beta2"};
  EXPECT_EQ(closest("learning_rat", words), "learning_rate");
  EXPECT_EQ(closest("laeyrs", words), "layers");  // two swaps of neighbours
  EXPECT_EQ(closest("batchs", words), "batch");
  EXPECT_EQ(closest("vatch", words), "batch");
  EXPECT_EQ(closest("layers", words), "layers");
}

TEST(Closest, FirstOfEqualsWins) {
  const std::vector<std::string_view> words = {"beta2", "beta1"};
  EXPECT_EQ(closest("beta3", words), "beta2");
}

TEST(Closest, FarWordsAreNotSuggested) {
  const std::vector<std::string_view> words = {"layers", "batch"};
  EXPECT_EQ(closest("optimizer", words), "");
  EXPECT_EQ(closest("", words), "");
  EXPECT_EQ(closest("anything", {}), "");
}

TEST(Closest, ASwapCountsOnce) {
  const std::vector<std::string_view> words = {"ab"};
  EXPECT_EQ(closest("ba", words), "ab");
  EXPECT_EQ(closest("cd", words), "");
}

}  // namespace
}  // namespace holdfast::test
