#include "kernels/product_plan.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(ProductPlan, ProductsInCommonCount) {
  EXPECT_THAT(difference_of_plans("m 1: a\nm 2: b", "m 2: b\nm 3: c"), IsEmpty());
  EXPECT_THAT(difference_of_plans("", "m 2: b"), IsEmpty());
  EXPECT_THAT(difference_of_plans("m 1: a", ""), IsEmpty());
  EXPECT_EQ(difference_of_plans("m 1: a\nm 2: b", "m 1: a\nm 2: c"),
            "the product m 2 by \"b\" there and by \"c\" here");
}

TEST(ProductPlan, RanksOfOneKindComputeAlike) {
  const std::string first_stage = "m 1: a\nm 2: b", last_stage = "m 1: a\nm 9: z", other = "m 9: y";
  EXPECT_THAT(difference_of_ranks({first_stage, last_stage, first_stage, ""}).clause, IsEmpty());
  const PlanDifference found = difference_of_ranks({first_stage, last_stage, first_stage, other});
  EXPECT_THAT(found.clause, HasSubstr("product m 9"));
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.other_rank, 1);
}

TEST(ProductPlan, OfAllRanksHasEachProductOnce) {
  const std::string first_stage = "m 1: a\nm 2: b", last_stage = "m 1: a\nm 9: z", other = "m 9: y\nm 3: c";
  EXPECT_EQ(plan_of_ranks({first_stage, last_stage, first_stage, ""}), "m 1: a\nm 2: b\nm 9: z");
  EXPECT_EQ(plan_of_ranks({last_stage, other, first_stage}), "m 1: a\nm 2: b\nm 3: c\nm 9: z");
  EXPECT_EQ(plan_of_ranks({other, last_stage}), "m 1: a\nm 3: c\nm 9: y");
  EXPECT_THAT(plan_of_ranks({"", ""}), IsEmpty());
}

TEST(ProductPlan, AFileMayHaveCommentsAndIsReadWhole) {
  const Result<ProductAlgorithms> plan =
      read_plan("# of an H200\n\nm 1 n 2: algorithm 3\nm 2 n 2: none\n", "a.plan");
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(
      *plan, testing::ElementsAre(testing::Pair("m 1 n 2", "algorithm 3"), testing::Pair("m 2 n 2", "none")));
  for (const char* bad : {"m 1 n 2", "m 1 n 2: 3", "[kernels]", "n 2: algorithm 3"}) {
    const Result<ProductAlgorithms> refused = read_plan(std::string("m 1 n 2: none\n") + bad, "a.plan");
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.error().message, testing::StartsWith(fmt::format("a.plan:2: \"{}\" is not", bad)));
  }
}

}  // namespace
}  // namespace holdfast::test
