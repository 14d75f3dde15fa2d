#include "kernels/cpu/team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace holdfast::test {
namespace {

TEST(Team, EveryIndexRunsOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 3, 5, 16}) {
    kernels::cpu::Team team(threads, [] {});
    for (const std::int64_t count : {0, 1, 2, 3, 17, 1000}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<int> times(static_cast<std::size_t>(count), 0);
        std::vector<int> by_member(static_cast<std::size_t>(threads), 0);
        const auto body = [&](std::int64_t index, int member) {
          ++times[static_cast<std::size_t>(index)];
          ++by_member[static_cast<std::size_t>(member)];
        };
        team.run(count, body);
        ASSERT_THAT(times, testing::Each(1));
      }
    }
  }
}

TEST(Team, MembersWorkAtTheSameTime) {
  kernels::cpu::Team team(3, [] {});
  // Three indices that each wait for the other two end only if three members run them.
  std::atomic<int> arrived{0};
  const auto body = [&](std::int64_t, int) {
    arrived.fetch_add(1);
    while (arrived.load() < 3) std::this_thread::yield();
  };
  team.run(3, body);
  EXPECT_EQ(arrived.load(), 3);
}

}  // namespace
}  // namespace holdfast::test
