// Runs that a verdict takes back while their disk is full: the decision outlives them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "checkpoint/kept_rollback.h"
#include "checkpoint/names.h"
#include "checkpoint/ram_runs.h"
#include "runtime/os/retry.h"
#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

// Disk that has no room for the record of a roll-back, until it was asked so often. Its clock passes faster while a
// thread waits for storage.
class FullDisk final : public ForwardingEnv {
 public:
  explicit FullDisk(int refusals) : ForwardingEnv(posix_env()), refusals_left_(refusals) {}

  Result<void> rename(const std::string& source, const std::string& target) override {
    const Result<std::string> text =
        target.ends_with("lineage.json") ? inner().read_text(source) : Result<std::string>(std::string());
    if (text->find("\"rollback\"") != std::string::npos && refusals_left_.fetch_sub(1) > 0) {
      ++refused;
      return write_error("write to", target, ENOSPC);
    }
    return inner().rename(source, target);
  }
  std::int64_t monotonic_ns() override { return inner().monotonic_ns() + shift_ns_; }
  void sleep_us(std::int64_t duration_us) override {
    if (duration_us == storage_pause_ms * 1000) shift_ns_ += 20 * duration_us * 1000;
    inner().sleep_us(duration_us);
  }

  std::atomic<int> refused = 0;

 private:
  std::atomic<int> refusals_left_;
  std::atomic<std::int64_t> shift_ns_ = 0;
};

class DecidedRollbackTest : public RecoveryTest {
 protected:
  ~DecidedRollbackTest() override {
    for (const std::string& run : runs_)
      static_cast<void>(remove_snapshots(posix_env(), digest_of_run(run)).ok());
  }

  // A run of three ranks. From step 9 on rank 1 computes wrong numbers if `is_wrong`; an audit finds it, and what it
  // has computed since the audit before is in checkpoints.
  Launch launch(const std::string& run, bool is_wrong) {
    runs_.insert(run);
    return {.run = run,
            .ranks = 3,
            .overrides = {"verdict.audit_every_steps=4", "checkpoint.every_steps=1", "checkpoint.keep=20"},
            .faults = is_wrong ? "step.begin@9:1=wrong_product_always" : ""};
  }

  Digest digest_of_run(const std::string& run) const {
    const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(run)}.run_id());
    return digest_of(id.ok() ? *id : "");
  }

  // Takes the checkpoints up to `last` elsewhere, and a copy of that of step `published`, once it is there.
  void remove_checkpoints(std::uint64_t last, std::uint64_t published) {
    const auto path = [&](std::uint64_t step) {
      return run_directory("a") + "/checkpoints/" + checkpoint_names::step_name(step);
    };
    for (int waits = 0; waits < 500 && !posix_env().status(path(published))->exists; ++waits)
      posix_env().sleep_us(10'000);
    EXPECT_TRUE(posix_env().status(path(published))->exists);
    const std::string elsewhere = run_directory("elsewhere");
    static_cast<void>(posix_env().remove_tree(elsewhere).ok());
    std::filesystem::create_directories(elsewhere);
    std::filesystem::copy(path(published), fmt::format("{}/{}", elsewhere, published));
    for (std::uint64_t step = 1; step <= last; ++step) {
      if (!posix_env().status(path(step))->exists) continue;
      EXPECT_TRUE(posix_env().rename(path(step), fmt::format("{}/{}", elsewhere, step)).ok());
    }
  }

  Launch with_snapshots() {
    Launch launched = launch("a", true);
    launched.overrides.insert(launched.overrides.end(),
                              {"checkpoint.every_steps=3", "checkpoint.ram_every_steps=8"});
    return launched;
  }

  // As launch(), with checkpoints of every third step that remove_checkpoints() takes elsewhere. A roll-back gets them
  // from there by `command`, which has {} for that place.
  Launch with_download(const std::string& command) {
    Launch launched = launch("a", true);
    launched.overrides.insert(
        launched.overrides.end(),
        {"checkpoint.every_steps=3",
         fmt::format(
             "checkpoint.download_command=test -z \"$HOLDFAST_BEFORE_STEP\" || ( {} $HOLDFAST_DOWNLOAD )",
             fmt::format(fmt::runtime(command), run_directory("elsewhere")))});
    return launched;
  }

  // Before step 12, in whose vote the verdict is, the checkpoints up to step 8 go, and then something else happens.
  Trouble without_checkpoints(const std::function<void()>& happens) {
    Trouble trouble;
    trouble.before_step = [this, happens](int rank, int steps) {
      if (rank != 0) return;
      if (steps > 9)
        posix_env().sleep_us(400'000);  // the save of step 9 is drained before the vote of step 11
      if (steps != 12) return;
      remove_checkpoints(8, 9);
      if (happens) happens();
    };
    return trouble;
  }

  // Returns how many ranks died; all others must end with `code`.
  int train_until(ExitCode code, const Launch& launch, const Trouble& trouble) {
    int deaths = 0;
    for (const std::optional<RunEnd>& end : train_all(launch, trouble)) {
      if (end.has_value()) {
        EXPECT_EQ(end->code, code) << end->message;
      } else {
        ++deaths;
      }
    }
    return deaths;
  }

  std::set<std::string> runs_;
};

TEST_F(DecidedRollbackTest, IsRecordedByTheNextStartWhereTheDiskWasFullUntilTheEnd) {
  const std::string end = reference();
  FullDisk disk(1'000'000);
  EXPECT_EQ(train_until(ExitCode::communication, launch("a", true), {.machine = &disk}), 1);
  EXPECT_GT(disk.refused, 2) << "the ranks have waited for it";
  EXPECT_FALSE(kept_rollbacks(posix_env(), digest_of_run("a")).empty());
  EXPECT_EQ(train_until(ExitCode::done, launch("a", false), {}), 0);
  EXPECT_EQ(digest("a"), end);
  EXPECT_TRUE(kept_rollbacks(posix_env(), digest_of_run("a")).empty());
  EXPECT_EQ(read_lineage(posix_env(), run_directory("a"))->generations.size(), 1U);
}

TEST_F(DecidedRollbackTest, IsRecordedInPlaceOnceTheDiskHasRoom) {
  const std::string end = reference();
  FullDisk disk(4);
  EXPECT_EQ(train_until(ExitCode::done, launch("a", true), {.machine = &disk}), 1);
  EXPECT_EQ(disk.refused, 4);
  EXPECT_EQ(digest("a"), end);
  EXPECT_TRUE(kept_rollbacks(posix_env(), digest_of_run("a")).empty());
}

// The rank that is wrong leaves, and the writer dies before it has recorded why: the spare is all that is left, and was
// not asked.
TEST_F(DecidedRollbackTest, IsKnownToTheSpareThatIsLeft) {
  const std::string end = reference();
  Launch launched = launch("a", true);
  launched.overrides.insert(launched.overrides.end(), {"parallel.data=2", "elastic.spares=1"});
  launched.faults += ",generation.before_publish:0=kill";
  EXPECT_EQ(train_until(ExitCode::done, launched, {}), 2);
  EXPECT_LE(events("a", "recovery")[0]["resumed_from_step"].get<int>(), 8);
  EXPECT_EQ(digest("a"), end);
}

// Somebody has made room: the checkpoints up to that step are gone. A snapshot in RAM counts if all parts of it are
// left.
TEST_F(DecidedRollbackTest, LeadsToAWholeSnapshotWhereTheCheckpointsAreGone) {
  const std::string end = reference();
  EXPECT_EQ(train_until(ExitCode::done, with_snapshots(), without_checkpoints({})), 1);
  EXPECT_EQ(events("a", "recovery")[0]["resumed_from_step"], 8);
  EXPECT_EQ(events("a", "recovery")[0]["resumed_from"], "ram");
  EXPECT_EQ(digest("a"), end);
}

// What the run has published since may be wrong, but it does not begin again for that.
TEST_F(DecidedRollbackTest, DoesNotLeadToTheStartOfARunWithCheckpoints) {
  const auto removes_a_part = [this] {
    for (const std::string& name : snapshot_names(posix_env(), digest_of_run("a"))) {
      if (name.find("-00002-") == std::string::npos) continue;
      EXPECT_TRUE(posix_env().remove_shared_memory(name).ok());
    }
  };
  EXPECT_EQ(train_until(ExitCode::done, with_snapshots(), without_checkpoints(removes_a_part)), 1);
  ASSERT_EQ(events("a", "verdict").size(), 1U);
  EXPECT_THAT(events("a", "verdict")[0]["reason"].get<std::string>(),
              testing::HasSubstr("but no state of step 8 or before is left, so the newest one counts"));
  EXPECT_GT(events("a", "recovery")[0]["resumed_from_step"].get<int>(), 8);
}

// What is gone here may be elsewhere.
TEST_F(DecidedRollbackTest, LeadsToAnOlderCheckpointThatIsElsewhere) {
  const std::string end = reference();
  EXPECT_EQ(train_until(ExitCode::done, with_download("test $HOLDFAST_BEFORE_STEP -eq 9 && cp {}/6/*"),
                        without_checkpoints({})),
            1);
  EXPECT_EQ(events("a", "recovery")[0]["resumed_from_step"], 6);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(DecidedRollbackTest, LeadsToNothingElsewhereThatIsNewerOrCannotBeHad) {
  for (const char* const command : {"cp {}/9/*", "true {}", "false {}"}) {
    EXPECT_EQ(train_until(ExitCode::done, with_download(command), without_checkpoints({})), 1);
    EXPECT_EQ(events("a", "recovery")[0]["resumed_from_step"], 9) << command;
    EXPECT_THAT(events("a", "verdict")[0]["reason"].get<std::string>(),
                testing::HasSubstr("but no state of step 8 or before is left, so the newest one counts"));
    ASSERT_TRUE(posix_env().remove_tree(run_directory("a")).ok());
  }
}

// The rank alone ends with 20, and nobody recovers.
TEST_F(DecidedRollbackTest, OfARunThatEndsByItIsRecordedByTheNextStart) {
  const std::string end = reference();
  FullDisk disk(1'000'000);
  Launch alone = launch("a", false);
  alone.ranks = 1;
  alone.faults = "step.begin@9=wrong_product_always";
  EXPECT_EQ(train_until(ExitCode::numerics, alone, {.machine = &disk}), 0);
  alone.faults = "";
  EXPECT_EQ(train_until(ExitCode::done, alone, {}), 0);
  EXPECT_EQ(digest("a"), end);
}

TEST_F(DecidedRollbackTest, OfWhichTheStrictestCounts) {
  const auto decided = [](std::uint64_t generation, std::uint64_t step, const char* run = "a") {
    return DecidedRollback{.run_id = run, .generation = {.parent = {.generation = generation, .step = step}}};
  };
  const std::vector<DecidedRollback> kept = {decided(0, 5), decided(1, 30), decided(1, 20),
                                             decided(1, 10, "b")};
  Lineage lineage{.run_id = "a"};
  EXPECT_EQ(unrecorded(kept, lineage), decided(1, 20));
  lineage.roll_back(decided(0, 3).generation);
  EXPECT_EQ(unrecorded(kept, lineage), decided(1, 20));
  lineage.roll_back(decided(1, 20).generation);
  EXPECT_EQ(unrecorded(kept, lineage), std::nullopt);
  EXPECT_EQ(unrecorded(kept, Lineage{.run_id = "c"}), std::nullopt) << "another run is in the directory";
}

TEST_F(DecidedRollbackTest, ThatIsDamagedInMemoryCountsForNothing) {
  const Digest run = digest_of("a run of this test");
  const KeptRollback rollback = {
      .decided = {.run_id = "a", .generation = {.parent = {.generation = 1, .step = 2}, .reason = "why"}},
      .run_directory = "/runs/a"};
  ASSERT_TRUE(keep_rollback(posix_env(), run, 7, 1, rollback).ok());
  ASSERT_TRUE(keep_rollback(posix_env(), run, 7, 1, rollback).ok()) << "in place of the one before";
  ASSERT_EQ(kept_rollbacks(posix_env(), run).size(), 1U);
  EXPECT_EQ(kept_rollbacks(posix_env(), run)[0].decided, rollback.decided);
  EXPECT_TRUE(snapshot_names(posix_env(), run).empty());
  const std::vector<RunInMemory> runs = list_runs_in_memory(posix_env());
  const auto listed = std::ranges::find(runs, run, &RunInMemory::run);
  ASSERT_NE(listed, runs.end());
  EXPECT_EQ(listed->snapshots.count, 0U);
  EXPECT_TRUE(listed->keeps_rollback);
  EXPECT_EQ(listed->directory, "/runs/a");
  ASSERT_EQ(rollback_names(posix_env(), run), std::vector({rollback_name(run, 7, 1)}));
  const std::unique_ptr<SharedMemory> memory =
      posix_env().open_shared_memory(rollback_name(run, 7, 1)).value();
  for (std::size_t at = 0; at < memory->bytes().size(); ++at) {
    memory->bytes()[at] ^= std::byte{4};
    EXPECT_TRUE(kept_rollbacks(posix_env(), run).empty()) << at;
    memory->bytes()[at] ^= std::byte{4};
  }
  EXPECT_EQ(remove_snapshots(posix_env(), run, 1)->count, 0U) << "a confirmed snapshot is no record";
  EXPECT_EQ(remove_snapshots(posix_env(), run)->count, 1U) << "it goes with the run's";
}

}  // namespace
}  // namespace holdfast::test
