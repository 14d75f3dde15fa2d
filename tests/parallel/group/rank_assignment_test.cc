#include "parallel/group/rank_assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel/hosts.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(RankAssignment, EveryRankIsActiveWhereAllAreThere) {
  const Result<RankAssignment> assignment =
      assign_ranks({.data_max = 2, .pipeline = 2, .tensor = 1}, hosts("aaaa"));
  ASSERT_TRUE(assignment.ok());
  EXPECT_EQ(assignment->shape.data, 2);
  EXPECT_EQ(assignment->shape.spares, 0);
  EXPECT_THAT(assignment->active_ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(assignment->spares, IsEmpty());
  EXPECT_EQ(assignment->leader(), 0);
  EXPECT_EQ(assignment->coordinate_of(3), 3);
}

// With five ranks and one spare a death costs nothing; the next costs a replica, whose other rank waits.
TEST(RankAssignment, ASpareTakesTheCoordinateAndABrokenCopyMakesSpares) {
  const AssignmentRequest request{.data_max = 2, .data_min = 1, .pipeline = 2, .tensor = 1};
  const Result<RankAssignment> four = assign_ranks(request, hosts("aaaa"));
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(four->shape.data, 2);
  const Result<RankAssignment> three = assign_ranks(request, hosts("aaa"));
  ASSERT_TRUE(three.ok());
  EXPECT_EQ(three->shape.data, 1);
  EXPECT_THAT(three->spares, ElementsAre(2));
  EXPECT_EQ(three->coordinate_of(2), -1);
}

// Three copies of two stages lose a rank each of two copies: what is left makes two whole ones.
TEST(RankAssignment, BrokenCopiesAreRecombined) {
  const Result<RankAssignment> assignment =
      assign_ranks({.data_max = 3, .data_min = 1, .pipeline = 2, .tensor = 1}, hosts("aaaa"));
  ASSERT_TRUE(assignment.ok());
  EXPECT_EQ(assignment->shape.data, 2);
  EXPECT_THAT(assignment->spares, IsEmpty());
}

TEST(RankAssignment, ATensorGroupStaysInsideAHost) {
  const AssignmentRequest request{.data_max = 3, .data_min = 1, .pipeline = 1, .tensor = 2};
  const Result<RankAssignment> assignment = assign_ranks(request, hosts("abbbaa"));
  ASSERT_TRUE(assignment.ok());
  EXPECT_EQ(assignment->shape.data, 2);
  EXPECT_THAT(assignment->active_ranks, ElementsAre(0, 4, 1, 2));
  EXPECT_THAT(assignment->spares, ElementsAre(3, 5));
}

TEST(RankAssignment, TooFewRanksEndTheRunWithASentence) {
  const Result<RankAssignment> none =
      assign_ranks({.data_max = 2, .data_min = 1, .pipeline = 2, .tensor = 2}, hosts("aaa"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ExitCode::communication);
  EXPECT_THAT(none.error().message, HasSubstr("3 ranks are left, which are not enough for 1 copy of the "
                                              "model with parallel.tensor x pipeline = 2 x 2 ranks each"));
  const Result<RankAssignment> least =
      assign_ranks({.data_max = 4, .data_min = 3, .pipeline = 1, .tensor = 1}, hosts("aa"));
  ASSERT_FALSE(least.ok());
  EXPECT_THAT(least.error().message, HasSubstr("elastic.min_data_parallel"));
}

}  // namespace
}  // namespace holdfast::test
