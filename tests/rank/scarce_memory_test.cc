// Runs on a machine with too little memory: of a machine that is an Env double, so that every number is
// exact.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <atomic>
#include <set>

#include "checkpoint/ram_tier.h"
#include "runtime/core/json.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/os/machine_facts.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"
#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Has so much memory, of which others hold some, and shared memory that counts as taken. What ranks allocate
// for themselves does not: when they ask, they hold none but what they take again, which is not asked for.
class ScarceMachine final : public ForwardingEnv {
 public:
  ScarceMachine() : ForwardingEnv(posix_env()) {}

  std::atomic<std::uint64_t> total_bytes = std::uint64_t{1} << 40;
  std::atomic<std::uint64_t> shared_limit_bytes = std::uint64_t{1} << 40;
  std::atomic<std::uint64_t> held_bytes = 0;           // by others
  std::atomic<std::int64_t> looks_until_release = -1;  // of any rank; then they give it back; -1: never
  std::atomic<std::uint64_t> max_shared_bytes = 0;

  Result<std::string> read_text(const std::string& path) override {
    if (path.starts_with("/sys/fs/cgroup") || path.starts_with("/proc/self/"))
      return fail(ExitCode::config, "no groups");
    if (path != "/proc/meminfo") return inner().read_text(path);
    const std::uint64_t taken = std::min<std::uint64_t>(total_bytes, shared_bytes() + held_now());
    return fmt::format("MemTotal: {} kB\nMemAvailable: {} kB\n", total_bytes / 1024,
                       (total_bytes - taken) / 1024);
  }
  Result<std::uint64_t> free_bytes(const std::string& path) override {
    if (path != shared_memory_directory) return inner().free_bytes(path);
    return shared_limit_bytes - std::min<std::uint64_t>(shared_limit_bytes, shared_bytes());
  }
  Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string& name,
                                                             std::uint64_t bytes) override {
    const std::lock_guard guard(mutex_);
    const std::uint64_t sum = shared_bytes_locked() + bytes;
    if (sum > shared_limit_bytes) return fail(ExitCode::does_not_fit, "shared memory is full");
    HF_TRY(std::unique_ptr<SharedMemory> memory, inner().create_shared_memory(name, bytes));
    shared_.insert(name);
    max_shared_bytes = std::max<std::uint64_t>(max_shared_bytes, sum);
    return memory;
  }
  // As a rank does that takes over a slot of an earlier epoch.
  Result<void> rename(const std::string& source, const std::string& target) override {
    const std::lock_guard guard(mutex_);
    HF_TRY_VOID(inner().rename(source, target));
    const auto name_of = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
    if (source.starts_with(shared_memory_directory) && shared_.erase(name_of(source)) > 0)
      shared_.insert(name_of(target));
    return {};
  }
  Result<void> remove_shared_memory(const std::string& name) override {
    const std::lock_guard guard(mutex_);
    shared_.erase(name);
    return inner().remove_shared_memory(name);
  }

 private:
  std::uint64_t held_now() {
    if (looks_until_release > 0 && --looks_until_release == 0) held_bytes = 0;
    return held_bytes;
  }
  std::uint64_t shared_bytes() {
    const std::lock_guard guard(mutex_);
    return shared_bytes_locked();
  }
  // As the files are now: they change their lengths.
  std::uint64_t shared_bytes_locked() {
    std::uint64_t sum = 0;
    for (const std::string& name : shared_) {
      const Result<FileStatus> status = inner().status(shared_memory_path(name));
      if (status.ok() && status->exists) sum += status->bytes;
    }
    return sum;
  }

  std::mutex mutex_;
  std::set<std::string> shared_;  // names
};

struct PlannedBytes {
  std::uint64_t own = 0, shared = 0, snapshots = 0;  // of all ranks; snapshots: one slot of each
};

class ScarceMemoryTest : public RecoveryTest {
 protected:
  void SetUp() override {
    if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
      GTEST_SKIP() << removal;
  }

  // What the ranks of a launch plan, as `holdfast plan` would say it, or the first `counted` of them.
  PlannedBytes planned(const Launch& launch, int ranks, std::optional<int> counted = {}) {
    std::vector<std::string> arguments;
    for (const std::string& line : launch.overrides) arguments.push_back("--" + line);
    Config config =
        load_config_text(machine_, config_text(launch), "test.toml", *parse_overrides(arguments))->config;
    config.device = "cpu";
    const Result<std::shared_ptr<DataSet>> data =
        DataSet::open(machine_, config.data.sources, config.training.sequence_length, data_options(config));
    EXPECT_TRUE(resolve_with_data(config, launch.ranks, **data).ok());
    PlannedBytes sum;
    for (int rank = 0; rank < counted.value_or(ranks); ++rank) {
      FaultPoints faults;
      AbsentPeers peers(rank, ranks);
      PlannedDevice device({});
      const Result<std::unique_ptr<Worker>> worker =
          Worker::plan({.rank = {{.env = machine_, .faults = faults, .communicator = peers},
                                 device,
                                 config,
                                 mesh_of(config, ranks)},
                        .data = nullptr});
      EXPECT_TRUE(worker.ok());
      sum.own += (*worker)->memory_plan().total_bytes();
      sum.shared += (*worker)->state_view().snapshots.shared_bytes();
      sum.snapshots += (*worker)->state_view().snapshots.bytes();
    }
    return sum;
  }

  // What it says is in told_.
  std::vector<std::optional<RunEnd>> train_scarcely(const Launch& launch, Trouble trouble = {}) {
    trouble.machine = &machine_;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    std::vector<std::optional<RunEnd>> ends = train_all(launch, trouble);
    reported_ = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    return ends;
  }
  // All that live end with this.
  void expect_end(const std::vector<std::optional<RunEnd>>& ends, ExitCode code, int deaths) {
    int dead = 0;
    for (const std::optional<RunEnd>& end : ends) {
      if (end.has_value()) {
        EXPECT_EQ(end->code, code) << end->message;
      } else {
        ++dead;
      }
    }
    EXPECT_EQ(dead, deaths);
  }
  static Launch with_snapshots(const std::string& run, int ranks, const std::string& faults = {}) {
    return {.run = run,
            .ranks = ranks,
            .overrides = {"checkpoint.ram_every_steps=1", "checkpoint.every_steps=0", "elastic.grow=off",
                          "elastic.memory_timeout=500ms"},
            .faults = faults};
  }
  // A kB more than these, because a machine says what it has in whole ones.
  static std::uint64_t rounded_up(std::uint64_t bytes) { return (bytes / 1024 + 1) * 1024; }

  ScarceMachine machine_;
  std::string reported_;
};

TEST_F(ScarceMemoryTest, MemoryThatTheDeadStillHoldIsWaitedFor) {
  const std::string end = reference();
  Launch launch = with_snapshots("late", 3, "step.before_vote@8:2=kill");
  launch.overrides.back() = "elastic.memory_timeout=60s";
  Trouble trouble;
  trouble.before_death = [&](int) {
    machine_.held_bytes = machine_.total_bytes.load();
    machine_.looks_until_release = 8;
  };
  expect_end(train_scarcely(launch, trouble), ExitCode::done, 1);
  EXPECT_THAT(reported_, HasSubstr("waits up to 1m for memory that other processes hold"));
  EXPECT_THAT(reported_, HasSubstr("there was memory after "));
  EXPECT_THAT(reported_, Not(HasSubstr("no RAM snapshots")));
  EXPECT_EQ(events("late", "recovery").front()["resumed_from"], "ram");
  EXPECT_EQ(digest("late"), end);
}

TEST_F(ScarceMemoryTest, WhereOnlyFewerTiersFitTheRunGoesOnWithThem) {
  const std::string end = reference();
  const Launch launch = with_snapshots("tiers", 3, "step.before_vote@8:2=kill");
  const PlannedBytes two = planned(launch, 2), kept = planned(launch, 3, 2);
  const std::uint64_t new_own = two.own - std::min(two.own, kept.own);
  Trouble trouble;
  trouble.before_death = [&](int) {  // for ever
    machine_.held_bytes = machine_.total_bytes - rounded_up(new_own + 2 * two.snapshots + two.snapshots / 2);
  };
  expect_end(train_scarcely(launch, trouble), ExitCode::done, 1);
  EXPECT_THAT(reported_, HasSubstr("no RAM snapshots: host "));
  EXPECT_THAT(
      reported_,
      HasSubstr("with them. A process that is lost costs the steps since the newest checkpoint on disk"));
  EXPECT_EQ(events("tiers", "recovery").front()["resumed_from"], "ram");
  // The old snapshots are on the disk and gone.
  EXPECT_GE(events("tiers", "checkpoint").size(), 2U);
  EXPECT_EQ(digest("tiers"), end);
}

TEST_F(ScarceMemoryTest, WhereOnlyFewerRanksFitTheOthersStepAside) {
  const std::string end = reference();
  const Launch launch = with_snapshots("ranks", 3);
  const PlannedBytes two = planned(launch, 2), three = planned(launch, 3);
  ASSERT_LT(two.own + two.snapshots, three.own + three.snapshots);
  machine_.held_bytes = machine_.total_bytes - rounded_up(two.own + two.snapshots);
  expect_end(train_scarcely(launch), ExitCode::done, 0);
  EXPECT_THAT(reported_, HasSubstr("2 of 3 copies of the model go on: there is not enough memory"));
  EXPECT_EQ(digest("ranks"), end);
}

TEST_F(ScarceMemoryTest, WhereNothingFitsAtTheMomentTheRunIsToBeStartedAgain) {
  Launch launch = with_snapshots("full", 2);
  launch.overrides.emplace_back("elastic.min_data_parallel=2");
  machine_.held_bytes = machine_.total_bytes - 100'000;
  const std::vector<std::optional<RunEnd>> ends = train_scarcely(launch);
  expect_end(ends, ExitCode::communication, 0);
  EXPECT_THAT(ends.front()->message, HasSubstr("other processes still hold the rest after 500ms"));
  EXPECT_THAT(reported_, HasSubstr("waits up to 500ms"));
}

TEST_F(ScarceMemoryTest, ARunThatHadBegunIsNeverTooLarge) {
  Launch launch = with_snapshots("begun", 3, "step.before_vote@8:2=kill");
  Trouble trouble;
  trouble.before_death = [&](int) { machine_.total_bytes = 100'000; };
  expect_end(train_scarcely(launch, trouble), ExitCode::communication, 1);
}

TEST_F(ScarceMemoryTest, WhatWouldFitNoEmptyMachineIsTooLargeAtOnce) {
  machine_.total_bytes = 100'000;
  const std::vector<std::optional<RunEnd>> ends = train_scarcely(with_snapshots("large", 2));
  expect_end(ends, ExitCode::does_not_fit, 0);
  EXPECT_THAT(ends.front()->message, HasSubstr("does not fit"));
  EXPECT_THAT(reported_, Not(HasSubstr("waits")));
}

// As a container's /dev/shm of 64 MiB for a model of some size.
TEST_F(ScarceMemoryTest, SharedMemoryThatIsTooSmallTurnsTheTierOff) {
  const std::string end = reference();
  const Launch launch = with_snapshots("small", 2, "step.before_vote@8:1=kill");
  machine_.shared_limit_bytes = planned(launch, 2).shared - 1;
  expect_end(train_scarcely(launch), ExitCode::done, 1);
  EXPECT_THAT(reported_, HasSubstr("no RAM snapshots: /dev/shm of host "));
  EXPECT_THAT(reported_, Not(HasSubstr("waits")));
  EXPECT_EQ(digest("small"), end);
}

// Memory and shared memory of exactly the plan: what is there of the older snapshots counts once, and nothing
// of it is given up.
TEST_F(ScarceMemoryTest, ExactlyThePlanIsEnoughForThreeDeathsAndARestart) {
  const std::string end = reference();
  Launch launch = with_snapshots(
      "exact", 4,
      "step.before_vote@6:3=kill,step.before_vote@9:2=kill,step.begin@12:0=kill,step.begin@12:1=kill");
  const PlannedBytes four = planned(launch, 4);
  machine_.total_bytes = rounded_up(four.own + four.shared);
  machine_.shared_limit_bytes = four.shared;
  expect_end(train_scarcely(launch), ExitCode::done, 4);
  EXPECT_THAT(reported_, Not(HasSubstr("no RAM snapshots")));
  EXPECT_THAT(reported_, Not(HasSubstr("waits up to")));
  EXPECT_GE(events("exact", "recovery").size(), 2U);
  launch.faults = "step.before_vote@3:1=kill";
  expect_end(train_scarcely(launch), ExitCode::done, 1);
  EXPECT_THAT(reported_, Not(HasSubstr("no RAM snapshots")));
  EXPECT_THAT(reported_, Not(HasSubstr("waits up to")));
  const std::vector<Json> starts = events("exact", "start");
  ASSERT_EQ(starts.size(), 2U);
  EXPECT_EQ(starts.back()["resumed_from"], "ram");
  EXPECT_EQ(machine_.max_shared_bytes, four.shared);
  EXPECT_EQ(digest("exact"), end);
}

}  // namespace
}  // namespace holdfast::test
