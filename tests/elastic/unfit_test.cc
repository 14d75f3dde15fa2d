// Whole runs of ranks whose host, or whose minute, is unfit: what they lack ends no run that others can continue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "runtime/text/bpe_training.h"
#include "runtime/text/tokenizer_file.h"
#include "tests/elastic/recovery_fixture.h"
#include "tests/support/hasty_env.h"
#include "tests/support/local_disk_env.h"

namespace holdfast::test {
namespace {

// Host that may fail to open a file.
class UnfitHost final : public HastyEnv {
 public:
  using HastyEnv::HastyEnv;

  std::atomic<bool> lacks_data = false;

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (lacks_data && path.ends_with("train.txt")) return read_error("open", path, ENOENT);
    return inner().open(path, mode);
  }
};

// Host whose limit of threads others have reached, so that the loaders get none.
class ThriftyHost final : public HastyEnv {
 public:
  ThriftyHost(Env& inner, int refusals) : HastyEnv(inner), refusals_(refusals) {}

  Result<std::unique_ptr<Thread>> start_thread(const std::string& name, std::function<void()> work) override {
    if (name == "loader" && refusals_-- > 0)
      return with_reach(Reach::minute,
                        fail(ExitCode::does_not_fit, "the system refuses the thread {}", name));
    return inner().start_thread(name, std::move(work));
  }

 private:
  std::atomic<int> refusals_;
};

// Machine on which a rank dies that has waited so often for the end of the run.
class DyingSpare final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;

  std::atomic<bool> has_died = false;

  void sleep_us(std::int64_t duration_us) override {
    if (duration_us == 1000 && ++waits_ > 50) {
      has_died = true;
      throw Death{};
    }
    inner().sleep_us(duration_us);
  }

 private:
  std::atomic<int> waits_ = 0;
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

  // Lets all reads of the data on this disk fail once a rank begins its fifth step.
  static void breaks_at_step_5(Trouble& trouble, FaultyEnv& disk, int reason) {
    auto broken = std::make_shared<std::atomic<bool>>(false);
    trouble.before_step = [&disk, reason, broken](int, int steps) {
      if (steps == 5 && !broken->exchange(true))
        disk.inject(
            {.operation = Operation::read, .path_contains = "train.txt", .for_ever = true, .reason = reason});
    };
  }

  // Trains, and returns what the ranks printed on stderr.
  std::string printed_until(ExitCode code, int deaths, const Launch& launch, const Trouble& trouble) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(train_until(code, launch, trouble), deaths);
    return testing::internal::GetCapturedStderr();
  }

  // Returns the fault events of saves that failed.
  std::vector<Json> failed_saves(const std::string& run) const {
    std::vector<Json> failed = events(run, "fault");
    std::erase_if(failed, [](const Json& event) { return event["what"] != "save"; });
    return failed;
  }

  std::string message_;
};

// Returns the fault of a disk that cannot be written where checkpoints are.
InjectedFault unwritable(int reason) {
  return {.path_contains = "/.pending", .for_ever = true, .reason = reason};
}

const std::vector<std::string> saves_often = {"checkpoint.every_steps=4", "checkpoint.ram_every_steps=1"};

TEST_F(UnfitTest, AReadThatFailsForAMomentIsRepeated) {
  const std::string end = reference();
  FaultyEnv host(posix_env());
  for (const std::uint64_t at : {12U, 30U})
    host.inject({.operation = Operation::read, .path_contains = "train.txt", .at = at, .reason = EIO});
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, {.host_of = {{1, &host}}}), 0);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, ATokenizerThatCannotBeReadForAMomentIsReadAgain) {
  const std::string tokenizer = directory_ / "tokenizer.json";
  const text::TokenizerParts parts =
      text::train_bpe({{"ab", 9}}, {.vocabulary = 257, .special = {}, .pattern = text::pattern_of("gpt2")});
  ASSERT_TRUE(posix_env().replace_text(tokenizer, text::tokenizer_json(parts)).ok());
  const Launch launch{.run = "a",
                      .ranks = 2,
                      .overrides = {fmt::format("data.sources=[{{ path = \"{}\", tokenizer = \"{}\" }}]",
                                                (directory_ / "train.txt"), tokenizer)}};
  FaultyEnv host(posix_env());
  for (const Operation operation : {Operation::open, Operation::read_text})
    host.inject({.operation = operation, .path_contains = "tokenizer.json", .reason = EIO});
  EXPECT_EQ(train_until(ExitCode::done, launch, {.host_of = {{1, &host}}}), 0) << message_;
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

// It tells spares how the run ends, which does not end.
TEST_F(UnfitTest, ALeaderThatAloneCannotReadLeavesItsPlaceToASpare) {
  const std::string end = reference();
  UnfitHost host(posix_env());
  EXPECT_EQ(train_until(ExitCode::done,
                        {.run = "a",
                         .ranks = 3,
                         .overrides = {"parallel.data=2", "elastic.spares=1"},
                         .faults = "data.read@30:0=error:EIO:always"},
                        {.machine = &host}),
            1);
  EXPECT_EQ(digest("a"), end);
  const std::vector<Json> recoveries = events("a", "recovery");
  ASSERT_EQ(recoveries.size(), 1U);
  EXPECT_EQ(recoveries[0]["seats_after"], 2) << "the spare has the place";
}

// All ranks that compute lack the same, and the spare does not.
TEST_F(UnfitTest, WhereAllButTheSparesAreUnfitTheSparesGoOn) {
  const std::string end = reference();
  const auto on_a_broken_disk = [&](const Launch& launch, std::vector<int> ranks) {
    FaultyEnv disk(posix_env());
    UnfitHost host(disk), fit(posix_env());
    Trouble trouble{.machine = &fit};
    for (const int rank : ranks) trouble.host_of[rank] = &host;
    breaks_at_step_5(trouble, disk, EIO);
    EXPECT_EQ(train_until(ExitCode::done, launch, trouble), static_cast<int>(ranks.size()));
  };
  on_a_broken_disk(
      {.run = "a", .ranks = 2, .overrides = {"checkpoint.ram_every_steps=1", "elastic.spares=1"}}, {0});
  EXPECT_EQ(digest("a"), end);
  on_a_broken_disk({.run = "b", .ranks = 4, .overrides = {"parallel.pipeline=2", "elastic.spares=2"}},
                   {0, 1});
  const std::vector<Json> recoveries = events("b", "recovery");
  ASSERT_EQ(recoveries.size(), 1U);
  EXPECT_GT(recoveries[0]["lost_steps"], 0) << "the spares know from the leader how far it had come";
  EXPECT_EQ(digest("b"), end);
}

// One that can do it now was not unfit: what failed may have been the work of another rank for all.
TEST_F(UnfitTest, NoRankLeavesForASpareThatCanDoWhatTheSpareCan) {
  UnfitHost host(posix_env());
  EXPECT_EQ(train_until(ExitCode::communication,
                        {.run = "a",
                         .ranks = 2,
                         .overrides = {"elastic.spares=1"},
                         .faults = "data.read@30:0=error:EIO:always"},
                        {.machine = &host}),
            0);
}

TEST_F(UnfitTest, NoRankLeavesForASpareBecauseADiskIsFull) {
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.host_of = {{0, &host}}};
  breaks_at_step_5(trouble, disk, ENOSPC);
  EXPECT_EQ(train_until(ExitCode::communication, {.run = "a", .ranks = 2, .overrides = {"elastic.spares=1"}},
                        trouble),
            0);
}

TEST_F(UnfitTest, ASpareEndsWithTheCodeOfTheOthers) {
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.machine = &host};
  breaks_at_step_5(trouble, disk, EACCES);
  const Launch launch{.run = "a", .ranks = 3, .overrides = {"parallel.data=2", "elastic.spares=1"}};
  EXPECT_EQ(train_until(ExitCode::communication, launch, trouble), 0);
}

// Nobody notices before the end of the run.
TEST_F(UnfitTest, SparesBehindADeadOneLearnOfTheEnd) {
  const std::string end = reference();
  DyingSpare spare(posix_env());
  const Launch launch{.run = "a",
                      .ranks = 5,
                      .overrides = {"parallel.data=2", "elastic.spares=3"},
                      .faults = "step.begin@9=sleep:300"};
  Trouble trouble{.host_of = {{2, &spare}}};
  trouble.before_step = [&](int, int steps) {
    while (steps == 9 && !spare.has_died) posix_env().sleep_us(1000);
  };
  EXPECT_EQ(train_until(ExitCode::done, launch, trouble), 1);
  EXPECT_TRUE(events("a", "recovery").empty()) << "else they take the end for a loss";
  EXPECT_EQ(digest("a"), end);
}

// Before the first step of a start the log is not open yet.
TEST_F(UnfitTest, ALeaderThatAloneCannotLoadLeavesItsPlaceToASpare) {
  const std::string end = reference();
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  UnfitHost host(posix_env());
  EXPECT_EQ(train_until(ExitCode::done,
                        {.run = "a",
                         .ranks = 3,
                         .overrides = {"parallel.pipeline=2", "elastic.spares=1"},
                         .faults = "load.read@2:0=error:EIO:always"},
                        {.machine = &host}),
            1);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, WhereNoRankCanReadTheRunEndsToBeStartedAgain) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.machine = &host};
  breaks_at_step_5(trouble, disk, EIO);
  const std::vector<std::string> with_a_spare = {"checkpoint.every_steps=2", "parallel.data=2",
                                                 "elastic.spares=1"};
  EXPECT_EQ(
      train_until(ExitCode::communication, {.run = "a", .ranks = 3, .overrides = with_a_spare}, trouble), 0);
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 2}, {}), 0);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, AWriteThatFailsForAMomentIsRepeated) {
  const std::string end = reference();
  UnfitHost host(posix_env());
  EXPECT_EQ(train_until(ExitCode::done,
                        {.run = "a",
                         .ranks = 3,
                         .overrides = saves_often,
                         .faults = "save.before_shard@2:1=error:EIO:4,save.before_shard@3:2=error:ESTALE"},
                        {.machine = &host}),
            0);
  EXPECT_TRUE(failed_saves("a").empty());
  EXPECT_EQ(events("a", "checkpoint").size(), 5U);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, ARankThatAloneCannotSaveLeavesAndTheOthersGoOn) {
  const std::string end = reference();
  UnfitHost host(posix_env());
  const std::string printed = printed_until(
      ExitCode::done, 1,
      {.run = "a", .ranks = 3, .overrides = saves_often, .faults = "save.before_shard@2:1=error:EIO:always"},
      {.machine = &host});
  EXPECT_THAT(printed, testing::ContainsRegex("rank 1 leaves the run, which goes on without it: .*"
                                              "Input/output error"));
  EXPECT_EQ(digest("a"), end);
  EXPECT_GE(failed_saves("a").size(), 1U) << "with those that were under way";
  const std::vector<Json> recoveries = events("a", "recovery");
  ASSERT_EQ(recoveries.size(), 1U);
  EXPECT_LE(recoveries[0]["lost_steps"].get<int>(), 8) << "it goes on from RAM";
}

// Rank 0 publishes, and what it cannot write any more another rank can.
TEST_F(UnfitTest, ARankThatAloneCannotPublishLeavesAndAnotherOneDoes) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.host_of = {{0, &host}}};
  std::atomic<bool> broken = false;
  trouble.before_step = [&](int rank, int steps) {
    if (rank == 0 && steps == 6 && !broken.exchange(true)) disk.inject(unwritable(EROFS));
  };
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3, .overrides = saves_often}, trouble), 1);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, ARankThatCannotWriteTheLastCheckpointLeavesIt) {
  const std::string end = reference();
  UnfitHost host(posix_env());
  EXPECT_EQ(train_until(ExitCode::done,
                        {.run = "a",
                         .ranks = 3,
                         .overrides = {"checkpoint.ram_every_steps=1"},
                         .faults = "save.before_shard:2=error:EIO:always"},
                        {.machine = &host}),
            1);
  EXPECT_EQ(digest("a"), end);
}

// One rank finds no room, because the shards of the others take it.
TEST_F(UnfitTest, NoRankLeavesADiskThatIsFull) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  disk.inject({.operation = Operation::allocate,
               .path_contains = "step-00000008",
               .for_ever = true,
               .reason = ENOSPC});
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3, .overrides = saves_often},
                        {.host_of = {{1, &disk}}}),
            0);
  EXPECT_EQ(failed_saves("a").size(), 1U);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, NoRankLeavesThatTheRunCannotSpare) {
  const std::string end = reference();
  // The save of step 8 and the rank's proof fail; the sleeps keep the save of step 16 behind the proof.
  Launch launch{
      .run = "a",
      .ranks = 2,
      .overrides = {"checkpoint.every_steps=8", "checkpoint.ram_every_steps=1"},
      .faults = "save.before_shard@1:1=error:EACCES:2,step.begin@9=sleep:300,step.begin@12=sleep:300"};
  launch.overrides.emplace_back("parallel.pipeline=2");
  EXPECT_EQ(train_until(ExitCode::done, launch, {}), 0);
  EXPECT_EQ(failed_saves("a").size(), 1U);
  EXPECT_EQ(digest("a"), end);
}

// The others have their shards on the disk when it fails for all.
TEST_F(UnfitTest, NoRankLeavesADiskThatFailsForAllInTheMiddleOfASave) {
  const std::string end = reference();
  FaultyEnv failing(posix_env()), disk(posix_env());
  UnfitHost host(failing), others(disk);
  failing.inject({.path_contains = ".pending/step-00000008", .for_ever = true, .reason = ESTALE});
  Trouble trouble{.host_of = {{0, &others}, {1, &host}, {2, &others}}};
  host.at_long_wait = [&](int waits) {
    if (waits == 6)
      disk.inject({.path_contains = ".pending/step-00000008", .for_ever = true, .reason = ESTALE});
  };
  trouble.before_step = [&](int rank, int steps) {
    if (rank != 1 || steps != 17) return;
    failing.clear_faults();
    disk.clear_faults();
  };
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3, .overrides = saves_often}, trouble), 0);
  EXPECT_EQ(failed_saves("a").size(), 1U);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, ARunTrainsOnWhileNoRankCanSave) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.machine = &host};
  std::atomic<bool> broken = false, mended = false;
  trouble.before_step = [&](int, int steps) {
    if (steps == 8 && !broken.exchange(true)) disk.inject(unwritable(EIO));
    if (steps == 17 && !mended.exchange(true)) disk.clear_faults();
  };
  const std::string printed = printed_until(
      ExitCode::done, 0,
      {.run = "a", .ranks = 3, .overrides = {"checkpoint.every_steps=1", "checkpoint.ram_every_steps=1"}},
      trouble);
  EXPECT_EQ(digest("a"), end);
  const std::vector<Json> failed = failed_saves("a");
  ASSERT_GE(failed.size(), 2U);
  const std::vector<Json> saved = events("a", "checkpoint");
  const auto is_before = [&](const Json& checkpoint) { return checkpoint["step"] < failed[0]["step"]; };
  const int newest = static_cast<int>(std::ranges::count_if(saved, is_before));  // each step is saved
  for (const Json& each : failed)
    EXPECT_GE(each["unsaved_steps"].get<int>(), each["step"].get<int>() - newest) << each.dump();
  EXPECT_GE(failed[0]["unsaved_steps"].get<int>(), 1);
  EXPECT_GT(failed[1]["step"].get<int>(), failed[0]["step"].get<int>());
  EXPECT_LT(failed.size(), 9U) << "one failure after another makes tries rarer, and nine are due";
  EXPECT_THAT(printed,
              testing::ContainsRegex("could not be saved: .*Input/output error.* [0-9]+ steps .* are in no "
                                     "checkpoint. Training goes on, and the next save that is due in 10s or "
                                     "later is another try"));
}

TEST_F(UnfitTest, TheEndOfARunWaitsUntilItsLastCheckpointCanBeWritten) {
  const std::string end = reference();
  for (const int reason : {EIO, ENOSPC}) {
    FaultyEnv disk(posix_env());
    UnfitHost host(disk);
    host.at_long_wait = [&](int waits) {
      if (waits == 6) disk.clear_faults();
    };
    Trouble trouble{.machine = &host};
    std::atomic<bool> broken = false;
    trouble.before_step = [&](int, int steps) {
      if (steps == 8 && !broken.exchange(true)) disk.inject(unwritable(reason));
    };
    const std::string run = fmt::format("a-{}", reason);
    const std::string printed = printed_until(
        ExitCode::done, 0, {.run = run, .ranks = 2, .overrides = {"checkpoint.ram_every_steps=1"}}, trouble);
    EXPECT_THAT(printed, testing::HasSubstr("at most 10m (elastic.input_timeout)"));
    EXPECT_EQ(digest(run), end);
    EXPECT_EQ(failed_saves(run).size(), 1U);
  }
}

TEST_F(UnfitTest, ARunWhoseLastCheckpointCannotBeWrittenIsStartedAgain) {
  const std::string end = reference();
  for (const int reason : {EIO, EROFS, ENOSPC}) {
    FaultyEnv disk(posix_env());
    UnfitHost host(disk);
    Trouble trouble{.machine = &host};
    std::atomic<bool> broken = false;
    trouble.before_step = [&](int, int steps) {
      if (steps == 8 && !broken.exchange(true)) disk.inject(unwritable(reason));
    };
    const Launch launch{.run = fmt::format("a-{}", reason),
                        .ranks = 2,
                        .overrides = {"checkpoint.ram_every_steps=1", "elastic.input_timeout=5m"}};
    EXPECT_EQ(train_until(ExitCode::communication, launch, trouble), 0);
    EXPECT_THAT(message_, testing::HasSubstr("/.pending"));
    EXPECT_GT(host.long_waits, 4);
    EXPECT_EQ(train_until(ExitCode::done, launch, {}), 0);
    EXPECT_EQ(digest(launch.run), end);
  }
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
  host.at_long_wait = [&](int waits) {
    if (waits == 4) host.lacks_data = false;
  };
  const Launch resumed{.run = "a", .ranks = 2, .overrides = {"elastic.input_timeout=60s"}};
  EXPECT_EQ(train_until(ExitCode::done, resumed, {.machine = &host}), 0);
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

// Rank 0 reads what no other rank reads, in a start and in a recovery.
TEST_F(UnfitTest, ALeaderThatAloneCannotReadTheLineageLeavesAndTheOthersGoOn) {
  const std::string end = reference();
  const InjectedFault unreadable{
      .operation = Operation::read_text, .path_contains = "lineage.json", .for_ever = true, .reason = EIO};
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  {
    FaultyEnv disk(posix_env());
    disk.inject(unreadable);
    UnfitHost host(disk);
    EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, {.host_of = {{0, &host}}}), 1);
    EXPECT_EQ(resumed_from("a"), 8U);
    EXPECT_EQ(digest("a"), end);
  }
  Launch saved = saved_twice();
  saved.run = "b";
  ASSERT_EQ(train(saved).code, ExitCode::saved);
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  Trouble trouble{.host_of = {{0, &host}}};
  trouble.before_death = [&](int rank) {
    if (rank == 3) disk.inject(unreadable);
  };
  const Launch dies{.run = "b", .ranks = 4, .faults = "step.begin@9:3=kill"};
  EXPECT_EQ(train_until(ExitCode::done, dies, trouble), 2);
  EXPECT_EQ(digest("b"), end);
}

TEST_F(UnfitTest, AReadThatFailsForAMomentInARecoveryIsRepeated) {
  const std::string end = reference();
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  FaultyEnv disk(posix_env());
  Trouble trouble{.host_of = {{0, &disk}}};
  trouble.before_death = [&](int rank) {
    if (rank == 2)
      disk.inject({.operation = Operation::read_text, .path_contains = "lineage.json", .reason = EIO});
  };
  const Launch dies{.run = "a", .ranks = 3, .faults = "step.begin@12:2=kill"};
  EXPECT_EQ(train_until(ExitCode::done, dies, trouble), 1);
  EXPECT_EQ(disk.failure_count(), 1U);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, AThreadThatTheSystemRefusesForAMomentIsAskedForAgain) {
  const std::string end = reference();
  ThriftyHost host(posix_env(), 3);
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 2}, {.host_of = {{1, &host}}}), 0);
  EXPECT_GE(host.long_waits, 3);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(UnfitTest, ARankWithoutAThreadLeavesAndAloneItsRunIsStartedAgain) {
  const std::string end = reference();
  constexpr int always = 1'000'000;
  ThriftyHost one(posix_env(), always), other(posix_env(), always);
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, {.host_of = {{1, &one}}}), 1);
  EXPECT_EQ(digest("a"), end);
  const RunEnd alone = train({.run = "b"}, other);
  EXPECT_EQ(alone.code, ExitCode::communication);
  EXPECT_THAT(alone.message, testing::HasSubstr("most likely a thread"));
}

// Rank 0 of a start, and the next writer after its death.
TEST_F(UnfitTest, AWriterThatAloneCannotClaimLeavesAndAnotherOneWrites) {
  const std::string end = reference();
  const InjectedFault unwritable{
      .operation = Operation::lock, .path_contains = "", .for_ever = true, .reason = EROFS};
  {
    FaultyEnv disk(posix_env());
    disk.inject(unwritable);
    UnfitHost host(disk);
    EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, {.host_of = {{0, &host}}}), 1);
    EXPECT_EQ(digest("a"), end);
  }
  FaultyEnv disk(posix_env());
  disk.inject(unwritable);
  UnfitHost host(disk);
  const Launch dies{.run = "b", .ranks = 3, .faults = "step.begin@9:0=kill"};
  EXPECT_EQ(train_until(ExitCode::done, dies, {.host_of = {{1, &host}}}), 2);
  EXPECT_EQ(digest("b"), end);
}

// Its next attempt would wait for the lock that the one before it held.
TEST_F(UnfitTest, AWriterThatFailsOnceBehindItsClaimTriesAgain) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  disk.inject({.operation = Operation::open, .path_contains = run_directory("a") + "/", .reason = EIO});
  UnfitHost host(disk);
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 2}, {.host_of = {{0, &host}}}), 0);
  EXPECT_EQ(disk.failure_count(), 1U);
  EXPECT_EQ(digest("a"), end);
}

// Its run directory is on a disk of its own, which nobody needs but the host.
TEST_F(UnfitTest, AHostThatCannotMakeItsRunDirectoryLeavesAndTheOthersBegin) {
  const std::string end = reference();
  FaultyEnv disk(posix_env());
  disk.move_to_host("n1");
  disk.move_to_machine("n1");
  disk.inject({.path_contains = "disk-of-n1", .for_ever = true, .reason = EROFS});
  LocalDiskEnv n1(disk, run_directory("a"), run_directory("disk-of-n1"));
  UnfitHost host(n1);
  EXPECT_EQ(train_until(ExitCode::done, {.run = "a", .ranks = 3}, {.host_of = {{2, &host}}}), 1);
  EXPECT_EQ(digest("a"), end);
}

// Each can write the directory; a file system without locks, or a lock file of another user, is the same for all.
TEST_F(UnfitTest, NoRankLeavesForALockThatIsRefusedEverywhere) {
  for (const int reason : {EOPNOTSUPP, EACCES}) {
    FaultyEnv disk(posix_env());
    disk.inject({.operation = Operation::lock, .for_ever = true, .reason = reason});
    UnfitHost host(disk);
    EXPECT_EQ(train_until(ExitCode::config, {.run = "a", .ranks = 3}, {.machine = &host}), 0);
    EXPECT_THAT(message_, testing::HasSubstr("run.directory cannot be used"));
  }
}

// Rank 0 has tried for as long as it may when the others begin to.
TEST_F(UnfitTest, NoRankLeavesForStorageThatIsAwayForAMinute) {
  FaultyEnv disk(posix_env());
  disk.inject({.operation = Operation::lock, .for_ever = true, .reason = ESTALE});
  UnfitHost host(disk);
  host.at_long_wait = [&](int waits) {
    if (waits == 14) disk.clear_faults();
  };
  EXPECT_EQ(train_until(ExitCode::communication, {.run = "a", .ranks = 3}, {.machine = &host}), 0);
  EXPECT_GE(host.long_waits, 14);
}

TEST_F(UnfitTest, NoRankLeavesForADirectoryThatNoRankCanRead) {
  ASSERT_EQ(train(saved_twice()).code, ExitCode::saved);
  FaultyEnv disk(posix_env());
  UnfitHost host(disk);
  disk.inject(
      {.operation = Operation::status, .path_contains = "step-00000008", .for_ever = true, .reason = EIO});
  const Launch resumed{.run = "a", .ranks = 2, .overrides = {"elastic.input_timeout=5s"}};
  EXPECT_EQ(train_until(ExitCode::communication, resumed, {.machine = &host}), 0);
}

TEST_F(UnfitTest, ARunEndsForAPersonWhereItsInputsAreWrongEverywhere) {
  const std::string path = run_directory("train.txt");
  ASSERT_TRUE(posix_env().replace_text(path, "too short").ok());
  EXPECT_EQ(train_until(ExitCode::data, {.run = "a", .ranks = 2}, {}), 0);
}

}  // namespace
}  // namespace holdfast::test
