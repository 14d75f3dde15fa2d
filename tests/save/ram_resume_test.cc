// Runs that die and are resumed from the snapshots that they left in shared memory.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "checkpoint/ram_tier.h"
#include "parallel/comm/group_communicator.h"
#include "runtime/core/json.h"
#include "runtime/os/machine_facts.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
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

// A snapshot that an update writes also holds the tensors that it does not train, leaves out those that another rank saves,
// and has moments in bf16 as they are. The slots of a rank are filled in turns, so that each is used more than once.
TEST_F(RamResumeTest, SnapshotsThatUpdatesWriteHoldAllOfTheState) {
  const std::vector<std::vector<std::string>> models = {
      {},
      {"model.freeze=[\"embedding\", \"layer 0\"]"},
      {"optimizer.moments=bf16", "training.precision=bf16"},
      {"parallel.tensor_lanes=2"},
  };
  for (std::size_t i = 0; i < models.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string whole = fmt::format("whole-{}", i), run = fmt::format("written-{}", i);
    ASSERT_EQ(train({.run = whole, .overrides = models[i]}).code, ExitCode::done);
    std::vector<std::string> overrides = models[i];
    const bool is_cut = i == 3;
    if (is_cut) overrides.push_back("parallel.tensor=2");
    // Both ranks of a tensor group read all lanes, twice what train_until() expects of two ranks.
    train_until(is_cut ? 25 : 13, {.run = run, .ranks = 2, .overrides = overrides});
    EXPECT_THAT(resume({.run = run, .ranks = 2, .overrides = overrides}), testing::AnyOf("ram 10", "ram 12"));
    EXPECT_THAT(reported_, testing::Not(testing::HasSubstr("skipped")));
    EXPECT_EQ(digest(run), digest(whole));
  }
}

// The disk has nothing yet.
TEST_F(RamResumeTest, NeedsNoCheckpoint) {
  const std::string end = reference();
  train_until(6, {.run = "early", .ranks = 2});
  EXPECT_EQ(resume({.run = "early", .ranks = 2}), "ram 4");
  EXPECT_EQ(digest("early"), end);
}

// The memory of a third slot, and the time for its pages, are for runs that need it: whose disk is still busy with one
// snapshot when another is to be made beside the confirmed one.
TEST_F(RamResumeTest, AThirdSlotIsMadeWhereNoneIsFree) {
  const std::string end = reference();
  const auto slots = [this](const std::string& run) {
    return snapshot_names(posix_env(), digest_of_run(run)).size();
  };
  const std::vector<std::string> saves = {"checkpoint.every_steps=4"};
  train_until(19, {.run = "two", .overrides = {"checkpoint.every_steps=0"}});
  EXPECT_EQ(slots("two"), 2U);
  train_until(19, {.run = "three", .overrides = saves, .faults = "save.before_shard=sleep:300"});
  EXPECT_EQ(slots("three"), 3U);
  EXPECT_EQ(resume({.run = "three", .overrides = saves}), "ram 18");
  EXPECT_EQ(digest("three"), end);
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

// A link that changes bits of a RAM snapshot on the way to the rank that needs them. `changes` says which of its
// messages; the parts of snapshots are the only large ones of a resume.
class BadLinkTest : public RamResumeTest {
 protected:
  static constexpr std::size_t large_bytes = 16 << 10;

  std::string resume_over(const Launch& launch,
                          const std::function<bool(const ArrivalsCommunicator::Arrival&)>& changes) {
    Launch bad = launch;
    bad.on_arrival = [&](const ArrivalsCommunicator::Arrival& arrival) {
      const std::lock_guard guard(mutex_);
      if (axis_of_tag(arrival.tag) != Axis::control || arrival.bytes.size() < large_bytes ||
          !changes(arrival))
        return;
      arrival.bytes[5000] ^= std::byte{4};
      ++changed_;
    };
    return resume(bad);
  }
  // Returns the reasons of the verdicts on links.
  std::vector<std::string> links_told(const std::string& run) const {
    std::vector<std::string> reasons;
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line);
      if (event["event"] == "verdict" && event["of"] == "links")
        reasons.push_back(event["reason"].get<std::string>());
    }
    return reasons;
  }
  static Launch launch(const std::string& run, std::vector<std::string> hosts, const std::string& replicas) {
    return {.run = run,
            .ranks = static_cast<int>(hosts.size()),
            .overrides = {"model.width=128", "checkpoint.every_steps=5", "checkpoint.replicas=" + replicas},
            .hosts = std::move(hosts)};
  }
  std::string reference_of_width() {
    EXPECT_EQ(train({.run = "reference", .overrides = {"model.width=128"}}).code, ExitCode::done);
    return digest("reference");
  }

  std::mutex mutex_;
  int changed_ = 0;
};

TEST_F(BadLinkTest, WhatArrivesOtherwiseIsAskedForAgain) {
  const std::string end = reference_of_width();
  train_until(9, launch("once", {"a", "b"}, "off"));
  EXPECT_THAT(resume_over(launch("once", {"b", "a"}, "off"),
                          [&](const auto& arrival) { return arrival.target == 0 && changed_ == 0; }),
              testing::AnyOf("ram 6", "ram 8"));
  EXPECT_EQ(changed_, 1);
  EXPECT_EQ(digest("once"), end);
  EXPECT_THAT(links_told("once"),
              testing::ElementsAre(testing::HasSubstr("the link from rank 1 (host a) to rank 0 (host b)")));
}

TEST_F(BadLinkTest, AnotherHolderOfThePartSendsItWhereOneLinkAlwaysChangesIt) {
  const std::string end = reference_of_width();
  Launch slow = launch("replicas", {"a", "b", "c", "c"}, "on");
  for (int step = 5; step <= 10; ++step)  // replicas are sent meanwhile
    slow.faults += fmt::format("{}step.begin@{}=sleep:200", step == 5 ? "" : ",", step);
  train_until(10, slow);
  const auto from_the_first = [source = -1](const auto& arrival) mutable {
    if (arrival.target != 0) return false;
    if (source < 0) source = arrival.source;
    return arrival.source == source;
  };
  EXPECT_THAT(resume_over(launch("replicas", {"c", "b", "a", "b"}, "on"), from_the_first),
              testing::AnyOf("ram 4", "ram 6", "ram 8"));
  EXPECT_GE(changed_, 2);
  EXPECT_EQ(digest("replicas"), end);
}

TEST_F(BadLinkTest, ASnapshotThatNeverArrivesAsItWasSentIsPassedOver) {
  const std::string end = reference_of_width();
  train_until(9, launch("never", {"a", "b"}, "off"));
  EXPECT_EQ(resume_over(launch("never", {"b", "a"}, "off"), [](const auto&) { return true; }), "disk 5");
  EXPECT_THAT(reported_, testing::HasSubstr("RAM snapshot skipped: "));
  EXPECT_THAT(reported_, testing::HasSubstr("changed on the way"));
  EXPECT_EQ(digest("never"), end);
}

// A bit of a weight changes between the update of a step and the end of the step, and the run ends before the next update
// reads it. A snapshot that the update wrote has what it should. One that was copied, because it is also saved to the disk,
// has not: the run looks before it ends, publishes nothing and goes back.
TEST_F(RamResumeTest, AWeightThatChangesBehindItsUpdateIsSavedNowhere) {
  struct Case {
    std::string precision, memory;
    std::vector<std::string> hosts;
    bool is_copied = true;
  };
  for (const Case& each :
       {Case{"fp32", "weights", {"a", "b"}}, Case{"fp32", "weights", {"b", "a"}},
        Case{"bf16", "weights", {"a"}}, Case{"bf16", "moment2", {"a", "b", "a"}},
        Case{"fp32", "weights", {"a", "b"}, false}, Case{"bf16", "moment1", {"a"}, false}}) {
    const std::string precision = "training.precision=" + each.precision;
    const std::string run =
        fmt::format("{}-{}-{}-{}", each.precision, each.memory, fmt::join(each.hosts, ""), each.is_copied);
    SCOPED_TRACE(run);
    ASSERT_EQ(train({.run = "undisturbed-" + run, .overrides = {precision}}).code, ExitCode::done);
    Launch launch{
        .run = run,
        .ranks = 2,
        .overrides = {each.is_copied ? "checkpoint.every_steps=8" : "checkpoint.every_steps=0",
                      "checkpoint.replicas=off", precision},
        .hosts = {"a", each.hosts.size() == 1 ? "a" : "b"},
        .faults = fmt::format("step.begin@8=sleep:300,step.end@8:1=flip:{}:22:7,step.begin@9=sleep:300",
                              each.memory)};  // a slot is free in step 8, and sealed in step 9
    train_until(9, launch);
    launch.faults.clear();
    launch.hosts = each.hosts;
    launch.ranks = static_cast<int>(each.hosts.size());
    EXPECT_EQ(resume(launch), each.is_copied ? "ram 6" : "ram 8");
    EXPECT_THAT(reported_, testing::Not(testing::HasSubstr("skipped")));
    const std::string events = posix_env().read_text(RunPaths{run_directory(run)}.events()).value();
    EXPECT_EQ(events.find("\"event\":\"verdict\"") != std::string::npos, each.is_copied);
    EXPECT_EQ(digest(run), digest("undisturbed-" + run));
  }
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
}  // namespace holdfast::test
