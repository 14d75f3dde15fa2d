// A save that fails or dies at any of its operations: what was whole before is found after.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <csignal>

#include "checkpoint/find_checkpoint.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class SaveFailureTest : public testing::Test {
 protected:
  std::string run() const { return directory / "run"; }
  void SetUp() override {
    FaultPoints none;
    CheckpointStore store(posix_env(), none, directory / "old");
    HF_ASSERT_OK(save_checkpoint(posix_env(), store, tiny_state(1), manifest_of_step(1), 1));
    HF_ASSERT_OK(save_checkpoint(posix_env(), store, tiny_state(2), manifest_of_step(2), 1));
  }
  // A run directory with whole checkpoints of steps 1 and 2.
  void restore_old() {
    fs::remove_all(run());
    fs::copy(directory / "old", run(), fs::copy_options::recursive);
  }
  // The save of `step`, with the seed as its content, and then retention.
  static Result<void> save_and_retain(Env& env, FaultPoints& faults, const std::string& run,
                                      std::uint64_t step) {
    CheckpointStore store(env, faults, run);
    HF_TRY_VOID(save_checkpoint(env, store, tiny_state(33), manifest_of_step(step), 1));
    return store.retain(1);
  }
  // Step 2 with its first content, or `step` with the new one, complete.
  void expect_old_or_new(std::uint64_t step, const std::string& when) {
    auto found = find_checkpoint(posix_env(), run());
    ASSERT_TRUE(found.ok()) << when << ": " << found.error().message;
    ASSERT_TRUE(found.value().has_value()) << when;
    Checkpoint& checkpoint = found.value()->checkpoint;
    const std::uint64_t found_step = checkpoint.manifest().step;
    ASSERT_TRUE(found_step == 2 || found_step == step) << when << ": step " << found_step;
    const std::vector<StateTensor> old_state = tiny_state(2);
    std::vector<std::byte> bytes(old_state[0].bytes.size());
    const Checkpoint::Wanted wanted{.spec = old_state[0].spec, .target = bytes};
    HF_ASSERT_OK(checkpoint.read(std::span(&wanted, 1)));
    const bool is_old = found_step == 2 && bytes == old_state[0].bytes;
    ASSERT_TRUE(is_old || (found_step == step && bytes == tiny_state(33)[0].bytes)) << when;
  }
  // What was left behind is not in the way of the next writer.
  void expect_successor_saves(std::uint64_t step, const std::string& when) {
    FaultPoints none;
    ASSERT_TRUE(save_and_retain(posix_env(), none, run(), step).ok()) << when;
    ASSERT_EQ(test::found_step(run()), static_cast<std::int64_t>(step)) << when;
    ASSERT_TRUE(fs::is_empty(run() + "/.pending")) << when;
    ASSERT_EQ(std::distance(fs::directory_iterator(run() + "/checkpoints"), {}), 1) << when;
  }
  void fail_everywhere(std::uint64_t step, bool for_ever) {
    for (std::uint64_t at = 1;; ++at) {
      restore_old();
      FaultyEnv env(posix_env());
      env.inject({.at = at, .for_ever = for_ever, .short_write = true});
      FaultPoints none;
      const Result<void> saved = save_and_retain(env, none, run(), step);
      if (env.failure_count() == 0) {
        HF_ASSERT_OK(saved);
        ASSERT_GT(at, 30u);
        return;
      }
      if (!saved.ok()) {
        EXPECT_EQ(saved.error().code, ExitCode::checkpoint) << saved.error().message;
      }
      expect_old_or_new(step,
                        fmt::format("operation {}: {}", at, saved.ok() ? "saved" : saved.error().message));
      if (at % 4 == 0) expect_successor_saves(step, fmt::format("operation {}", at));  // waits for the disk
      if (HasFatalFailure()) return;
    }
  }

  TemporaryDirectory directory;
};

TEST_F(SaveFailureTest, OneFailingOperationAtEveryPlace) {
  fail_everywhere(3, false);
}
TEST_F(SaveFailureTest, EverythingFailsFromEveryPlaceOn) {
  fail_everywhere(3, true);
}
TEST_F(SaveFailureTest, OneFailingOperationWhileTheSameStepIsReplaced) {
  fail_everywhere(2, false);
}
TEST_F(SaveFailureTest, EverythingFailsWhileTheSameStepIsReplaced) {
  fail_everywhere(2, true);
}

TEST_F(SaveFailureTest, KilledAtEveryFaultPoint) {
  GTEST_FLAG_SET(death_test_style, "fast");
  for (const std::uint64_t step : {2u, 3u}) {
    for (const char* point : {"save.before_manifest", "save.before_rename", "save.after_rename"}) {
      restore_old();
      EXPECT_EXIT(
          {
            auto faults = FaultPoints::parse(fmt::format("{}=kill", point), 0, posix_env());
            static_cast<void>(save_and_retain(posix_env(), *faults.value(), run(), step).ok());
          },
          testing::KilledBySignal(SIGKILL), "");
      expect_old_or_new(step, fmt::format("{} at step {}", point, step));
      expect_successor_saves(step, fmt::format("{} at step {}", point, step));
    }
  }
}

TEST_F(SaveFailureTest, AFullDiskIsASentenceAndTheOldOneStays) {
  restore_old();
  FaultyEnv env(posix_env());
  env.inject({.operation = Operation::write, .path_contains = "manifest.json", .reason = ENOSPC});
  FaultPoints none;
  const Result<void> saved = save_and_retain(env, none, run(), 3);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().code, ExitCode::checkpoint);
  EXPECT_THAT(saved.error().message, HasSubstr("the checkpoint of step 3 could not be published"));
  EXPECT_THAT(saved.error().message, HasSubstr("the disk is full"));
  EXPECT_TRUE(fs::is_empty(run() + "/.pending"));
  EXPECT_EQ(found_step(run()), 2);
}

}  // namespace
}  // namespace holdfast::test
