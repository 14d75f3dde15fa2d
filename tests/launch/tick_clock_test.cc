// Tests which time of a loop counts as having been stopped.
#include "runtime/launch/job.h"

#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

TEST(TickClock, CountsNoTimeOfItsOwnLooks) {
  constexpr std::int64_t second_ns = 1'000'000'000;
  TickClock clock(2'000, 0);
  for (std::int64_t now_s = 0; now_s < 60; now_s += 5) {
    EXPECT_FALSE(clock.is_late((now_s + 1) * second_ns)) << "the look before took four seconds";
    clock.end_tick((now_s + 5) * second_ns);
  }
  EXPECT_TRUE(clock.is_late(70 * second_ns)) << "it was stopped";
}

}  // namespace
}  // namespace holdfast::test
