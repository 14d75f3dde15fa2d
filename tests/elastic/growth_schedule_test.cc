// Tests when the leader starts new ranks and takes them in, and what they prepare meanwhile.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "checkpoint/ram_tier.h"
#include "runtime/core/record.h"
#include "runtime/elastic/new_rank.h"
#include "runtime/os/env.h"
#include "runtime/train/growth.h"

namespace holdfast::test {
namespace {

// Leader of an epoch, and the new ranks as the test wants them to be.
class Leader {
 public:
  explicit Leader(std::int64_t at_ns) : growth_(make_terms(at_ns)) {}
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  bool due(std::int64_t now_ns, const Growth::Saves& saves = Growth::Saves()) {
    // The vote of a step between tells the others.
    const int before = started;
    if (growth_.due(now_ns, saves)) return true;
    if (!growth_.announces()) return false;
    EXPECT_EQ(started, before);
    const bool due = growth_.due(now_ns, saves);
    EXPECT_FALSE(growth_.announces());
    return due;
  }
  bool ready() const { return growth_.ready(); }

  NewRankState state = NewRankState::none;
  NewRankState once_started = NewRankState::preparing;
  bool starts = true;
  int started = 0, dismissed = 0;
  std::string obstacle;

 private:
  Growth::Terms make_terms(std::int64_t at_ns) {
    Growth::Terms terms{.at_ns = at_ns, .retry_ns = 100, .patience_ns = 1000, .settle_ns = 300};
    terms.start = [this]() -> Result<void> {
      if (!starts) return fail(ExitCode::communication, "no");
      ++started;
      state = once_started;
      return {};
    };
    terms.obstacle = [this] { return obstacle; };
    terms.state = [this] { return state; };
    terms.dismiss = [this] {
      ++dismissed;
      state = NewRankState::none;
    };
    return terms;
  }

  Growth growth_;
};

const Growth::Saves unsettled = {.is_settled = false}, saving = {.under_way = {7}};

TEST(GrowthScheduleTest, StandsStillWhenTheNewRanksAreReady) {
  Leader leader(50);
  EXPECT_FALSE(leader.due(49));
  EXPECT_EQ(leader.started, 0);
  EXPECT_FALSE(leader.due(50));
  EXPECT_FALSE(leader.due(60));
  EXPECT_EQ(leader.started, 1);
  leader.state = NewRankState::ready;
  EXPECT_TRUE(leader.due(70));
}

TEST(GrowthScheduleTest, StartsNoneWhileTheyCouldNotCome) {
  Leader leader(50);
  leader.obstacle = "mpirun is stopped";
  EXPECT_FALSE(leader.due(60));
  leader.obstacle = "";
  EXPECT_FALSE(leader.due(159));
  EXPECT_EQ(leader.started, 0) << "before another try is due";
  EXPECT_FALSE(leader.due(160));
  EXPECT_EQ(leader.started, 1);
}

TEST(GrowthScheduleTest, StartsThemWhenTheOthersTakeNoMoreMemory) {
  Leader leader(50);
  EXPECT_FALSE(leader.due(60, unsettled));
  EXPECT_EQ(leader.started, 0);
  EXPECT_FALSE(leader.due(70));
  EXPECT_EQ(leader.started, 1);
}

TEST(GrowthScheduleTest, StartsThemAfterAWhileWhereTheOthersNeverSettle) {
  Leader leader(50);
  EXPECT_FALSE(leader.due(349, unsettled));
  EXPECT_EQ(leader.started, 0);
  EXPECT_FALSE(leader.due(350, unsettled));
  EXPECT_EQ(leader.started, 1);
}

TEST(GrowthScheduleTest, LetsStepsGoOnUntilTheSaveUnderWayIsMade) {
  Leader leader(50);
  EXPECT_FALSE(leader.due(50, saving));
  EXPECT_EQ(leader.started, 1);
  leader.state = NewRankState::ready;
  EXPECT_FALSE(leader.due(60, saving));
  EXPECT_FALSE(leader.due(100'000, saving));
  EXPECT_TRUE(leader.due(100'001));
  EXPECT_EQ(leader.dismissed, 0);
}

TEST(GrowthScheduleTest, WaitsForNoFurtherSave) {
  Leader leader(50);
  EXPECT_FALSE(leader.due(50, saving));
  leader.state = NewRankState::ready;
  EXPECT_FALSE(leader.due(60, {.under_way = {5, 7}}));
  EXPECT_FALSE(leader.due(70, {.under_way = {7, 9}}));
  EXPECT_TRUE(leader.due(80, {.under_way = {9, 11}}));
}

TEST(GrowthScheduleTest, SaysWhetherASaveIsToBePutOff) {
  Leader leader(50);
  EXPECT_FALSE(leader.due(60));
  EXPECT_FALSE(leader.ready());
  leader.state = NewRankState::ready;
  EXPECT_FALSE(leader.due(70, saving));
  EXPECT_TRUE(leader.ready());
  leader.state = NewRankState::lost;
  EXPECT_FALSE(leader.due(80, saving));
  EXPECT_FALSE(leader.ready());
}

TEST(GrowthScheduleTest, StartsOthersForThoseThatAreLost) {
  Leader leader(0);
  EXPECT_FALSE(leader.due(10));
  leader.state = NewRankState::lost;
  EXPECT_FALSE(leader.due(20));
  EXPECT_EQ(leader.dismissed, 1);
  EXPECT_FALSE(leader.due(119));
  EXPECT_EQ(leader.started, 1);
  EXPECT_FALSE(leader.due(120));
  EXPECT_EQ(leader.started, 2);
}

TEST(GrowthScheduleTest, DismissesThoseThatAreNeverReady) {
  Leader leader(0);
  EXPECT_FALSE(leader.due(10));
  EXPECT_FALSE(leader.due(1009));
  EXPECT_EQ(leader.dismissed, 0);
  EXPECT_FALSE(leader.due(1010));
  EXPECT_EQ(leader.dismissed, 1);
}

TEST(GrowthScheduleTest, TakesThoseOfTheEpochBeforeNotSoonerThanOthers) {
  Leader leader(50);
  leader.state = NewRankState::ready;
  EXPECT_FALSE(leader.due(49));
  EXPECT_TRUE(leader.due(50));
  EXPECT_EQ(leader.started, 0);
}

TEST(GrowthScheduleTest, LeavesItToTheGrowthWhereNoneCanBeStartedAhead) {
  Leader refused(50);
  refused.starts = false;
  EXPECT_FALSE(refused.due(49));
  EXPECT_TRUE(refused.due(50));
  Leader local(50);
  local.once_started = NewRankState::none;
  EXPECT_TRUE(local.due(50));
  Growth alone({.at_ns = 50});
  EXPECT_FALSE(alone.due(49, {}));
  EXPECT_TRUE(alone.due(50, {}));
}

// Gives a task to a new rank.
class PreparationTest : public testing::Test {
 protected:
  static constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  static constexpr std::uint64_t too_much = std::uint64_t{1} << 50;
  ~PreparationTest() override { EXPECT_TRUE(remove_snapshots(env, digest_of(shm_run_id)).ok()); }

  void prepare(NewRankTask task) {
    task.shm_run_id = shm_run_id;
    prepare_new_rank(env, record_to_text(task), {.threads = 1, .progress = [&] { ++calls; }}, prepared);
  }

  Env& env = posix_env();
  std::string shm_run_id = fmt::format("preparation {}", env.random_u64());
  ProcessMemory prepared;
  int calls = 0;  // of progress
};

TEST_F(PreparationTest, IsMemoryThatIsThere) {
  prepare({.device_bytes = 5 * mib, .host_bytes = 4096, .timeout_ms = 0});
  EXPECT_GE(prepared.kept.bytes(MemoryKind::device), 5 * mib);
  EXPECT_GE(prepared.kept.bytes(MemoryKind::host_visible), 4096U);
  EXPECT_EQ(prepared.slots.unneeded_bytes(), 0U);
  EXPECT_GT(calls, 0);
}

TEST_F(PreparationTest, HasTheSlotsOfTheFirstSaves) {
  prepare({.device_bytes = mib, .slot_bytes = 2 * mib});
  EXPECT_EQ(prepared.slots.unneeded_bytes(), 4 * mib);
  constexpr std::uint64_t writer = 7;
  const Digest run = digest_of(shm_run_id);
  FaultPoints no_faults;
  prepared.slots.begin(env, run, writer, {});
  for (int slot = 0; slot < 3; ++slot) {
    const Result<std::unique_ptr<SharedMemory>> made =
        prepared.slots.make(env, no_faults, snapshot_name(run, writer, 3, slot), 2 * mib);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(prepared.slots.unneeded_bytes(), slot == 0 ? 2 * mib : 0U);
  }
  for (const std::string& name : snapshot_names(env, run))
    EXPECT_TRUE(name.starts_with(writer_prefix(run, writer))) << name;
}

TEST_F(PreparationTest, LeavesWhatDoesNotFitToTheAgreement) {
  prepare({.device_bytes = too_much, .slot_bytes = mib, .timeout_ms = 120});
  EXPECT_EQ(prepared.kept.bytes(), 0U);
  EXPECT_EQ(prepared.slots.unneeded_bytes(), 0U);
  EXPECT_GT(calls, 0);
  prepare({.device_bytes = mib, .slot_bytes = too_much});
  EXPECT_GE(prepared.kept.bytes(), mib);
  EXPECT_EQ(prepared.slots.unneeded_bytes(), 0U);
}

TEST_F(PreparationTest, DoesNotWaitForWhatTheOthersWillGiveBack) {
  prepare({.device_bytes = too_much, .given_back_bytes = too_much, .timeout_ms = 600'000});
  EXPECT_EQ(prepared.kept.bytes(), 0U);
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace holdfast::test
