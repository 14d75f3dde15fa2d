#include "parallel/group/seating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel/hosts.h"

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Seating, EveryoneHasASeatWhereAllAreThere) {
  const Result<Seating> seating = plan_seating({.data_most = 2, .pipeline = 2, .tensor = 1}, hosts("aaaa"));
  ASSERT_TRUE(seating.ok());
  EXPECT_EQ(seating->shape.data, 2);
  EXPECT_EQ(seating->shape.spares, 0);
  EXPECT_THAT(seating->rank_of_seat, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(seating->spares, IsEmpty());
  EXPECT_EQ(seating->leader(), 0);
  EXPECT_EQ(seating->seat_of(3), 3);
}

// Of five ranks with one spare a death costs nothing; the next one costs a copy, whose other rank waits.
TEST(Seating, ASpareTakesTheSeatAndABrokenCopyMakesSpares) {
  const SeatingWish wish{.data_most = 2, .data_least = 1, .pipeline = 2, .tensor = 1};
  const Result<Seating> four = plan_seating(wish, hosts("aaaa"));
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(four->shape.data, 2);
  const Result<Seating> three = plan_seating(wish, hosts("aaa"));
  ASSERT_TRUE(three.ok());
  EXPECT_EQ(three->shape.data, 1);
  EXPECT_THAT(three->spares, ElementsAre(2));
  EXPECT_EQ(three->seat_of(2), -1);
}

// Three copies of two stages lose a rank each of two copies: what is left makes two whole ones.
TEST(Seating, BrokenCopiesAreRecombined) {
  const Result<Seating> seating =
      plan_seating({.data_most = 3, .data_least = 1, .pipeline = 2, .tensor = 1}, hosts("aaaa"));
  ASSERT_TRUE(seating.ok());
  EXPECT_EQ(seating->shape.data, 2);
  EXPECT_THAT(seating->spares, IsEmpty());
}

TEST(Seating, ATensorGroupStaysInsideAHost) {
  const SeatingWish wish{.data_most = 3, .data_least = 1, .pipeline = 1, .tensor = 2};
  const Result<Seating> seating = plan_seating(wish, hosts("abbbaa"));
  ASSERT_TRUE(seating.ok());
  EXPECT_EQ(seating->shape.data, 2);
  EXPECT_THAT(seating->rank_of_seat, ElementsAre(0, 4, 1, 2));
  EXPECT_THAT(seating->spares, ElementsAre(3, 5));
}

TEST(Seating, TooFewRanksEndTheRunWithASentence) {
  const Result<Seating> none =
      plan_seating({.data_most = 2, .data_least = 1, .pipeline = 2, .tensor = 2}, hosts("aaa"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ExitCode::communication);
  EXPECT_THAT(none.error().message, HasSubstr("3 ranks are left, which are not enough for 1 copy of the "
                                              "model with parallel.tensor x pipeline = 2 x 2 ranks each"));
  const Result<Seating> least =
      plan_seating({.data_most = 4, .data_least = 3, .pipeline = 1, .tensor = 1}, hosts("aa"));
  ASSERT_FALSE(least.ok());
  EXPECT_THAT(least.error().message, HasSubstr("elastic.min_data_parallel"));
}

}  // namespace
}  // namespace holdfast
