// Tests how long a host that is asked may be silent.
#include "runtime/launch/host_probe.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace holdfast::test {
namespace {

constexpr std::int64_t longest = 10'000;
constexpr HeardHost silent = {}, suspected = {.is_suspected = true};

HeardHost heard(std::int64_t after_ms) {
  return {.after_ms = after_ms};
}

TEST(HostSilence, HasALimitOnceOthersAreHeard) {
  struct Case {
    std::string what;
    std::vector<HeardHost> asked;
    std::int64_t of_others, of_suspected;
  };
  const std::vector<Case> cases = {
      {"nobody is heard", {silent, silent, suspected}, longest, longest},
      {"fewer than half are heard", {heard(100), silent, silent, suspected}, longest, longest},
      {"half are heard", {heard(100), silent, suspected}, 3'000, 500},
      {"logins are slow", {heard(100), heard(1'000), suspected}, 4'000, 4'000},
      {"logins take a moment", {heard(200), suspected}, 3'000, 800},
      {"a suspected one that is heard tells nothing of others",
       {silent, HeardHost{100, true}},
       longest,
       longest},
      {"all others are suspected, so nobody tells what a login takes", {suspected, suspected}, 3'000, 3'000},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(silence_limit_ms(each.asked, false), each.of_others) << each.what;
    EXPECT_EQ(silence_limit_ms(each.asked, true), each.of_suspected) << each.what;
  }
}

}  // namespace
}  // namespace holdfast::test
