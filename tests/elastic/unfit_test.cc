// Whole runs of ranks whose host, or whose minute, is unfit: what they lack ends no run that others can continue.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/elastic/recovery_fixture.h"

namespace holdfast {
namespace {

// Host whose clock passes faster while a thread waits for storage, and which may fail to open a file.
class UnfitHost final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;

  std::atomic<bool> lacks_data = false;

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (lacks_data && path.ends_with("train.txt")) return read_error("open", path, ENOENT);
    return inner().open(path, mode);
  }
  std::int64_t monotonic_ns() override { return inner().monotonic_ns() + shift_ns_; }
  void sleep_us(std::int64_t duration_us) override {
    if (duration_us >= 100'000) shift_ns_ += 20 * duration_us * 1000;
    inner().sleep_us(duration_us);
  }

 private:
  std::atomic<std::int64_t> shift_ns_ = 0;
};

class UnfitTest : public RecoveryTest {
 protected:
  // Returns how many ranks died; all others must end with `code`.
  int train_until(ExitCode code, const Launch& launch, const Trouble& trouble) {
    int deaths = 0;
    for (const std::optional<RunEnd>& end : train_all(launch, trouble)) {
      if (!end.has_value()) {
        ++deaths;
        continue;
      }
      EXPECT_EQ(end->code, code) << end->message;
      message_ = end->message;
    }
    return deaths;
  }

  // A run that stops after a step, and has checkpoints of steps 4 and 8.
  static Launch saved_twice() {
    return {.run = "a",
            .ranks = 2,
            .stop_after_steps = 8,
            .overrides = {"checkpoint.every_steps=4", "checkpoint.ram_every_steps=0"}};
  }
  std::uint64_t resumed_from(const std::string& run) const {
    const std::vector<Json> starts = events(run, "start");
    return starts.empty() ? 0 : starts.back().value("resumed_from_step", std::uint64_t{0});
  }

  std::string message_;
};

TEST_F(UnfitTest, AReadThatFailsForAMomentIsRepeated) {
  const std::string end = reference();
  FaultyEnv host(posix_env());
  for (const std::uint64_t at : {12U, 30U})
    host.inject({.operation = Operation::read, .path_contains = "train.txt", .at = at, .reason = EIO});
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, {.host_of = {{1, &host}}}), 0);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, ARankThatAloneCannotReadLeavesAndTheOthersGoOn) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.host_of = {{1, &host}}};
  trouble.before_step = [&](int rank, int steps) {
    if (rank == 1 && steps == 5)
      disk.inject(
          {.operation = Operation::read, .path_contains = "train.txt", .for_ever = true, .reason = ESTALE});
  };
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, trouble), 1);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, WhereNoRankCanReadTheRunEndsToBeStartedAgain) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.machine = &host};
  std::atomic<bool> broken = false;
  trouble.before_step = [&](int, int steps) {
    if (steps == 5 && !broken.exchange(true))
      disk.inject(
          {.operation = Operation::read, .path_contains = "train.txt", .for_ever = true, .reason = EIO});
  };
  EXPECT_EQ(train_until(ExitCode::communication,
                        {.run = "a", .ranks = 2, .overrides = {"checkpoint.every_steps=2"}}, trouble),
            0);
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 2}, {}), 0);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, AHostWithoutTheDataIsLeftOutOfTheFirstStart) {
  const std::string end = reference();
  UnfitHost host(posix_env());
  host.lacks_data = true;
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, {.host_of = {{0, &host}}}), 1);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, DataThatAreNowhereEndTheFirstStartAtOnce) {
  UnfitHost host(posix_env());
  host.lacks_data = true;
  EXPECT_EQ(train_until(ExitCode::data, {.run = "a", .ranks = 2}, {.machine = &host}), 0);
  EXPECT_FALSE(posix_env().status(run_directory("a"))->exists) << "a start that is refused leaves nothing";
}

TEST_F(UnfitTest, DataThatTheRunHasReadBeforeAreWaitedFor) {
  const std::string end = reference();
  ASSERT_EQ(train({.run = "a", .ranks = 2, .stop_after_steps = 8}).code, ExitCode::saved);
  UnfitHost host(posix_env());
  host.lacks_data = true;
  const Launch resumed{.run = "a", .ranks = 2, .overrides = {"elastic.input_timeout=60s"}};
  const std::unique_ptr<Thread> mounts = posix_env()
                                             .start_thread("mount",
                                                           [&] {
                                                             posix_env().sleep_us(700'000);
                                                             host.lacks_data = false;
                                                           })
                                             .value();
  EXPECT_EQ(train_until(ExitCode::done, resumed, {.machine = &host}), 0);
  mounts->wait();
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, DataThatDoNotComeBackAreNoReasonToGiveUpForGood) {
  ASSERT_EQ(train({.run = "a", .ranks = 2, .stop_after_steps = 8}).code, ExitCode::saved);
  UnfitHost host(posix_env());
  host.lacks_data = true;
  const Launch resumed{.run = "a", .ranks = 2, .overrides = {"elastic.input_timeout=5s"}};
  EXPECT_EQ(train_until(ExitCode::communication, resumed, {.machine = &host}), 0);
  EXPECT_NE(message_.find("train.txt"), std::string::npos) << message_;
}

TEST_F(UnfitTest, ACheckpointThatFailsToBeReadForAMomentCounts) {
  const std::string end = reference();
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  FaultyEnv disk(posix_env());
  disk.inject({.operation = Operation::read, .path_contains = "step-00000008/", .reason = EIO});
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 2}, {.machine = &disk}), 0);
  EXPECT_EQ(disk.failure_count(), 1U);
  EXPECT_EQ(resumed_from("a"), 8U) << "no work is made again for a read that fails once";
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, WhereTheNewestCheckpointCannotBeReadAnOlderOneCounts) {
  const std::string end = reference();
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  disk.inject(
      {.operation = Operation::read, .path_contains = "step-00000008/", .for_ever = true, .reason = EIO});
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 2}, {.machine = &host}), 0);
  EXPECT_EQ(resumed_from("a"), 4U) << "no rank leaves for what no rank can read";
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, WhereNoCheckpointCanBeReadTheRunEndsToBeStartedAgain) {
  const std::string end = reference();
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  disk.inject(
      {.operation = Operation::read, .path_contains = "checkpoints/", .for_ever = true, .reason = EIO});
  const Launch resumed{.run = "a", .ranks = 2, .overrides = {"elastic.input_timeout=5s"}};
  EXPECT_EQ(train_until(ExitCode::communication, resumed, {.machine = &host}), 0);
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 2}, {}), 0);
  EXPECT_EQ(digest("a"), end);
}

// In a start and in a recovery: a rank of two, and of the two that a death has left.
TEST_F(UnfitTest, ARankThatAloneCannotReadCheckpointsLeavesAndTheOthersGoOn) {
  const std::string end = reference();
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  UnfitHost host(posix_env());
  const Launch resumed{.run = "a", .ranks = 2, .faults = "load.read:1=error:EIO:always"};
  EXPECT_EQ(train_until(ExitCode::done, resumed, {.host_of = {{1, &host}}}), 1);
  EXPECT_EQ(resumed_from("a"), 8U);
  EXPECT_EQ(digest("a"), end);
  const Launch dies{.run = "b",
                    .ranks = 3,
                    .overrides = {"checkpoint.every_steps=4", "checkpoint.ram_every_steps=0"},
                    .faults = "step.begin@17:2=kill,load.read:1=error:EIO:always"};
  EXPECT_EQ(train_until(ExitCode::done, dies, {.host_of = {{1, &host}}}), 2);
  EXPECT_EQ(digest("b"), end);
}

TEST_F(UnfitTest, ARunEndsForAPersonWhereItsInputsAreWrongEverywhere) {
  const std::string path = run_directory("train.txt");
  ASSERT_TRUE(posix_env().replace_text(path, "too short").ok());
  EXPECT_EQ(train_until(ExitCode::data, {.run = "a", .ranks = 2}, {}), 0);
}

}  // namespace
}  // namespace holdfast
