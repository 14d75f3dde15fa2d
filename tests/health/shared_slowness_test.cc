// Slowness that no single rank is the cause of, in made-up steps: links between hosts, and all ranks together.
#include "runtime/health/shared_slowness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace holdfast::test {
namespace {

constexpr int steps_of_block = 5;

// A run of ranks on hosts of their own, but for rank 3, which is beside rank 0; its gathers are blocks of the rule.
class MadeLinks {
 public:
  explicit MadeLinks(int ranks) : places_(places_of(ranks)), rule_(places_) {}

  // Milliseconds of a step that each rank computes; all take 100.
  std::vector<double> own = {50.0, 50.0, 50.0, 50.0};
  // Milliseconds of a step that `one` waits for `other`.
  void wait(int one, int other, double waited_ms) { waited_ms_[{one, other}] = waited_ms; }
  double noise = 0.0;

  std::vector<StragglerVerdict> blocks(int count) {
    std::vector<StragglerVerdict> all;
    for (int i = 0; i < count; ++i) {
      std::vector<StepTimes> times(places_.size());
      std::vector<PeerWaits> waits(places_.size());
      double longest = 0.0;
      for (std::size_t rank = 0; rank < places_.size(); ++rank) {
        times[rank].spent_ms[0] = static_cast<float>(steps_of_block * own[rank] * factor());
        std::size_t told = 0;
        double waited = 0.0;
        for (const auto& [ends, waited_ms] : waited_ms_) {
          if (ends.first != static_cast<int>(rank)) continue;
          const double here = steps_of_block * waited_ms * factor();
          waited += here;
          waits[rank].at(told++) = {.peer = places_[static_cast<std::size_t>(ends.second)].rank,
                                    .waited_ms = static_cast<float>(here)};
        }
        longest = std::max(longest, times[rank].own_ms() + waited);
      }
      const std::uint64_t first = step_ + 1;
      step_ += steps_of_block;
      const auto news = rule_.take({.first_step = first,
                                    .last_step = step_,
                                    .seconds = longest / 1e3,
                                    .times = times,
                                    .waits = waits});
      all.insert(all.end(), news.begin(), news.end());
    }
    return all;
  }
  std::uint64_t step() const { return step_; }
  SharedSlowness& rule() { return rule_; }

 private:
  static std::vector<RankPlace> places_of(int ranks) {
    std::vector<RankPlace> places;
    for (int rank = 0; rank < ranks; ++rank)
      places.push_back({.rank = 10 + rank, .host = std::string(1, static_cast<char>('a' + rank % 3))});
    return places;
  }
  double factor() { return std::exp(noise * std::normal_distribution<>()(random_)); }

  std::vector<RankPlace> places_;
  SharedSlowness rule_;
  std::map<std::pair<int, int>, double> waited_ms_;
  std::mt19937_64 random_{7};
  std::uint64_t step_ = 0;
};

TEST(SharedSlowness, NamesThePairThatWaitsForEachOther) {
  MadeLinks run(3);
  EXPECT_TRUE(run.blocks(60).empty());
  const std::uint64_t begin = run.step();
  run.wait(1, 2, 60.0);
  run.wait(2, 1, 40.0);
  run.wait(0, 2, 50.0);  // because rank 2 is held up
  const std::vector<StragglerVerdict> found = run.blocks(30);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, StragglerKind::slow_link);
  EXPECT_EQ(std::pair(found[0].rank, found[0].peer), std::pair(1, 2));
  EXPECT_EQ(found[0].since_step, begin + 1);
  EXPECT_LE(found[0].last_step, begin + 16 * steps_of_block);
  EXPECT_NEAR(found[0].factor, 1.8, 0.05) << "40 ms of 50 that a step took";
  ASSERT_EQ(run.rule().standing().size(), 1U);
  EXPECT_NEAR(run.rule().standing()[0].lost_seconds, 30 * steps_of_block * 0.04, 0.1);
  for (const auto& [one, other] : {std::pair(1, 2), std::pair(2, 1), std::pair(0, 2)})
    run.wait(one, other, 0.0);
  const std::vector<StragglerVerdict> over = run.blocks(40);
  ASSERT_EQ(over.size(), 1U);
  EXPECT_TRUE(over[0].is_over);
  EXPECT_TRUE(run.rule().standing().empty());
}

TEST(SharedSlowness, OfTheLinksOfAHostTheWorstIsNamed) {
  MadeLinks run(3);
  run.blocks(60);
  for (const auto& [one, other] : {std::pair(0, 2), std::pair(2, 0)}) run.wait(one, other, 55.0);
  for (const auto& [one, other] : {std::pair(1, 2), std::pair(2, 1)}) run.wait(one, other, 30.0);
  const std::vector<StragglerVerdict> found = run.blocks(100);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(std::pair(found[0].rank, found[0].peer), std::pair(0, 2));
}

TEST(SharedSlowness, ASlowRankIsNoSlowLink) {
  MadeLinks run(3);
  run.blocks(60);
  run.own[2] = 120.0;
  run.wait(0, 2, 70.0);
  run.wait(1, 2, 70.0);
  EXPECT_TRUE(run.blocks(200).empty());
}

TEST(SharedSlowness, RanksOfOneHostHaveNoLink) {
  MadeLinks run(4);
  run.blocks(60);
  run.wait(0, 3, 60.0);
  run.wait(3, 0, 60.0);
  EXPECT_TRUE(run.blocks(200).empty());
}

// Stages wait for each other all the time, and for longer where both compute for longer.
TEST(SharedSlowness, AllThatComputeMoreSlowlyAreNoSlowLink) {
  MadeLinks run(3);
  const auto slower = [&run](double factor) {
    for (double& each : run.own) each = 50.0 * factor;
    for (const auto& [one, other] : {std::pair(0, 1), std::pair(1, 0), std::pair(1, 2), std::pair(2, 1)})
      run.wait(one, other, 30.0 * factor);
  };
  slower(1.0);
  EXPECT_TRUE(run.blocks(60).empty());
  const std::uint64_t begin = run.step();
  slower(2.5);
  const std::vector<StragglerVerdict> found = run.blocks(60);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, StragglerKind::all_slow);
  EXPECT_EQ(found[0].rank, -1);
  EXPECT_EQ(found[0].since_step, begin + 1);
  EXPECT_NEAR(found[0].factor, 2.5, 0.01);
  slower(1.0);
  const std::vector<StragglerVerdict> over = run.blocks(60);
  ASSERT_EQ(over.size(), 1U);
  EXPECT_TRUE(over[0].is_over);
}

TEST(SharedSlowness, OneRankThatIsAsFastAsEverSpeaksForAll) {
  MadeLinks run(3);
  run.blocks(60);
  run.own = {80.0, 50.0, 80.0, 50.0};
  EXPECT_TRUE(run.blocks(200).empty());
}

TEST(SharedSlowness, NobodyIsNamedWhereAllIsNoise) {
  for (const double noise : {0.05, 0.2, 0.4}) {
    MadeLinks run(3);
    run.noise = noise;
    for (const auto& [one, other] : {std::pair(0, 1), std::pair(1, 0), std::pair(1, 2), std::pair(2, 1)})
      run.wait(one, other, 20.0);
    EXPECT_TRUE(run.blocks(20'000).empty()) << noise;
  }
}

}  // namespace
}  // namespace holdfast::test
