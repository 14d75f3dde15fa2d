// Runs that die and are resumed from the snapshots that they left in shared memory.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "checkpoint/ram_tier.h"
#include "runtime/core/json.h"
#include "runtime/os/shared_memory_facts.h"
#include "tests/train/training_fixture.h"

namespace holdfast {
namespace {

class RamResumeTest : public TrainingTest {
 protected:
  void SetUp() override {
    if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
      GTEST_SKIP() << removal;
  }
  ~RamResumeTest() override {
    for (const std::string& run : runs_)
      static_cast<void>(remove_snapshots(posix_env(), digest_of_run(run)).ok());
  }
  Digest digest_of_run(const std::string& run) const {
    const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(run)}.run_id());
    return digest_of(id.ok() ? *id : "none");
  }
  std::vector<FoundSnapshot> snapshots(const std::string& run, Env& env = posix_env()) const {
    return list_snapshots(env, digest_of_run(run));
  }
  // Ends in the middle of this step, as a run does whose data cannot be read any more.
  void train_until(int step, Launch launch) {
    launch.data_ends_in_step = step;
    launch.overrides.insert(launch.overrides.begin(), "checkpoint.ram_every_steps=2");
    runs_.push_back(launch.run);
    testing::internal::CaptureStderr();
    const RunEnd end = train(launch);
    static_cast<void>(testing::internal::GetCapturedStderr());
    ASSERT_EQ(end.code, ExitCode::communication);
  }
  // To its end; how it says that it has resumed.
  std::string resume(Launch launch, Env& machine = posix_env()) {
    launch.overrides.insert(launch.overrides.begin(), "checkpoint.ram_every_steps=2");
    testing::internal::CaptureStderr();
    const RunEnd end = train(launch, machine);
    reported_ = testing::internal::GetCapturedStderr();
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    std::string resumed = "not";
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(launch.run)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line);
      if (event["event"] == "start" && event.contains("resumed_from"))
        resumed = fmt::format("{} {}", event["resumed_from"].get<std::string>(),
                              event["resumed_from_step"].get<int>());
    }
    EXPECT_TRUE(snapshots(launch.run).empty()) << "left behind";
    return resumed;
  }
  std::string reference() {
    EXPECT_EQ(train({.run = "reference"}).code, ExitCode::done);
    return digest("reference");
  }

  std::vector<std::string> runs_;
  std::string reported_;
};

TEST_F(RamResumeTest, GoesOnFromTheNewestSnapshotInAnyLayout) {
  const std::string end = reference();
  for (const int ranks : {1, 2, 3}) {
    const std::string run = fmt::format("killed-{}", ranks);
    train_until(9, {.run = run, .ranks = 2, .overrides = {"checkpoint.every_steps=5"}});
    EXPECT_FALSE(snapshots(run).empty());
    EXPECT_THAT(resume({.run = run, .ranks = ranks}), testing::AnyOf("ram 6", "ram 8"));
    EXPECT_EQ(digest(run), end);
  }
}

// The disk has nothing yet.
TEST_F(RamResumeTest, NeedsNoCheckpoint) {
  const std::string end = reference();
  train_until(6, {.run = "early", .ranks = 2});
  EXPECT_EQ(resume({.run = "early", .ranks = 2}), "ram 4");
  EXPECT_EQ(digest("early"), end);
}

TEST_F(RamResumeTest, GoesOnFromASnapshotThatWasDueByMeasurement) {
  const std::string end = reference();
  const std::vector<std::string> automatic = {"checkpoint.ram_every_steps=auto"};
  train_until(9, {.run = "measured", .ranks = 2, .overrides = automatic});
  EXPECT_THAT(resume({.run = "measured", .ranks = 1, .overrides = automatic}), testing::StartsWith("ram "));
  EXPECT_EQ(digest("measured"), end);
}

TEST_F(RamResumeTest, ADamagedSnapshotIsPassedOver) {
  const std::string end = reference();
  train_until(9, {.run = "damaged", .ranks = 2, .overrides = {"checkpoint.every_steps=5"}});
  for (const FoundSnapshot& found : snapshots("damaged")) {
    const Result<std::unique_ptr<SharedMemory>> memory = posix_env().open_shared_memory(found.name);
    ASSERT_TRUE(memory.ok());
    (*memory)->bytes()[5000] ^= std::byte{4};
  }
  EXPECT_EQ(resume({.run = "damaged", .ranks = 2}), "disk 5");
  EXPECT_THAT(reported_, testing::HasSubstr("RAM snapshot skipped"));
  EXPECT_THAT(reported_, testing::HasSubstr("wrong checksum"));
  EXPECT_EQ(digest("damaged"), end);
}

// Rank 0 has read its part when rank 1 finds the damage.
TEST_F(RamResumeTest, ADamagedSnapshotLeavesNothingBehind) {
  const std::string end = reference();
  train_until(9, {.run = "alone", .ranks = 2});
  for (const FoundSnapshot& found : snapshots("alone")) {
    if (found.identity.rank == 0) continue;
    const Result<std::unique_ptr<SharedMemory>> memory = posix_env().open_shared_memory(found.name);
    ASSERT_TRUE(memory.ok());
    (*memory)->bytes()[5000] ^= std::byte{4};
  }
  EXPECT_EQ(resume({.run = "alone", .ranks = 2}), "not") << "there is nothing on the disk";
  EXPECT_THAT(reported_, testing::HasSubstr("RAM snapshot skipped"));
  EXPECT_EQ(digest("alone"), end);
}

TEST_F(RamResumeTest, ASnapshotWithAMissingPartIsNoSnapshot) {
  const std::string end = reference();
  train_until(9, {.run = "partial", .ranks = 2, .overrides = {"checkpoint.every_steps=5"}});
  for (const FoundSnapshot& found : snapshots("partial")) {
    if (found.identity.rank != 1) continue;
    ASSERT_TRUE(posix_env().remove_shared_memory(found.name).ok());
  }
  EXPECT_EQ(resume({.run = "partial", .ranks = 2}), "disk 5");
  EXPECT_EQ(digest("partial"), end);
}

// On another host there is only the disk.
TEST_F(RamResumeTest, AnotherHostUsesTheDisk) {
  const std::string end = reference();
  train_until(9,
              {.run = "moved", .ranks = 2, .overrides = {"checkpoint.every_steps=5"}, .hosts = {"a", "a"}});
  EXPECT_EQ(resume({.run = "moved", .ranks = 2, .hosts = {"b", "b"}}), "disk 5");
  EXPECT_EQ(digest("moved"), end);
}

// Two hosts with the parts that their ranks need, and ranks that find it on the other one.
TEST_F(RamResumeTest, RanksGetWhatTheyNeedFromTheHostThatHasIt) {
  const std::string end = reference();
  const Launch launch{.run = "hosts",
                      .ranks = 2,
                      .overrides = {"checkpoint.every_steps=5", "checkpoint.replicas=off"},
                      .hosts = {"a", "b"}};
  train_until(9, launch);
  EXPECT_THAT(resume(launch), testing::AnyOf("ram 6", "ram 8"));
  EXPECT_EQ(digest("hosts"), end);
  Launch swapped = launch;
  swapped.run = "swapped";
  train_until(9, swapped);
  swapped.hosts = {"b", "a"};
  EXPECT_THAT(resume(swapped), testing::AnyOf("ram 6", "ram 8"));
  EXPECT_EQ(digest("swapped"), end);
}

// Every rank needs the part that the other's host has, and does not look into its own.
TEST_F(RamResumeTest, ADamagedPartIsNotSent) {
  const std::string end = reference();
  Launch launch{.run = "unsound",
                .ranks = 2,
                .overrides = {"checkpoint.every_steps=5", "checkpoint.replicas=off"},
                .hosts = {"a", "b"}};
  train_until(9, launch);
  FaultyEnv host(posix_env());
  host.move_to_host("b");
  const std::vector<FoundSnapshot> found = snapshots("unsound", host);
  ASSERT_FALSE(found.empty());
  for (const FoundSnapshot& each : found) {
    const Result<std::unique_ptr<SharedMemory>> memory = posix_env().open_shared_memory(each.name);
    ASSERT_TRUE(memory.ok());
    (*memory)->bytes()[5000] ^= std::byte{4};
  }
  launch.hosts = {"b", "a"};
  EXPECT_EQ(resume(launch), "disk 5");
  EXPECT_THAT(reported_, testing::HasSubstr("RAM snapshot skipped"));
  EXPECT_EQ(digest("unsound"), end);
}

// Slots that cannot be opened, from every call on and one alone, are slots that are not there.
TEST_F(RamResumeTest, EveryFailingCallIsPassedOver) {
  const std::vector<std::string> brief = {"training.steps=10", "optimizer.warmup_steps=2",
                                          "checkpoint.every_steps=3", "evaluation.every_steps=0"};
  ASSERT_EQ(train({.run = "reference", .overrides = brief}).code, ExitCode::done);
  const std::string end = digest("reference");
  for (const bool for_ever : {false, true}) {
    std::uint64_t failures = 1;
    for (std::uint64_t at = 1; failures > 0; ++at) {
      SCOPED_TRACE(fmt::format("call {}{}", at, for_ever ? " and all behind it" : ""));
      const std::string run = fmt::format("failing-{}-{}", for_ever, at);
      train_until(6, {.run = run, .ranks = 2, .overrides = brief});
      FaultyEnv machine(posix_env());
      machine.inject(
          {.operation = Operation::open_shared_memory, .at = at, .for_ever = for_ever, .reason = EACCES});
      EXPECT_THAT(resume({.run = run, .ranks = 2, .overrides = brief}, machine),
                  testing::AnyOf("ram 4", "ram 6", "disk 3", "disk 6"));
      EXPECT_EQ(digest(run), end);
      failures = machine.failure_count();
      ASSERT_LT(at, 100U);
    }
  }
}

TEST_F(RamResumeTest, NoRoomInSharedMemoryIsToldAndTheRunGoesOn) {
  const std::string end = reference();
  FaultyEnv machine(posix_env());
  machine.inject({.operation = Operation::create_shared_memory, .at = 3, .reason = ENOSPC});
  testing::internal::CaptureStdout();
  const RunEnd run_end = train(
      {.run = "small", .ranks = 2, .overrides = {"checkpoint.every_steps=5", "checkpoint.ram_every_steps=2"}},
      machine);
  const std::string reported = testing::internal::GetCapturedStdout();
  EXPECT_EQ(run_end.code, ExitCode::done) << run_end.message;
  EXPECT_THAT(reported, testing::HasSubstr("no RAM snapshots: "));
  EXPECT_EQ(digest("small"), end);
}

}  // namespace
}  // namespace holdfast
