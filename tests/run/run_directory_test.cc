// The run directory after a power cut (tests/support/crash_states.h), and where it cannot be had.
#include "runtime/run/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "runtime/os/paths.h"
#include "tests/support/crash_states.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
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
      {{.operation = Operation::make_directories, .reason = ENOSPC}, ExitCode::communication},
      {{.operation = Operation::make_directories, .reason = EDQUOT}, ExitCode::communication},
      {{.operation = Operation::make_directories, .reason = EROFS}, ExitCode::config},
      {{.operation = Operation::status, .reason = ESTALE}, ExitCode::communication},
      {{.operation = Operation::lock, .reason = EACCES}, ExitCode::config},
      {{.operation = Operation::lock, .reason = EROFS}, ExitCode::config},
  };
  for (const Case& each : cases) {
    const TemporaryDirectory directory;
    // A directory to make, or one in which a killed start has left something.
    const bool is_made = each.fault.operation == Operation::make_directories;
    const RunPaths paths{is_made ? directory / "not/yet" : directory.path()};
    ASSERT_TRUE(posix_env().replace_text(directory / "status.json.tmp.1", "").ok());
    FaultyEnv env(posix_env());
    env.inject(each.fault);
    const Result<std::unique_ptr<Claim>> lock = claim_run_directory(env, paths);
    ASSERT_FALSE(lock.ok());
    EXPECT_EQ(lock.error().code, each.code) << lock.error().message;
    const bool passes = each.code == ExitCode::communication;
    EXPECT_THAT(lock.error().message, testing::StartsWith(passes ? "run.directory cannot be used now: "
                                                                 : "run.directory cannot be used: "));
  }
}

TEST(RunDirectory, ALauncherMeetsTheSame) {
  struct Case {
    Operation operation;
    int reason;
    ExitCode code;
  };
  for (const Case& each : {Case{Operation::make_directories, EDQUOT, ExitCode::communication},
                           Case{Operation::status, ESTALE, ExitCode::communication},
                           Case{Operation::sync_directory, EIO, ExitCode::communication},
                           Case{Operation::lock, ENOLCK, ExitCode::communication},
                           Case{Operation::make_directories, EACCES, ExitCode::config},
                           Case{Operation::lock, EROFS, ExitCode::config}}) {
    const TemporaryDirectory directory;
    FaultyEnv env(posix_env());
    env.inject({.operation = each.operation, .reason = each.reason});
    const Result<std::unique_ptr<Claim>> claim = claim_launch(env, {directory / "run"});
    ASSERT_FALSE(claim.ok());
    EXPECT_EQ(claim.error().code, each.code) << claim.error().message;
    EXPECT_THAT(claim.error().message, testing::StartsWith("run.directory cannot be used"));
  }
}

TEST(RunDirectory, APathThatNobodyCanWriteIsTheUsersMatter) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(posix_env().replace_text(directory / "file", "").ok());
  ASSERT_TRUE(posix_env().make_directories(directory / "run/lock").ok());
  for (const char* path : {"file", "file/run", "run"}) {
    const Result<std::unique_ptr<Claim>> lock = claim_run_directory(posix_env(), {directory / path});
    ASSERT_FALSE(lock.ok());
    EXPECT_EQ(lock.error().code, ExitCode::config) << lock.error().message;
  }
}

}  // namespace
}  // namespace holdfast::test
