#include "runtime/integrity/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace holdfast::test {
namespace {

TEST(RobustScore, ALonelyOutlierMovesNothing) {
  std::vector<double> values = {1.0, 1.1, 0.9, 1.05, 1e9, 0.95, 1.0};
  const RobustCentre centre = take_centre(values);
  EXPECT_DOUBLE_EQ(centre.median, 1.0);
  EXPECT_NEAR(centre.deviation, 1.4826 * 0.05, 1e-12);
  EXPECT_NEAR(robust_score(2.0, centre, 0.1), 1.0 / (1.4826 * 0.05 + 0.1), 1e-9);
  EXPECT_LT(robust_score(0.0, centre, 0.1), 0.0);
}

TEST(RobustScore, ScoresAreFinite) {
  EXPECT_DOUBLE_EQ(robust_score(0.0, {}, 0.0), 0.0);
  EXPECT_TRUE(std::isfinite(robust_score(1e300, {}, 0.0)));
}

TEST(RobustScore, PlainLogIsTheLogarithm) {
  for (double value = 1e-300; value < 1e300; value *= 1.37) {
    EXPECT_NEAR(plain_log(value), std::log(value), 1e-12 * std::max(1.0, std::abs(std::log(value)))) << value;
  }
  EXPECT_DOUBLE_EQ(plain_log(1.0), 0.0);
  EXPECT_DOUBLE_EQ(plain_log(0.0), plain_log(std::numeric_limits<double>::denorm_min()));
  EXPECT_NEAR(plain_log(0.0), -708.4, 0.1);
}

}  // namespace
}  // namespace holdfast::test
