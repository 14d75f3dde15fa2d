#include "runtime/data/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>

namespace holdfast::test {
namespace {

using Source = SampleOrder::Source;

TEST(SampleOrderTest, WithoutWeightsEveryEpochHasEverySampleOnce) {
  const std::vector<Source> sources = {{.samples = 100}, {.samples = 1}, {.samples = 57}};
  const SampleOrder order(9, sources);
  std::vector<SampleId> first_epoch;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
    std::vector<SampleId> ids;
    for (std::uint64_t i = 0; i < 158; ++i) {
      const SampleId id = order.at(epoch * 158 + i);
      ASSERT_LT(id.source, 3u);
      ASSERT_LT(id.sample, sources[id.source].samples.count());
      ASSERT_EQ(id.epoch, epoch);
      ASSERT_TRUE(seen.emplace(id.source, id.sample).second);
      ids.push_back({.source = id.source, .sample = id.sample, .epoch = 0});
    }
    EXPECT_NE(ids, first_epoch) << "every epoch has an order of its own";
    if (epoch == 0) first_epoch = ids;
  }
}

TEST(SampleOrderTest, SeedsDoNotShareAnOrder) {
  const std::vector<Source> sources = {{.samples = 10000}};
  const SampleOrder a(1, sources);
  const SampleOrder b(2, sources);
  int same = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    // seed + 1 in one epoch must not be seed in the next one
    if (a.at(i) == b.at(i) || a.at(10000 + i).sample == b.at(i).sample) ++same;
  }
  EXPECT_LT(same, 20);
}

TEST(SampleOrderTest, SlotsFollowTheLargestRemainder) {
  const auto slots = [](std::vector<double> weights) {
    std::vector<Source> sources;
    for (const double weight : weights) sources.push_back({.samples = 1, .weight = weight});
    return SampleOrder::slots_per_round(sources);
  };
  EXPECT_EQ(slots({1.0}), (std::vector<std::uint64_t>{65536}));
  EXPECT_EQ(slots({3.0, 1.0}), (std::vector<std::uint64_t>{49152, 16384}));
  EXPECT_EQ(slots({1.0, 1.0, 1.0}), (std::vector<std::uint64_t>{21846, 21845, 21845}));
  EXPECT_EQ(slots({0.7, 0.2, 0.1}), (std::vector<std::uint64_t>{45875, 13107, 6554}));
  for (const auto& weights :
       {std::vector<double>{1e-3, 5.0, 0.1, 7.77, 1e6}, std::vector<double>(1000, 0.1)}) {
    const auto counts = slots(weights);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}), 65536u);
  }
}

TEST(SampleOrderTest, EveryRoundHasTheExactProportions) {
  const std::vector<Source> sources = {
      {.samples = 300, .weight = 0.7}, {.samples = 100000, .weight = 0.2}, {.samples = 5000, .weight = 0.1}};
  const SampleOrder order(4, sources);
  const std::vector<std::uint64_t> slots = SampleOrder::slots_per_round(sources);
  for (const std::uint64_t round : {0u, 1u, 5u}) {
    std::vector<std::uint64_t> counts(3);
    for (std::uint64_t i = 0; i < 65536; ++i) ++counts[order.at(round * 65536 + i).source];
    EXPECT_EQ(counts, slots);
  }
}

// Over n rounds each source has gone through slots * n / samples epochs: every sample that often, or once
// more.
TEST(SampleOrderTest, EachSourceUsesEachSampleOncePerEpochOfItsOwn) {
  const std::vector<Source> sources = {{.samples = 30000, .weight = 3.0}, {.samples = 70001, .weight = 1.0}};
  const SampleOrder order(4, sources);
  std::map<std::uint64_t, std::vector<std::uint32_t>> uses_of_first;  // by epoch
  std::vector<std::uint32_t> uses_of_second(70001);
  constexpr std::uint64_t rounds = 5;
  for (std::uint64_t i = 0; i < rounds * 65536; ++i) {
    const SampleId id = order.at(i);
    ASSERT_LT(id.sample, sources[id.source].samples.count());
    if (id.source == 0) {
      std::vector<std::uint32_t>& uses = uses_of_first[id.epoch];
      uses.resize(30000);
      ++uses[id.sample];
    } else if (id.epoch == 0) {
      ++uses_of_second[id.sample];
    }
  }
  constexpr std::uint64_t whole_epochs = rounds * 49152 / 30000;
  ASSERT_EQ(uses_of_first.size(), whole_epochs + 1);
  for (std::uint64_t epoch = 0; epoch < whole_epochs; ++epoch) {
    for (const std::uint32_t count : uses_of_first[epoch]) ASSERT_EQ(count, 1u) << "epoch " << epoch;
  }
  for (const std::uint32_t count : uses_of_first[whole_epochs]) ASSERT_LE(count, 1u);
  for (const std::uint32_t count : uses_of_second) ASSERT_EQ(count, 1u);  // 5 * 16384 > 70001
}

TEST(SampleOrderTest, ASourceWithoutAWeightAmongWeightedOnesHasNoSlots) {
  const SampleOrder order(1, {{.samples = 5, .weight = 1.0}, {.samples = 5, .weight = 0.0}});
  for (std::uint64_t i = 0; i < 65536; ++i) ASSERT_EQ(order.at(i).source, 0u);
}

struct Blend {
  const char* name;
  std::vector<Source> sources;
};

class SourceCountsTest : public testing::TestWithParam<Blend> {
 protected:
  // Counts positions by asking for each of them.
  void add(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& counts) const {
    for (; begin < end; ++begin) ++counts[order_.at(begin).source];
  }
  std::vector<std::uint64_t> counted(std::uint64_t position, std::vector<PositionRange> left_out = {}) {
    const std::span<const std::uint64_t> used = counts_.used_before(position, left_out);
    return {used.begin(), used.end()};
  }

  SampleOrder order_{7, GetParam().sources};
  SourceCounts counts_{order_};
};

// From any position to any other, on both sides of the ends of epochs and rounds.
TEST_P(SourceCountsTest, AreThoseOfTheSamplesOneByOne) {
  std::vector<std::uint64_t> positions = {0, 1, 31, 32, 33, 5'000, 65'535, 65'536, 65'537, 98'304, 200'003};
  for (const std::uint64_t epoch : {1U, 2U, 3U})
    for (const std::uint64_t near : {1U, 2U}) positions.push_back(epoch * order_.period() + near - 2);
  std::ranges::sort(positions);
  std::vector<std::uint64_t> expected(order_.source_count());
  std::vector<std::vector<std::uint64_t>> all;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    add(i == 0 ? 0 : positions[i - 1], positions[i], expected);
    all.push_back(expected);
  }
  for (const std::size_t step : {1U, 5U, 12U, 16U}) {  // 17 positions, all of them in each order
    for (std::size_t turn = 0; turn < positions.size(); ++turn) {
      const std::size_t at = turn * step % positions.size();
      ASSERT_EQ(counted(positions[at]), all[at]) << "position " << positions[at];
      ASSERT_EQ(std::accumulate(all[at].begin(), all[at].end(), std::uint64_t{0}), positions[at]);
    }
  }
}

TEST_P(SourceCountsTest, LeaveOutWhatARollBackHasLeftOut) {
  const std::vector<PositionRange> left_out = {{.begin = 40, .end = 72}, {.begin = 65'500, .end = 65'600}};
  std::vector<std::uint64_t> expected(order_.source_count());
  add(0, 40, expected);
  add(72, 65'500, expected);
  add(65'600, 70'000, expected);
  EXPECT_EQ(counted(70'000, left_out), expected);
  add(70'000, 70'032, expected);
  EXPECT_EQ(counted(70'032, left_out), expected);
  add(65'500, 65'600, expected);
  EXPECT_EQ(counted(70'032, {left_out.front()}), expected) << "another state has left out less";
}

INSTANTIATE_TEST_SUITE_P(Blends, SourceCountsTest,
                         testing::Values(Blend{"one", {{.samples = 100}}},
                                         Blend{"list", {{.samples = 100}, {.samples = 1}, {.samples = 57}}},
                                         Blend{"long_list", {{.samples = 70'000}, {.samples = 9'000}}},
                                         Blend{"weights",
                                               {{.samples = 300, .weight = 0.7},
                                                {.samples = 90'000, .weight = 0.2},
                                                {.samples = 5, .weight = 0.1}}},
                                         Blend{"one_weight", {{.samples = 300, .weight = 2.0}}},
                                         Blend{"slivers",
                                               {{.samples = 3, .weight = 1e-9},
                                                {.samples = 8, .weight = 1.0},
                                                {.samples = 8, .weight = 1e-3}}}),
                         [](const auto& blend) { return std::string(blend.param.name); });

// A weighted mix is counted at once at any position, and a list of billions at its ends and from step to step. In
// its middle, nobody waits for it: a few calls are without.
TEST(SourceCountsTest, AreThereWhereverTheyTakeMomentsToCount) {
  constexpr std::uint64_t many = std::uint64_t{1} << 40;
  SourceCounts weighted(SampleOrder(1, {{.samples = many, .weight = 3.0}, {.samples = 7, .weight = 1.0}}));
  const std::span<const std::uint64_t> used = weighted.used_before(65'536 * many);
  ASSERT_EQ(used.size(), 2U);
  EXPECT_EQ(used[0], 49'152 * many);
  SourceCounts list(SampleOrder(1, {{.samples = many}, {.samples = many}}));
  EXPECT_TRUE(list.used_before(many).empty());
  ASSERT_FALSE(list.used_before(2 * many + 10).empty());
  EXPECT_GE(list.used_before(2 * many + 10)[0], many);
  EXPECT_FALSE(list.used_before(2 * many + 20).empty());
  for (const std::uint64_t begin :
       {3 * SourceCounts::positions_per_call, 2 * many - 3 * SourceCounts::positions_per_call}) {
    SourceCounts resumed(SampleOrder(1, {{.samples = many}, {.samples = many}}));
    std::uint64_t position = begin;
    int without = 0;
    for (; resumed.used_before(position).empty() && without < 100; position += 10) ++without;
    EXPECT_EQ(without, begin < many ? 3 : 2);
    const std::span<const std::uint64_t> all = resumed.used_before(position);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0] + all[1], position);
    SourceCounts at_once(SampleOrder(1, {{.samples = many}, {.samples = many}}));
    EXPECT_EQ(at_once.used_before(position, {}, 2 * many)[0], all[0]);
  }
}

TEST(SampleOrderTest, LargePositionsAndSizesWork) {
  const std::uint64_t many = std::uint64_t{1} << 40;
  const SampleOrder order(1, {{.samples = many}, {.samples = many + 3}});
  const SampleId id = order.at(5 * (2 * many + 3) + 17);
  EXPECT_EQ(id.epoch, 5u);
  EXPECT_LT(id.sample, many + 3);
}

}  // namespace
}  // namespace holdfast::test
