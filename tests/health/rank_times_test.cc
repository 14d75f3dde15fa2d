// The file of times: what is written comes back, it stays small, and damage costs the damaged lines alone.
#include "runtime/health/rank_times.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "runtime/health/straggler_log.h"
#include "runtime/os/env.h"

namespace holdfast::test {
namespace {

std::vector<RankPlace> two_ranks() {
  return {{.rank = 0, .host = "a", .group = 0, .weight = 2.0},
          {.rank = 5, .host = "b", .group = 0, .weight = 1.0}};
}

StepTimes times_of(float forward_ms, float waited_ms) {
  return {.spent_ms = {forward_ms, 2.0F, 0.5F, 0.25F, 0.0F, 0.125F}, .waited_ms = waited_ms};
}

class RankTimesTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fmt::format("{}/rank_times_{}", testing::TempDir(), posix_env().random_u64());
    std::filesystem::create_directories(directory_);
    path_ = directory_ + "/rank_times.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_, path_;
};

TEST_F(RankTimesTest, RowsComeBack) {
  RankTimesFile file(posix_env(), path_, two_ranks());
  file.add({.first_step = 1, .last_step = 4, .mean = {times_of(8.0F, 1.0F), times_of(6.0F, 0.5F)}});
  file.add({.first_step = 5, .last_step = 5, .mean = {times_of(9.0F, 1.5F), times_of(7.0F, 0.0F)}});
  const std::vector<RankTimesEpoch> epochs = read_rank_times(posix_env(), path_);
  ASSERT_EQ(epochs.size(), 1U);
  EXPECT_EQ(epochs[0].ranks[1].rank, 5);
  EXPECT_EQ(epochs[0].ranks[1].host, "b");
  EXPECT_DOUBLE_EQ(epochs[0].ranks[0].weight, 2.0);
  ASSERT_EQ(epochs[0].rows.size(), 2U);
  EXPECT_EQ(epochs[0].rows[0].last_step, 4U);
  EXPECT_FLOAT_EQ(epochs[0].rows[1].mean[0].spent_ms[0], 9.0F);
  EXPECT_FLOAT_EQ(epochs[0].rows[0].mean[1].waited_ms, 0.5F);
  EXPECT_FLOAT_EQ(epochs[0].rows[0].mean[1].spent_ms[5], 0.125F);
}

TEST_F(RankTimesTest, AnotherStartGoesOnInTheSameFile) {
  for (const std::uint64_t start : {1U, 100U}) {
    RankTimesFile file(posix_env(), path_, two_ranks());
    file.add({.first_step = start, .last_step = start, .mean = {times_of(1.0F, 0.0F), times_of(1.0F, 0.0F)}});
  }
  const std::vector<RankTimesEpoch> epochs = read_rank_times(posix_env(), path_);
  ASSERT_EQ(epochs.size(), 2U);
  EXPECT_EQ(epochs[1].rows[0].first_step, 100U);
}

TEST_F(RankTimesTest, TheFileStaysSmallAndKeepsTheMeans) {
  RankTimesFile file(posix_env(), path_, two_ranks());
  constexpr std::uint64_t steps = 5000;
  for (std::uint64_t step = 1; step <= steps; ++step)
    file.add({.first_step = step,
              .last_step = step,
              .mean = {times_of(step <= steps / 2 ? 4.0F : 8.0F, 0.0F), times_of(4.0F, 2.0F)}});
  const std::vector<RankTimesEpoch> epochs = read_rank_times(posix_env(), path_);
  ASSERT_EQ(epochs.size(), 1U);
  EXPECT_LE(epochs[0].rows.size(), 512U);
  EXPECT_LT(std::filesystem::file_size(path_), 100'000U);
  EXPECT_EQ(epochs[0].rows.front().first_step, 1U);
  EXPECT_EQ(epochs[0].rows.back().last_step, steps);
  const std::vector<RankTotals> totals = totals_of(epochs[0]);
  EXPECT_NEAR(static_cast<double>(totals[0].mean.spent_ms[0]), 6.0, 0.01);
  EXPECT_NEAR(static_cast<double>(totals[1].mean.waited_ms), 2.0, 0.01);
}

TEST_F(RankTimesTest, DamagedLinesAreSkipped) {
  const std::string good = R"({"first":1,"last":2,"times":[[1,2,3,4,5,6,7]]})";
  const std::string text = R"({"ranks":[{"rank":0,"host":"a","group":0,"weight":1}]})"
                           "\n" +
                           good + "\n" + R"({"first":3,"last":2,"times":[[1,2,3,4,5,6,7]]})" + "\n" +
                           R"({"first":3,"last":4,"times":[[1,2,3]]})" + "\nrubbish\n" +
                           R"({"first":"x","last":4,"times":7})" + "\n" + good.substr(0, 20);
  const std::vector<RankTimesEpoch> epochs = parse_rank_times(text);
  ASSERT_EQ(epochs.size(), 1U);
  EXPECT_EQ(epochs[0].rows.size(), 1U);
  EXPECT_TRUE(parse_rank_times("").empty());
  EXPECT_TRUE(parse_rank_times(good).empty()) << "times of nobody";
}

TEST(Ratios, GoByTheWorkOfARank) {
  const RankTimesEpoch epoch{.ranks = two_ranks()};
  const RankTimesRow row{
      .first_step = 1, .last_step = 1, .mean = {times_of(13.125F, 0.0F), times_of(5.125F, 0.0F)}};
  const std::vector<double> ratios = ratios_to_peers(epoch, row);
  EXPECT_NEAR(ratios[0], 1.0, 1e-6);
  EXPECT_NEAR(ratios[1], 1.0, 1e-6);
}

TEST(RowBuilder, ARowIsASecondOrMore) {
  RowBuilder builder(1);
  const StepTimes times = times_of(100.0F, 0.0F);
  EXPECT_FALSE(builder.finish().has_value());
  EXPECT_FALSE(builder.add(7, std::span(&times, 1), 0.6).has_value());
  const std::optional<RankTimesRow> row = builder.add(8, std::span(&times, 1), 0.6);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->first_step, 7U);
  EXPECT_EQ(row->last_step, 8U);
  EXPECT_FLOAT_EQ(row->mean[0].spent_ms[0], 100.0F);
  EXPECT_FALSE(builder.finish().has_value());
}

TEST(StragglerLog, TheLastEventOfARankCounts) {
  StragglerLog log;
  log.take(
      StragglerEvent{.step = 30, .rank = 1, .host = "a", .factor = 1.4, .since_step = 10, .reason = "first"});
  log.take(StragglerEvent{
      .step = 60, .rank = 1, .host = "a", .factor = 1.5, .since_step = 10, .reason = "second"});
  log.take(
      StragglerEvent{.step = 90, .rank = 1, .host = "a", .factor = 2.0, .since_step = 80, .reason = "third"});
  ASSERT_EQ(log.found.size(), 2U);
  EXPECT_EQ(log.found[0].reason, "second");
  EXPECT_EQ(to_text(log, {}), "second\nthird\n");
}

TEST(SlowdownOfAll, IsToldWhereAllAreSlower) {
  RankTimesEpoch epoch{.ranks = two_ranks()};
  for (std::uint64_t row = 0; row < 40; ++row) {
    const float forward_ms = row < 28 ? 10.0F : 20.0F;
    epoch.rows.push_back({.first_step = row + 1,
                          .last_step = row + 1,
                          .mean = {times_of(forward_ms, 0.0F), times_of(forward_ms, 0.0F)}});
  }
  const std::optional<double> slowdown = slowdown_of_all(epoch);
  ASSERT_TRUE(slowdown.has_value());
  EXPECT_GT(*slowdown, 1.7);
  EXPECT_NE(to_text({}, {epoch}).find("all ranks together"), std::string::npos);
  for (RankTimesRow& row : epoch.rows) row.mean = {times_of(10.0F, 0.0F), times_of(10.0F, 0.0F)};
  EXPECT_FALSE(slowdown_of_all(epoch).has_value());
}

}  // namespace
}  // namespace holdfast::test
