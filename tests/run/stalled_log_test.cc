// A log disk that stalls without an error, as a shared file system does while its server is
// replaced; and the disk of the whole run directory.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <set>

#include "runtime/core/json.h"
#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

// Appends to files whose path contains a word stall from the at-th on, until they are let go.
class StallingEnv final : public ForwardingEnv {
 public:
  StallingEnv(std::string word, int at) : ForwardingEnv(posix_env()), word_(std::move(word)), at_(at) {}

  Result<void> append_line(const std::string& path, std::string_view line) override {
    if (path.find(word_) != std::string::npos) {
      std::unique_lock guard(mutex_);
      if (++appended_ >= at_) ++stalled_;
      changed_.wait(guard, [this] { return appended_ < at_ || let_go_; });
    }
    return inner().append_line(path, line);
  }
  void let_go() {
    const std::lock_guard guard(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }
  int stalled() {
    const std::lock_guard guard(mutex_);
    return stalled_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string word_;
  int at_;
  int appended_ = 0, stalled_ = 0;
  bool let_go_ = false;
};

// Env on whose disk nothing below `directory` can be changed between stall() and let_go().
class FrozenDiskEnv final : public ForwardingEnv {
 public:
  explicit FrozenDiskEnv(std::string directory)
      : ForwardingEnv(posix_env()), directory_(std::move(directory)) {}

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (mode != OpenMode::read && mode != OpenMode::read_direct) wait(path);
    return inner().open(path, mode);
  }
  Result<void> make_directories(const std::string& path) override {
    wait(path);
    return inner().make_directories(path);
  }
  Result<void> rename(const std::string& source, const std::string& target) override {
    wait(target);
    return inner().rename(source, target);
  }
  Result<void> remove(const std::string& path) override {
    wait(path);
    return inner().remove(path);
  }
  Result<void> append_line(const std::string& path, std::string_view line) override {
    wait(path);
    return inner().append_line(path, line);
  }
  void stall() {
    const std::lock_guard guard(mutex_);
    stalled_ = true;
  }
  void let_go() {
    const std::lock_guard guard(mutex_);
    stalled_ = false;
    changed_.notify_all();
  }
  // Those that were to be changed meanwhile; `waited_out`: and were not let go.
  std::set<std::string> touched() {
    const std::lock_guard guard(mutex_);
    return touched_;
  }
  std::set<std::string> waited_out() {
    const std::lock_guard guard(mutex_);
    return waited_out_;
  }

 private:
  void wait(const std::string& path) {
    if (!path.starts_with(directory_)) return;
    std::unique_lock guard(mutex_);
    if (stalled_) touched_.insert(path);
    constexpr std::chrono::seconds much_longer_than_all_steps(20);
    if (!changed_.wait_for(guard, much_longer_than_all_steps, [this] { return !stalled_; }))
      waited_out_.insert(path);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string directory_;
  bool stalled_ = false;
  std::set<std::string> touched_, waited_out_;
};

class StalledLogTest : public RecoveryTest {
 protected:
  std::vector<int> steps_of(const std::string& text) {
    std::vector<int> steps;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line);
      if (!event.contains("event") || event["event"] == "step") steps.push_back(event["step"].get<int>());
    }
    return steps;
  }
  std::vector<int> all_steps() {
    std::vector<int> steps(20);
    std::iota(steps.begin(), steps.end(), 1);
    return steps;
  }
};

// Let go by the last step, which a training thread that waits for the disk never comes to.
TEST_F(StalledLogTest, DelaysNewsAndNeverAStep) {
  const std::string end = reference();
  for (const char* file : {"events.jsonl", "ledger-00001"}) {
    SCOPED_TRACE(file);
    StallingEnv machine(file, 3);
    const std::string run = fmt::format("stalled-{}", file);
    EXPECT_EQ(survive({.run = run, .ranks = 2, .overrides = {"data.ledger=true", "checkpoint.every_steps=5"}},
                      {.before_step =
                           [&](int, int steps_begun) {
                             if (steps_begun == 20) machine.let_go();
                           },
                       .machine = &machine}),
              0);
    EXPECT_GT(machine.stalled(), 0);
    EXPECT_EQ(digest(run), end);
    const RunPaths paths{run_directory(run)};
    EXPECT_EQ(steps_of(posix_env().read_text(paths.events()).value()), all_steps());
    for (int rank : {0, 1})
      EXPECT_EQ(steps_of(posix_env().read_text(paths.ledger(rank)).value()), all_steps());
    EXPECT_EQ(events(run, "finish").size(), 1U);
  }
}

// No step of any rank waits, also not one that is saved.
TEST_F(StalledLogTest, AFrozenDiskDelaysNoStep) {
  const std::string end = reference();
  const RunPaths paths{run_directory("frozen")};
  FrozenDiskEnv machine(paths.directory);
  EXPECT_EQ(survive({.run = "frozen", .ranks = 2, .overrides = {"checkpoint.every_steps=12"}},
                    {.before_step =
                         [&](int, int steps_begun) {
                           if (steps_begun == 1) machine.stall();
                           if (steps_begun == 20) machine.let_go();
                         },
                     .machine = &machine}),
            0);
  EXPECT_THAT(machine.touched(), testing::Contains(paths.events()));
  EXPECT_THAT(machine.waited_out(), testing::IsEmpty());
  EXPECT_EQ(digest("frozen"), end);
  EXPECT_EQ(steps_of(posix_env().read_text(paths.events()).value()), all_steps());
}

// A rank dies meanwhile, and those that are left recover beside it.
TEST_F(StalledLogTest, DelaysNoRecovery) {
  const std::string end = reference();
  StallingEnv machine("events.jsonl", 5);
  EXPECT_EQ(survive({.run = "healed",
                     .ranks = 3,
                     .overrides = {"checkpoint.ram_every_steps=1"},
                     .faults = "step.before_vote@8:2=kill"},
                    {.before_step =
                         [&](int rank, int steps_begun) {
                           if (rank == 0 && steps_begun >= 20) machine.let_go();
                         },
                     .machine = &machine}),
            1);
  EXPECT_EQ(digest("healed"), end);
  EXPECT_EQ(events("healed", "fault").size(), 1U);
  EXPECT_EQ(events("healed", "recovery").size(), 1U);
  EXPECT_EQ(events("healed", "finish").size(), 1U);
}

}  // namespace
}  // namespace holdfast::test
