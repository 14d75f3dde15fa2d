// Skips a test on a system that lacks what it needs, but fails it where the variable CI is "true". It is for
// what CI must not skip (docs/testing.md); everything else uses GTEST_SKIP().
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace holdfast::test {

inline bool is_ci() {
  const char* const value = std::getenv("CI");
  return value != nullptr && std::string_view(value) == "true";
}

}  // namespace holdfast::test

#define HF_SKIP_OUTSIDE_CI(reason)                                                \
  do {                                                                            \
    if (holdfast::test::is_ci()) FAIL() << "CI must not skip this: " << (reason); \
    GTEST_SKIP() << (reason);                                                     \
  } while (false)
