// When the leader starts new ranks, and when it takes them in.
#include <gtest/gtest.h>

#include "runtime/core/env.h"
#include "runtime/train/growth.h"

namespace holdfast {
namespace {

// New ranks as the test wants them to be.
struct World {
  NewRankState state = NewRankState::none;
  NewRankState once_started = NewRankState::preparing;
  bool starts = true;
  int started = 0, dismissed = 0;

  Growth growth(std::int64_t at_ns) {
    return Growth({.at_ns = at_ns,
                   .retry_ns = 100,
                   .patience_ns = 1000,
                   .settle_ns = 300,
                   .start = [this]() -> Result<void> {
                     if (!starts) return fail(ExitCode::communication, "no");
                     ++started;
                     state = once_started;
                     return {};
                   },
                   .state = [this] { return state; },
                   .dismiss =
                       [this] {
                         ++dismissed;
                         state = NewRankState::none;
                       }});
  }
};

TEST(GrowthScheduleTest, StandsStillWhenTheNewRanksAreReady) {
  World world;
  Growth growth = world.growth(50);
  EXPECT_FALSE(growth.due(49, true));
  EXPECT_EQ(world.started, 0);
  EXPECT_FALSE(growth.due(50, true));
  EXPECT_FALSE(growth.due(60, true));
  EXPECT_EQ(world.started, 1);
  world.state = NewRankState::ready;
  EXPECT_TRUE(growth.due(70, true));
}

TEST(GrowthScheduleTest, StartsThemWhenTheOthersTakeNoMoreMemory) {
  World world;
  Growth growth = world.growth(50);
  EXPECT_FALSE(growth.due(60, false));
  EXPECT_EQ(world.started, 0);
  EXPECT_FALSE(growth.due(70, true));
  EXPECT_EQ(world.started, 1);
  World unsettled;
  Growth later = unsettled.growth(50);
  EXPECT_FALSE(later.due(349, false));
  EXPECT_EQ(unsettled.started, 0);
  EXPECT_FALSE(later.due(350, false));
  EXPECT_EQ(unsettled.started, 1) << "they may never settle";
}

TEST(GrowthScheduleTest, StartsOthersForThoseThatAreLost) {
  World world;
  Growth growth = world.growth(0);
  EXPECT_FALSE(growth.due(10, true));
  world.state = NewRankState::lost;
  EXPECT_FALSE(growth.due(20, true));
  EXPECT_EQ(world.dismissed, 1);
  EXPECT_FALSE(growth.due(119, true));
  EXPECT_EQ(world.started, 1);
  EXPECT_FALSE(growth.due(120, true));
  EXPECT_EQ(world.started, 2);
}

TEST(GrowthScheduleTest, DismissesThoseThatAreNeverReady) {
  World world;
  Growth growth = world.growth(0);
  EXPECT_FALSE(growth.due(10, true));
  EXPECT_FALSE(growth.due(1009, true));
  EXPECT_EQ(world.dismissed, 0);
  EXPECT_FALSE(growth.due(1010, true));
  EXPECT_EQ(world.dismissed, 1);
}

TEST(GrowthScheduleTest, TakesThoseOfTheEpochBeforeNotSoonerThanOthers) {
  World world;
  world.state = NewRankState::ready;
  Growth growth = world.growth(50);
  EXPECT_FALSE(growth.due(49, true));
  EXPECT_TRUE(growth.due(50, true));
  EXPECT_EQ(world.started, 0);
}

TEST(GrowthScheduleTest, LeavesItToTheGrowthWhereNoneCanBeStartedAhead) {
  World refuses;
  refuses.starts = false;
  Growth refused = refuses.growth(50);
  EXPECT_FALSE(refused.due(49, true));
  EXPECT_TRUE(refused.due(50, true));
  World local;
  local.once_started = NewRankState::none;
  EXPECT_TRUE(local.growth(50).due(50, true));
  Growth alone({.at_ns = 50});
  EXPECT_FALSE(alone.due(49, true));
  EXPECT_TRUE(alone.due(50, true));
}

TEST(GrowthScheduleTest, TheTaskOfANewRankIsMemoryThatIsThere) {
  KeptMemory memory;
  constexpr std::uint64_t bytes = std::uint64_t{5} << 20;
  int calls = 0;
  const std::string task = to_text(NewRankTask{.device_bytes = bytes, .host_bytes = 4096, .timeout_ms = 0});
  prepare_new_rank(posix_env(), task, {.threads = 1, .progress = [&] { ++calls; }}, memory);
  EXPECT_GE(memory.bytes(MemoryPlace::device), bytes);
  EXPECT_GE(memory.bytes(MemoryPlace::host_visible), 4096U);
  EXPECT_GT(calls, 0);
}

TEST(GrowthScheduleTest, ATaskThatDoesNotFitIsLeftToTheAgreement) {
  KeptMemory memory;
  const std::string task =
      to_text(NewRankTask{.device_bytes = std::uint64_t{1} << 50, .host_bytes = 0, .timeout_ms = 120});
  int calls = 0;
  prepare_new_rank(posix_env(), task, {.threads = 1, .progress = [&] { ++calls; }}, memory);
  EXPECT_EQ(memory.bytes(), 0U);
  EXPECT_GT(calls, 0);
}

TEST(GrowthScheduleTest, WhatTheOthersWillGiveBackIsNotWaitedFor) {
  KeptMemory memory;
  constexpr std::uint64_t bytes = std::uint64_t{1} << 50;
  const std::string task = to_text(
      NewRankTask{.device_bytes = bytes, .host_bytes = 0, .given_back_bytes = bytes, .timeout_ms = 600'000});
  prepare_new_rank(posix_env(), task, {}, memory);
  EXPECT_EQ(memory.bytes(), 0U);
}

}  // namespace
}  // namespace holdfast
