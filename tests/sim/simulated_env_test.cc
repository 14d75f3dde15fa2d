// Tests the clock and the threads of SimulatedEnv: what the tests of this folder stand on.
#include "tests/support/simulated_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "runtime/os/aligned_buffer.h"
#include "runtime/os/background_job.h"
#include "runtime/os/io_queue.h"
#include "tests/support/memory_env.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;

TEST(SimulatedEnv, AThreadSleepsWhileAnotherWorks) {
  SimulatedEnv env(posix_env());
  std::vector<std::string> order;
  const auto sleeper = [&](const std::string& name, std::int64_t every_s) {
    return env
        .start_thread(name,
                      [&env, &order, name, every_s] {
                        for (int i = 0; i < 3; ++i) {
                          env.sleep_us(every_s * 1'000'000);
                          order.push_back(name);
                        }
                      })
        .value();
  };
  {
    const std::unique_ptr<Thread> slow = sleeper("slow", 100), quick = sleeper("quick", 60);
    EXPECT_EQ(order.size(), 0U);
  }
  EXPECT_THAT(order, ElementsAre("quick", "slow", "quick", "quick", "slow", "slow"));
  EXPECT_EQ(env.now_s(), 300);
}

TEST(SimulatedEnv, AConditionWakesWhoWaitsAndKeepsItsDeadline) {
  SimulatedEnv env(posix_env());
  std::mutex mutex;
  const std::unique_ptr<Condition> changed = env.make_condition();
  bool there = false;
  const auto worker = env.start_thread("worker",
                                       [&] {
                                         env.sleep_us(2'000'000);
                                         const std::lock_guard guard(mutex);
                                         there = true;
                                         changed->notify();
                                       })
                          .value();
  std::unique_lock lock(mutex);
  EXPECT_FALSE(changed->wait_at_most(lock, 1'000, [&] { return there; }));
  EXPECT_EQ(env.now_s(), 1);
  EXPECT_TRUE(changed->wait_at_most(lock, 60'000, [&] { return there; }));
  EXPECT_EQ(env.now_s(), 2);
  changed->wait(lock, [&] { return there; });
}

// The holder of a LongMutex may sleep, and a loop that only looks at the clock ends.
TEST(SimulatedEnv, NobodyBlocksTheOthers) {
  SimulatedEnv env(posix_env());
  LongMutex turn(env);
  std::vector<int> order;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int number = 0; number < 3; ++number) {
    threads.push_back(env.start_thread("worker",
                                       [&, number] {
                                         const std::lock_guard guard(turn);
                                         env.sleep_us(1'000'000);
                                         order.push_back(number);
                                       })
                          .value());
  }
  threads.clear();
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_EQ(env.now_s(), 3);
  const std::int64_t end_ns = env.monotonic_ns() + 1'000'000;
  while (env.monotonic_ns() < end_ns) {
  }
}

TEST(SimulatedEnv, AThreadThatIsLeftEndsWithTheEnv) {
  std::atomic<bool> ended = false;
  {
    SimulatedEnv env(posix_env());
    env.start_thread("left",
                     [&] {
                       env.sleep_us(3'600'000'000);
                       ended = true;
                     })
        .value()
        ->leave();
    EXPECT_FALSE(ended);
  }
  EXPECT_TRUE(ended);
}

TEST(SimulatedEnv, StorageTakesTheTimeThatTheTestSays) {
  MemoryEnv files;
  SimulatedEnv env(files);
  env.storage_takes({.read_us = 2'000'000, .sync_us = 5'000'000, .path_contains = "slow"});
  for (const std::string path : {"/quick", "/slow"}) ASSERT_TRUE(env.replace_text(path, "words").ok());
  EXPECT_EQ(env.now_s(), 5);
  for (const std::string path : {"/quick", "/slow"}) EXPECT_EQ(env.read_text(path).value(), "words");
  EXPECT_EQ(env.now_s(), 7);
  AlignedBuffer buffer(4096);
  const std::unique_ptr<File> file = env.open("/slow", OpenMode::read).value();
  const std::unique_ptr<IoQueue> queue = env.make_io_queue({.depth = 2}).value();
  queue->read(*file, 0, buffer.bytes(), 1);
  EXPECT_EQ(queue->wait().bytes.value(), 5U);
  EXPECT_EQ(env.now_s(), 9);
}

TEST(SimulatedEnv, ARefusedThreadIsTheResultOfTheJob) {
  SimulatedEnv env(posix_env());
  env.refuse_threads();
  BackgroundJob<int> job;
  EXPECT_FALSE(job.start(env, "job", [] { return 1; }));
  ASSERT_TRUE(job.started() && job.finished());
  EXPECT_EQ(job.take().error().code, ExitCode::does_not_fit);
  EXPECT_FALSE(job.started());
  int worked = 0;
  {
    const BackgroundHelpers helpers(env, "helper", 3, [&] { ++worked; });
  }
  EXPECT_EQ(worked, 0);
}

}  // namespace
}  // namespace holdfast::test
