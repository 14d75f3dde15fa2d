#include "watchdog/signs_of_life.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/watchdog/milliseconds.h"

namespace holdfast::test {
namespace {

SlotView slot_of(std::uint64_t spans, std::uint64_t ops, std::uint64_t bytes) {
  SlotView slot;
  slot.phase = Phase::step;
  slot.begun_ns = 1'000 * ms;
  slot.deadline_ns = 4'000 * ms;
  slot.spans_opened = spans;
  slot.device_ops = ops;
  slot.moved_bytes = bytes;
  return slot;
}

TEST(SignsOfLife, AreWhatGrowsOnTheBoard) {
  struct Case {
    const char* name;
    SlotView slot;
    bool is_sign;
  };
  const std::vector<Case> cases = {{"nothing", slot_of(7, 8, 9), false},
                                   {"a span", slot_of(8, 8, 9), true},
                                   {"an op", slot_of(7, 9, 9), true},
                                   {"bytes", slot_of(7, 8, 10), true},
                                   {"another device, which counts from 0", slot_of(7, 0, 9), true}};
  for (const Case& each : cases) {
    SignsOfLife signs;
    signs.look_at_board(slot_of(7, 8, 9), 2'000 * ms);
    EXPECT_EQ(signs.last_ns(), 0) << "what was before the first look is no sign of now";
    signs.look_at_board(each.slot, 2'025 * ms);
    EXPECT_EQ(signs.last_ns(), each.is_sign ? 2'025 * ms : 0) << each.name;
  }
}

TEST(SignsOfLife, AreWhatTheKernelCounts) {
  struct Case {
    const char* name;
    ProcessWork work;
    bool is_sign;
  };
  const std::vector<Case> cases = {
      {"nothing", {.minor_faults = 100, .major_faults = 5, .io_bytes = 1'000}, false},
      {"few faults", {.minor_faults = 115, .major_faults = 5, .io_bytes = 1'000}, false},
      {"faults", {.minor_faults = 116, .major_faults = 5, .io_bytes = 1'000}, true},
      {"a major fault", {.minor_faults = 100, .major_faults = 6, .io_bytes = 1'000}, true},
      {"some memory more",
       {.minor_faults = 100, .major_faults = 5, .resident_bytes = 1 << 19, .io_bytes = 1'000},
       false},
      {"a huge page",
       {.minor_faults = 101, .major_faults = 5, .resident_bytes = 1 << 21, .io_bytes = 1'000},
       true},
      {"few bytes", {.minor_faults = 100, .major_faults = 5, .io_bytes = 17'383}, false},
      {"bytes", {.minor_faults = 100, .major_faults = 5, .io_bytes = 17'384}, true}};
  for (const Case& each : cases) {
    SignsOfLife signs;
    signs.look_at_process({.minor_faults = 100, .major_faults = 5, .io_bytes = 1'000}, 3'000 * ms);
    EXPECT_EQ(signs.last_ns(), 0);
    signs.look_at_process(each.work, 3'250 * ms);
    EXPECT_EQ(signs.last_ns(), each.is_sign ? 3'250 * ms : 0) << each.name;
  }
}

TEST(SignsOfLife, ALookThatComesLateOnlyKnowsWhereTheyStand) {
  SignsOfLife signs;
  signs.look_at_process({.minor_faults = 100}, 3'000 * ms);
  signs.look_at_process({.minor_faults = 90'000}, 5'000 * ms);
  EXPECT_EQ(signs.last_ns(), 0) << "they may be from long before";
  signs.look_at_process({.minor_faults = 90'100}, 5'250 * ms);
  EXPECT_EQ(signs.last_ns(), 5'250 * ms);
}

TEST(SignsOfLife, SinceWhenItIsStoppedIsWhatLooksInARowHaveSeen) {
  SignsOfLife signs;
  signs.look_at_process({.stopped = true}, 3'000 * ms);
  signs.look_at_process({.stopped = true}, 3'250 * ms);
  EXPECT_EQ(signs.stopped_since_ns(), 3'000 * ms);
  signs.look_at_process({}, 3'500 * ms);
  EXPECT_EQ(signs.stopped_since_ns(), 0);
  signs.look_at_process({.stopped = true}, 3'750 * ms);
  EXPECT_EQ(signs.stopped_since_ns(), 3'750 * ms);
  signs.look_at_process({.stopped = true}, 5'000 * ms);
  EXPECT_EQ(signs.stopped_since_ns(), 5'000 * ms) << "nobody knows what it did in between";
}

TEST(SignsOfLife, OfOneThatWaitsOnlyTheStateCounts) {
  SignsOfLife signs;
  signs.look_at_process({.minor_faults = 100}, 3'000 * ms, /*waits=*/true);
  signs.look_at_process({.minor_faults = 900, .stopped = true}, 3'250 * ms, /*waits=*/true);
  EXPECT_EQ(signs.last_ns(), 0);
  EXPECT_EQ(signs.stopped_since_ns(), 3'250 * ms);
}

TEST(SignsOfLife, TheKernelIsAskedOnlyWhereTheBoardIsQuiet) {
  const SlotView slot = slot_of(7, 8, 9);
  SignsOfLife signs;
  EXPECT_FALSE(signs.wants_process_look(slot, 2'900 * ms)) << "half of its time is not over";
  EXPECT_TRUE(signs.wants_process_look(slot, 3'100 * ms));
  signs.look_at_process({}, 3'100 * ms);
  EXPECT_FALSE(signs.wants_process_look(slot, 3'300 * ms)) << "four times a second";
  EXPECT_TRUE(signs.wants_process_look(slot, 3'350 * ms));
  signs.look_at_board(slot, 3'350 * ms);
  signs.look_at_board(slot_of(8, 8, 9), 3'400 * ms);
  EXPECT_FALSE(signs.wants_process_look(slot, 5'300 * ms)) << "it has shown a sign";
  EXPECT_TRUE(signs.wants_process_look(slot, 5'500 * ms));

  SlotView waits = slot;
  waits.wait_begun_ns = 1'500 * ms;
  EXPECT_FALSE(signs.wants_process_look(waits, 9'000 * ms)) << "it is not suspected";
  SlotView spare = slot;
  spare.phase = Phase::spare;
  EXPECT_FALSE(signs.wants_process_look(spare, 9'000 * ms));
  SlotView unlimited = slot;
  unlimited.deadline_ns = 0;
  EXPECT_FALSE(signs.wants_process_look(unlimited, 9'000 * ms));
}

TEST(SignsOfLife, OfOneThatWaitsForStorageTheKernelIsAskedSoon) {
  SlotView slot = slot_of(7, 8, 9);
  slot.deadline_ns = 600'000 * ms;
  slot.storage_begun_ns = 2'000 * ms;
  const SignsOfLife signs;
  EXPECT_FALSE(signs.wants_process_look(slot, 2'900 * ms));
  EXPECT_TRUE(signs.wants_process_look(slot, 3'100 * ms));
}

TEST(DeathPatience, GrowsWithTheMemoryAndOfOneThatObeysIsAMinuteAtLeast) {
  constexpr std::int64_t s = 1'000'000'000;
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  struct Case {
    std::uint64_t had, has;
    std::int64_t expected_ns;
  };
  for (const Case& each :
       {Case{0, 0, 10 * s}, Case{3 * gib, 3 * gib, 13 * s}, Case{3 * gib, gib, 13 * s},
        Case{3 * gib, 0, 60 * s}, Case{200 * gib, 200 * gib, 210 * s}, Case{200 * gib, 0, 210 * s}})
    EXPECT_EQ(death_patience_ns(10 * s, each.had, each.has), each.expected_ns) << each.had << " " << each.has;
}

}  // namespace
}  // namespace holdfast::test
