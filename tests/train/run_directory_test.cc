// The run directory after a power cut (tests/support/crash_states.h), and where it cannot be had.
#include "runtime/train/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "runtime/core/durable_directory.h"
#include "tests/support/crash_states.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

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

// Trouble that may pass is nothing that the user has to mend: `holdfast launch` starts such a run again.
TEST(RunDirectory, WhatMayPassIsNoFaultOfTheUser) {
  struct Case {
    InjectedFault fault;
    ExitCode code;
  };
  const std::vector<Case> cases = {
      {{.operation = Operation::lock, .reason = EIO}, ExitCode::communication},
      {{.operation = Operation::lock, .reason = ESTALE}, ExitCode::communication},
      {{.operation = Operation::lock, .reason = ENOLCK}, ExitCode::communication},
      {{.operation = Operation::lock, .reason = ENOSPC}, ExitCode::communication},
      {{.operation = Operation::lock, .reason = EMFILE}, ExitCode::communication},
      {{.operation = Operation::list, .reason = ESTALE}, ExitCode::communication},
      {{.operation = Operation::remove, .reason = EIO}, ExitCode::communication},
      {{.operation = Operation::make_directories, .reason = ESTALE}, ExitCode::communication},
      {{.operation = Operation::lock, .reason = EACCES}, ExitCode::config},
      {{.operation = Operation::lock, .reason = EROFS}, ExitCode::config},
  };
  for (const Case& each : cases) {
    const TemporaryDirectory directory;
    ASSERT_TRUE(posix_env().replace_text(directory / "status.json.tmp.1", "").ok());
    FaultyEnv env(posix_env());
    env.inject(each.fault);
    const Result<std::unique_ptr<FileLock>> lock = claim_run_directory(env, {directory.path()});
    ASSERT_FALSE(lock.ok());
    EXPECT_EQ(lock.error().code, each.code) << lock.error().message;
    const bool passes = each.code == ExitCode::communication;
    EXPECT_THAT(lock.error().message, testing::StartsWith(passes ? "run.directory cannot be used now: "
                                                                 : "run.directory cannot be used: "));
  }
}

TEST(RunDirectory, APathThatNobodyCanWriteIsTheUsersMatter) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(posix_env().replace_text(directory / "file", "").ok());
  ASSERT_TRUE(posix_env().make_directories(directory / "run/lock").ok());
  for (const char* path : {"file", "file/run", "run"}) {
    const Result<std::unique_ptr<FileLock>> lock = claim_run_directory(posix_env(), {directory / path});
    ASSERT_FALSE(lock.ok());
    EXPECT_EQ(lock.error().code, ExitCode::config) << lock.error().message;
  }
}

}  // namespace
}  // namespace holdfast
