#include "runtime/core/check.h"

#include <gtest/gtest.h>

#include "runtime/core/result.h"

namespace holdfast::test {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return fail(ExitCode::data, "{} is odd", value);
  return value / 2;
}

Result<int> quarter(int value) {
  HF_TRY(const int once, half(value));
  HF_TRY(const int twice, half(once));
  return twice;
}

Result<void> must_be_even(int value) {
  HF_TRY_VOID(half(value));
  return {};
}

TEST(Check, TrueConditionDoesNothing) {
  HF_CHECK(1 + 1 == 2, "never formatted {}", 1);
}

TEST(CheckDeathTest, FalseConditionNamesFileConditionAndMessage) {
  EXPECT_DEATH(HF_CHECK(1 + 1 == 3, "sum is {}", 2), "check_test.cc:[0-9]+: bug: .*1 \\+ 1 == 3.*: sum is 2");
}

TEST(CheckDeathTest, ValueOfAnErrorIsABug) {
  EXPECT_DEATH(static_cast<void>(half(3).value()), "value\\(\\) of an error: 3 is odd");
}

TEST(Result, TryPassesTheErrorOn) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_EQ(quarter(6).error().code, ExitCode::data);
  EXPECT_TRUE(must_be_even(2).ok());
  EXPECT_EQ(must_be_even(5).error().message, "5 is odd");
}

}  // namespace
}  // namespace holdfast::test
