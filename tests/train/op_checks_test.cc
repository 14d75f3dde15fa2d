#include "runtime/integrity/op_checks.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/elementwise.h"

namespace holdfast::test {
namespace {

// y = a + b, then a += y.
RankChecks checks_of(std::vector<float> a, const std::vector<float>& b) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  const std::unique_ptr<StepChecks> checks = StepChecks::make(*device).value();
  std::vector<float> y(a.size());
  const auto count = static_cast<std::int64_t>(a.size());
  const auto launch = [&] {
    device->launch(Add{.a = a.data(), .b = b.data(), .y = y.data(), .count = count});
    device->launch(Accumulate{.target = a.data(), .source = y.data(), .count = count});
  };
  checks->begin();
  device->launch(Add{.a = b.data(), .b = b.data(), .y = y.data(), .count = count});
  checks->end();
  device->synchronize();
  checks->begin();  // forgets what was before
  launch();
  checks->end();
  device->launch(Add{.a = b.data(), .b = b.data(), .y = y.data(), .count = count});  // not seen
  return checks->result();
}

TEST(StepChecks, NamesTheOpThatGrewMost) {
  const RankChecks checks = checks_of({1.0F, 2.0F, 3.0F}, {1.0F, 1.0F, 1.0F});
  EXPECT_EQ(checks.ops, 2);
  EXPECT_EQ(checks.results, 2);
  EXPECT_EQ(checks.left_out, 0);
  EXPECT_FALSE(checks.first_nonfinite.has_value());
  ASSERT_TRUE(checks.largest_growth.has_value());
  EXPECT_EQ(checks.largest_growth->op, "accumulate");
  EXPECT_EQ(checks.largest_growth->order, 1);
  EXPECT_EQ(checks.largest_growth->growth, 7.0 / 4.0);
}

TEST(StepChecks, NamesTheFirstOpThatIsNotFinite) {
  const RankChecks checks =
      checks_of({1.0F, 2.0F, std::numeric_limits<float>::infinity()}, {1.0F, 1.0F, 1.0F});
  ASSERT_TRUE(checks.first_nonfinite.has_value());
  EXPECT_EQ(checks.first_nonfinite->op, "add");
  EXPECT_EQ(checks.first_nonfinite->order, 0);
  EXPECT_EQ(checks.first_nonfinite->nonfinite, 1U);
}

TEST(StepChecks, ADigestIsOfAllResults) {
  const RankChecks one = checks_of({1.0F, 2.0F}, {3.0F, 4.0F});
  EXPECT_EQ(checks_of({1.0F, 2.0F}, {3.0F, 4.0F}).digest, one.digest);
  EXPECT_NE(checks_of({1.0F, 2.0F}, {4.0F, 3.0F}).digest, one.digest);
}

}  // namespace
}  // namespace holdfast::test
