#include "runtime/core/median.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::test {
namespace {

TEST(Median, IsTheMiddleOrTheMeanOfTheTwo) {
  EXPECT_DOUBLE_EQ(median({}), 0.0);
  EXPECT_DOUBLE_EQ(median({7.0}), 7.0);
  EXPECT_DOUBLE_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_DOUBLE_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
}

TEST(Median, IsTheUpperOneWhereNothingIsToBeRounded) {
  std::vector<double> odd = {5, 1, 3}, even = {4, 1, 3, 2}, one = {7};
  EXPECT_DOUBLE_EQ(take_median(odd), 3.0);
  EXPECT_DOUBLE_EQ(take_median(even), 3.0);
  EXPECT_DOUBLE_EQ(take_median(one), 7.0);
}

}  // namespace
}  // namespace holdfast::test
