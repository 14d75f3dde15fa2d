#include "runtime/bench/table.h"

#include <gtest/gtest.h>

#include "runtime/bench/samples.h"

namespace holdfast {
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

TEST(Median, IsTheMiddleOrTheMeanOfTheTwo) {
  EXPECT_DOUBLE_EQ(median({}), 0.0);
  EXPECT_DOUBLE_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_DOUBLE_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
}

}  // namespace
}  // namespace holdfast
