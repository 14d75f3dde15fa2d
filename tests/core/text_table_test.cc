#include "runtime/core/text_table.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace holdfast::test
