#include "runtime/save/save_records.h"

#include <gtest/gtest.h>

#include "runtime/save/save_cadence.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t second = 1'000'000'000;

TEST(UnsavedWork, CountsFromTheNewestCheckpoint) {
  UnsavedWork work(/*now_ns=*/5 * second);
  EXPECT_EQ(work.size(7, 8 * second).steps, 7U);
  EXPECT_EQ(work.size(7, 8 * second).duration_ns, 3 * second);
  work.saved(6, /*begun_ns=*/7 * second);
  EXPECT_EQ(work.size(10, 9 * second).steps, 4U);
  EXPECT_EQ(work.size(10, 9 * second).duration_ns, 2 * second);
}

TEST(UnsavedWork, EachFailureInARowDoublesThePause) {
  UnsavedWork work(0);
  std::int64_t now_ns = 0;
  for (const std::int64_t pause_s : {0, 10, 20, 40, 80, 160, 320, 600, 600}) {
    work.failed(now_ns);
    EXPECT_EQ(work.size(1, now_ns).pause_ns, pause_s * second);
    EXPECT_EQ(work.may_try(now_ns), pause_s == 0);
    now_ns += pause_s * second;
    EXPECT_TRUE(work.may_try(now_ns));
  }
  work.saved(1, now_ns);
  work.failed(now_ns);
  EXPECT_TRUE(work.may_try(now_ns)) << "a failure after a success is the first one";
}

TEST(SaveCadence, SavesThatFailOneAfterAnotherAreTriedMoreRarely) {
  CheckpointConfig config;
  config.every_steps = 2;
  config.ram_every_steps = 0;
  SaveCadence cadence(config, 0);
  cadence.begin_epoch({.saved_step = 3});
  const SaveReport failed{.step = 4, .outcome = fail(ExitCode::checkpoint, "no")};
  cadence.ended(failed, second);
  EXPECT_TRUE(cadence.due(6, second).to_disk) << "the next one that is due is another try";
  cadence.ended(failed, second);
  EXPECT_FALSE(cadence.due(8, second).to_disk);
  EXPECT_FALSE(cadence.due(8, 11 * second - 1).to_disk);
  EXPECT_TRUE(cadence.due(8, 11 * second).to_disk);
  EXPECT_EQ(cadence.unsaved(8, 11 * second).steps, 5U);
  cadence.begin_epoch({});
  EXPECT_TRUE(cadence.due(8, second).to_disk) << "who could not write may have left";
}

}  // namespace
}  // namespace holdfast::test
