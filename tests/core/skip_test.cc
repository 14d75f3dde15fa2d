#include "tests/support/skip.h"

#include <gtest/gtest-spi.h>

#include <optional>
#include <string>

namespace holdfast::test {
namespace {

void skip_where_it_may() {
  HF_SKIP_OUTSIDE_CI("the system gives no namespace");
}

// Returns what the macro reports where the variable CI has this value.
testing::TestPartResult reported(const std::optional<std::string>& ci) {
  const char* const own = std::getenv("CI");
  const std::optional<std::string> before = own == nullptr ? std::nullopt : std::optional<std::string>(own);
  const auto set = [](const std::optional<std::string>& value) {
    return value.has_value() ? ::setenv("CI", value->c_str(), 1) : ::unsetenv("CI");
  };
  EXPECT_EQ(set(ci), 0);
  testing::TestPartResultArray results;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(&results);
    skip_where_it_may();
  }
  EXPECT_EQ(set(before), 0);
  EXPECT_EQ(results.size(), 1);
  return results.GetTestPartResult(0);
}

TEST(Skip, IsAFailureInCi) {
  const testing::TestPartResult result = reported("true");
  EXPECT_TRUE(result.fatally_failed());
  EXPECT_STREQ(result.summary(), "Failed\nCI must not skip this: the system gives no namespace");
  for (const std::optional<std::string>& ci :
       {std::optional<std::string>(), std::optional<std::string>("false")})
    EXPECT_TRUE(reported(ci).skipped());
}

}  // namespace
}  // namespace holdfast::test
