#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "runtime/core/text.h"

namespace holdfast::test {
namespace {

TEST(TextTable, AlignsWordsLeftAndNumbersRight) {
  TextTable table({"op", "ms"}, 1);
  table.add({"a", "10.5"});
  table.add_rule();
  table.add({"longer", "1"});
  EXPECT_EQ(table.text(),
            "op        ms\n"
            "------------\n"
            "a       10.5\n"
            "------------\n"
            "longer     1\n");
}

// Tests how lists in options are split.

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SplitList, LeavesEmptyPartsOut) {
  EXPECT_THAT(split_list(""), IsEmpty());
  EXPECT_THAT(split_list(",,"), IsEmpty());
  EXPECT_THAT(split_list("a"), ElementsAre("a"));
  EXPECT_THAT(split_list("a,b c,,d,"), ElementsAre("a", "b c", "d"));
  EXPECT_THAT(split_list("a/b,c", '/'), ElementsAre("a", "b,c"));
}

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
