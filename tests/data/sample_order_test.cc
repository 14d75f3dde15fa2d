#include "runtime/data/sample_order.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

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

TEST(SampleOrderTest, LargePositionsAndSizesWork) {
  const std::uint64_t many = std::uint64_t{1} << 40;
  const SampleOrder order(1, {{.samples = many}, {.samples = many + 3}});
  const SampleId id = order.at(5 * (2 * many + 3) + 17);
  EXPECT_EQ(id.epoch, 5u);
  EXPECT_LT(id.sample, many + 3);
}

}  // namespace
}  // namespace holdfast::test
