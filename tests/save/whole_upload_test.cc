// checkpoint.upload_command: what is run for which checkpoint, and what a failure does.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

#include "parallel/comm/rank_sum.h"
#include "parallel/local/local_communicator.h"
#include "runtime/save/uploads.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/temporary_directory.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Its commands end when the test lets them, as the test says.
class HeldCommands final : public ForwardingEnv {
 public:
  HeldCommands() : ForwardingEnv(posix_env()) {}
  Result<CommandEnd> run_command(const Command& command) override {
    std::unique_lock lock(mutex_);
    steps_.push_back(command.variables.at("HOLDFAST_STEP"));
    changed_.notify_all();
    changed_.wait(lock, [&] { return !codes_.empty() || command.cancelled->load(); });
    if (codes_.empty()) return CommandEnd{.how = CommandEnd::How::cancelled, .output = {}};
    const int code = codes_.front();
    codes_.erase(codes_.begin());
    return CommandEnd{.code = code, .output = "no route\nto host\n"};
  }
  void let_end(int code) {
    const std::scoped_lock lock(mutex_);
    codes_.push_back(code);
    changed_.notify_all();
  }
  // Blocks until so many commands have begun.
  std::vector<std::string> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return steps_.size() >= count; });
    return steps_;
  }
  void wake() { changed_.notify_all(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> steps_;
  std::vector<int> codes_;
};

class WholeUploadTest : public testing::Test {
 protected:
  Config config() const {
    Config config;
    config.run.directory = directory_.path();
    config.checkpoint.upload_command = "x";
    config.checkpoint.upload_timeout_ms = 1000;
    return config;
  }
  void publish(std::initializer_list<std::uint64_t> steps) {
    for (const std::uint64_t step : steps) {
      Manifest manifest;
      manifest.run_id = std::string(32, 'a');
      manifest.step = step;
      ASSERT_TRUE(store_.begin_save(step).ok());
      ASSERT_TRUE(store_.publish(manifest).ok());
    }
  }
  // Votes as the steps of a run of one rank do, until all is over.
  std::vector<UploadReport> wait_until_idle() {
    EXPECT_TRUE(uploads_.finish(*alone_.front(), Waiter(posix_env(), 60'000), [] {}).ok());
    EXPECT_FALSE(uploads_.busy());
    return uploads_.take_reports();
  }
  TemporaryDirectory directory_;
  FaultPoints faults_;
  HeldCommands env_;
  CheckpointStore store_{posix_env(), faults_, directory_.path()};
  const Config config_ = config();
  std::vector<std::unique_ptr<Communicator>> alone_ = make_local_communicators(1);
  Uploads uploads_{
      {.env = env_, .faults = faults_, .store = store_, .config = config_, .retry_after_ms = {1, 1}}};
};

TEST_F(WholeUploadTest, OnlyTheNewestWaitsWhileOneIsUnderWay) {
  publish({10, 20, 30, 40});
  uploads_.offer(10);
  env_.wait_for(1);
  for (const std::uint64_t step : {20U, 30U, 40U}) uploads_.offer(step);
  EXPECT_TRUE(uploads_.busy());
  env_.let_end(0);
  env_.let_end(0);
  const std::vector<UploadReport> reports = wait_until_idle();
  EXPECT_THAT(env_.wait_for(2), ElementsAre("10", "40"));
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_TRUE(reports[0].outcome.ok() && reports[1].outcome.ok());
  EXPECT_EQ(reports[1].step, 40U);
}

TEST_F(WholeUploadTest, WhatWaitsForItsTurnIsNotRemoved) {
  publish({10, 20, 30, 40});
  uploads_.offer(10);
  env_.wait_for(1);
  uploads_.offer(20);
  ASSERT_TRUE(store_.retain(1).ok());
  const auto is_there = [&](std::uint64_t step) {
    return posix_env().status(store_.checkpoint_directory(step))->exists;
  };
  EXPECT_TRUE(is_there(10) && is_there(20) && is_there(40));
  EXPECT_FALSE(is_there(30));
  env_.let_end(0);
  env_.let_end(0);
  EXPECT_EQ(wait_until_idle().size(), 2U);
  ASSERT_TRUE(store_.retain(1).ok());
  EXPECT_FALSE(is_there(10) || is_there(20));
}

TEST_F(WholeUploadTest, AFailureIsTriedAgainAndThenGivenUp) {
  publish({10, 20});
  uploads_.offer(10);
  env_.let_end(1);
  env_.let_end(0);
  std::vector<UploadReport> reports = wait_until_idle();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_TRUE(reports[0].outcome.ok());
  EXPECT_EQ(reports[0].attempts, 2);

  uploads_.offer(20);
  for (const int code : {1, 1, 5}) env_.let_end(code);
  reports = wait_until_idle();
  ASSERT_EQ(reports.size(), 1U);
  ASSERT_FALSE(reports[0].outcome.ok());
  EXPECT_EQ(reports[0].attempts, 3);
  EXPECT_EQ(reports[0].outcome.error().message,
            "checkpoint.upload_command ended with exit code 5 (attempt 3)");
  EXPECT_EQ(reports[0].printed, "no route to host");
}

TEST_F(WholeUploadTest, CancellingKillsWhatIsUnderWayAndLeavesTheRest) {
  publish({10, 20});
  uploads_.offer(10);
  env_.wait_for(1);
  uploads_.offer(20);
  std::jthread waker([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      env_.wake();
      posix_env().sleep_us(1000);
    }
  });
  uploads_.cancel();
  const std::vector<UploadReport> reports = wait_until_idle();
  EXPECT_EQ(env_.wait_for(1).size(), 1U) << "the second command was not even begun";
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_THAT(reports[0].outcome.error().message, HasSubstr("was killed, because the run ends"));
  EXPECT_THAT(reports[1].outcome.error().message, HasSubstr("the run ends"));
}

class UploadingTest : public TrainingTest {};

// By a real shell: every checkpoint is somewhere else when the run is done, and usable there.
TEST_F(UploadingTest, TheRunIsDoneWhenItsLastCheckpointIsThere) {
  const std::string target = run_directory("elsewhere");
  ASSERT_TRUE(posix_env().make_directories(target).ok());
  const RunEnd end = train({.run = "run",
                            .ranks = 2,
                            .overrides = {"checkpoint.every_steps=2", "checkpoint.keep=1",
                                          "checkpoint.upload_command=cp -r \"$HOLDFAST_CHECKPOINT\" \"" +
                                              target + "/$HOLDFAST_STEP\""}});
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  const std::vector<std::string> there = posix_env().list(target).value();
  EXPECT_THAT(there, testing::Contains("20"));
  for (const std::string& step : there) {
    Result<Checkpoint> copy = Checkpoint::open(posix_env(), target + "/" + step);
    ASSERT_TRUE(copy.ok()) << copy.error().message;
    EXPECT_TRUE(copy->verify().ok());
  }
}

// What cannot be uploaded stays, and training ends as if nothing had been.
TEST_F(UploadingTest, AFailureEndsNothing) {
  const RunEnd end = train(
      {.run = "run", .ranks = 2, .overrides = {"checkpoint.upload_command=exit 3", "training.steps=5"}});
  ASSERT_EQ(end.code, ExitCode::done) << end.message;
  const std::string events = posix_env().read_text(run_directory("run") + "/events.jsonl").value();
  EXPECT_THAT(events, HasSubstr(R"("what":"upload")"));
  EXPECT_THAT(events, HasSubstr("ended with exit code 3"));
}

}  // namespace
}  // namespace holdfast::test
