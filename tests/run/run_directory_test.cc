// The run directory after a power cut (tests/support/crash_states.h), and where it cannot be had.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "runtime/os/paths.h"
#include "runtime/run/run_directory.h"
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

TEST(RunDirectory, WhatAProofOfFitnessLeftIsRemovedWithTheClaim) {
  const TemporaryDirectory directory;
  for (const char* name : {"proof-00001", "proof-00001.tmp.7"})
    ASSERT_TRUE(posix_env().replace_text(directory / name, "").ok());
  ASSERT_TRUE(claim_run_directory(posix_env(), {directory.path()}).ok());
  EXPECT_THAT(*posix_env().list(directory.path()), testing::ElementsAre("lock"));
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

// Tests which run directory is a copy, and which one only has another path.

const std::string one(32, '1'), two(32, '2'), another(32, 'a');

class RunIdentityTest : public testing::Test {
 protected:
  RunPaths make(const std::string& name, const std::string& id) {
    const RunPaths paths{directory_ / name};
    HF_CHECK(posix_env().make_directories(paths.directory).ok());
    HF_CHECK(record_identity(posix_env(), paths, id).ok());
    return paths;
  }
  RunPaths copy(const RunPaths& paths, const std::string& name) {
    std::filesystem::copy(paths.directory, directory_ / name, std::filesystem::copy_options::recursive);
    return {directory_ / name};
  }
  static std::string id_of(const RunPaths& paths) { return identify_run(posix_env(), paths).value().id; }

  TemporaryDirectory directory_;
};

TEST_F(RunIdentityTest, IsThatOfItsPlace) {
  const RunPaths paths = make("run", one);
  EXPECT_EQ(id_of(paths), one);
  EXPECT_EQ(id_of({paths.directory + "/../run"}), one);
  EXPECT_EQ(id_of({directory_ / "none"}), "");
}

TEST_F(RunIdentityTest, ACopyHasNone) {
  const RunPaths paths = make("run", one), copied = copy(paths, "copy");
  const RunIdentity identity = identify_run(posix_env(), copied).value();
  EXPECT_EQ(identity.id, "");
  EXPECT_EQ(identity.copy_of, real_path(paths.directory));
  EXPECT_EQ(id_of(paths), one);
  ASSERT_TRUE(record_identity(posix_env(), copied, two).ok());
  EXPECT_EQ(id_of(copied), two);
  EXPECT_EQ(id_of(copy(copied, "copy-of-the-copy")), "");
  EXPECT_THAT(posix_env().list(copied.directory).value(), testing::ElementsAre("run_id", "run_place"));
}

TEST_F(RunIdentityTest, WhatWasMovedKeepsIt) {
  const RunPaths paths = make("run", one), moved{directory_ / "moved"};
  std::filesystem::rename(paths.directory, moved.directory);
  EXPECT_EQ(id_of(moved), one);
  make("run", another);
  EXPECT_EQ(id_of(moved), one) << "at its old place is another run";
}

TEST_F(RunIdentityTest, OneDirectoryWithTwoPathsIsNoCopy) {
  const RunPaths paths = make("run", one), moved{directory_ / "moved"};
  std::filesystem::rename(paths.directory, moved.directory);
  std::filesystem::create_directory_symlink(moved.directory, paths.directory);
  EXPECT_EQ(id_of(moved), one);
  EXPECT_EQ(id_of(paths), one);
  EXPECT_THAT(posix_env().list(moved.directory).value(), testing::ElementsAre("run_id", "run_place"));
}

TEST_F(RunIdentityTest, OfAVersionBeforeItIsWhatItWas) {
  const RunPaths paths = make("run", one);
  ASSERT_TRUE(posix_env().remove(paths.run_place()).ok());
  EXPECT_EQ(id_of(paths), one);
  EXPECT_EQ(id_of(copy(paths, "copy")), one) << "nothing is known of where it was made";
}

// The id is new and the place is that of the directory it was copied from, or neither is.
TEST_F(RunIdentityTest, ADeathWhileItIsRecorded) {
  const RunPaths paths = make("run", one);
  for (const std::uint64_t at : {1, 2}) {
    const RunPaths copied = copy(paths, fmt::format("copy-{}", at));
    FaultyEnv machine(posix_env());
    machine.inject({.operation = Operation::rename, .at = at, .for_ever = true});
    EXPECT_FALSE(record_identity(machine, copied, two).ok());
    EXPECT_EQ(id_of(copied), at == 1 ? "" : two);
    EXPECT_EQ(id_of(paths), one);
  }
}

// Such an id would go to a shell on every host, or into JSON.
TEST_F(RunIdentityTest, WhatIsNoIdIsASentenceAndIsNotUsed) {
  const RunPaths paths = make("run", one);
  for (const std::string& bad :
       {std::string("x;touch /tmp/x"), std::string("\xff\xfe"), std::string(), one + "\n",
        std::string(32, 'A'), std::string(31, '1'), std::string(200, '1')}) {
    ASSERT_TRUE(posix_env().replace_text(paths.run_id(), bad).ok());
    const Result<RunIdentity> identity = identify_run(posix_env(), paths);
    ASSERT_FALSE(identity.ok()) << bad;
    EXPECT_EQ(identity.error().code, ExitCode::data);
    EXPECT_THAT(identity.error().message, testing::HasSubstr("run_id is damaged: it holds \""));
    EXPECT_EQ(identity.error().message.find('\xff'), std::string::npos);
    EXPECT_FALSE(read_run_id(posix_env(), paths).ok());
  }
  ASSERT_TRUE(record_identity(posix_env(), paths, two).ok());
  EXPECT_EQ(id_of(paths), two);
}

// A directory that is not to be trusted gives no place, either.
TEST_F(RunIdentityTest, ADamagedPlaceIsNoPlace) {
  const RunPaths paths = make("run", one);
  ASSERT_TRUE(posix_env().replace_text(paths.run_place(), one + "\n\xff\xfe").ok());
  EXPECT_EQ(id_of(paths), one);
  ASSERT_TRUE(posix_env().replace_text(paths.run_place(), std::string(100'000, 'x')).ok());
  EXPECT_EQ(id_of(paths), one);
}

}  // namespace

}  // namespace holdfast::test
