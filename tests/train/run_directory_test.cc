// The run directory after a power cut (tests/support/crash_states.h).
#include "runtime/train/run_directory.h"

#include <gtest/gtest.h>

#include "runtime/core/durable_directory.h"
#include "tests/support/crash_states.h"

namespace holdfast {
namespace {

const RunPaths of_test{"/home/runs/one"};

// Whether a crash after everything that `env` has recorded leaves the directory whatever else is lost.
bool is_durable(const RecordingEnv& env, const std::string& path) {
  const CrashLog log(env.log());
  const CrashLog::Point end = log.crash_before(env.log().size());
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    if (!end.state(sample).nodes().contains(path)) return false;
  }
  return true;
}

TEST(RunDirectory, ItsNameAndThoseOfItsParentsAreDurableWhenItIsClaimed) {
  MemoryEnv memory;
  RecordingEnv env(memory);
  ASSERT_TRUE(claim_run_directory(env, of_test).ok());
  EXPECT_TRUE(is_durable(env, of_test.directory));
}

TEST(RunDirectory, ItsNameIsDurableWhenAnotherProcessMadeItAndDied) {
  MemoryEnv memory;
  RecordingEnv env(memory);
  ASSERT_TRUE(env.make_directories("/home/runs").ok());
  for (const char* parent : {"/", "/home"}) ASSERT_TRUE(env.sync_directory(parent).ok());
  ASSERT_TRUE(env.make_directories(of_test.launch()).ok());
  EXPECT_FALSE(is_durable(env, of_test.directory));
  ASSERT_TRUE(claim_run_directory(env, of_test).ok());
  EXPECT_TRUE(is_durable(env, of_test.directory));
}

// `holdfast launch` makes it.
TEST(RunDirectory, WhatIsMadeInsideOfItIsDurableWithIt) {
  MemoryEnv memory;
  RecordingEnv env(memory);
  ASSERT_TRUE(make_durable_directories(env, of_test.launch()).ok());
  EXPECT_TRUE(is_durable(env, of_test.launch()));
}

}  // namespace
}  // namespace holdfast
