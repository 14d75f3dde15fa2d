// Tests how lists in options are split.
#include "runtime/core/split.h"

#include <gmock/gmock.h>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SplitList, LeavesEmptyPartsOut) {
  EXPECT_THAT(split_list(""), IsEmpty());
  EXPECT_THAT(split_list(",,"), IsEmpty());
  EXPECT_THAT(split_list("a"), ElementsAre("a"));
  EXPECT_THAT(split_list("a,b c,,d,"), ElementsAre("a", "b c", "d"));
  EXPECT_THAT(split_list("a/b,c", '/'), ElementsAre("a", "b,c"));
}

}  // namespace
}  // namespace holdfast::test
