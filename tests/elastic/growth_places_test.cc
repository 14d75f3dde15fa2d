// Tests which places of a host new ranks get.
#include "runtime/elastic/growth_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "watchdog/growing_pauses.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t s = 1'000'000'000;
const ElasticConfig config{.grow_after_ms = 10'000};
const std::vector<std::string> places = {"a", "b", "c", "d"};

// Ranks that joined at `number`, and lived for a second each.
std::vector<Joiner> lost_at(int number, int count, int first_rank = 10) {
  std::vector<Joiner> joiners;
  for (int i = 0; i < count; ++i) {
    joiners.push_back({.launched_rank = first_rank + i,
                       .number = number,
                       .place = places[static_cast<std::size_t>(number)],
                       .came_ns = 100 * i * s,
                       .lost_ns = (100 * i + 1) * s});
  }
  return joiners;
}

TEST(GrowthPlaces, TheLostOnesComeBackTogether) {
  const GrowthPlan plan = plan_growth_places(places, std::vector{0, 2}, {}, 2, config);
  EXPECT_THAT(plan.numbers, ElementsAre(1, 3));
  EXPECT_EQ(plan.wanted, 2);
  EXPECT_EQ(plan.not_before_ns, 0);
}

TEST(GrowthPlaces, AnotherFreePlaceComesFirst) {
  const GrowthPlan plan = plan_growth_places(places, std::vector{0, 2}, lost_at(1, 1), 1, config);
  EXPECT_THAT(plan.numbers, ElementsAre(3, 1));
  EXPECT_EQ(plan.wanted, 1);
  EXPECT_EQ(plan.not_before_ns, 0) << "it does not wait for the other";
  const GrowthPlan both = plan_growth_places(places, std::vector{0, 2}, lost_at(1, 1), 2, config);
  EXPECT_EQ(both.wanted, 1) << "nor does it come with it";
}

TEST(GrowthPlaces, TheOnlyPlaceIsUsedLessAndLess) {
  const std::vector<int> others = {0, 2, 3};
  EXPECT_EQ(plan_growth_places(places, others, lost_at(1, 1), 1, config).not_before_ns, 21 * s);
  EXPECT_EQ(plan_growth_places(places, others, lost_at(1, 2), 1, config).not_before_ns, 141 * s);
  const GrowthPlan plan =
      plan_growth_places(places, others, lost_at(1, GrowingPauses::max_failures), 1, config);
  EXPECT_THAT(plan.numbers, IsEmpty());
  EXPECT_EQ(plan.wanted, 0);
  EXPECT_THAT(plan.left_alone, ElementsAre("b"));
}

TEST(GrowthPlaces, AJoinerThatLivesTakesItsPlace) {
  const std::vector<Joiner> joiners = {{.launched_rank = 9, .number = 1, .place = "b", .came_ns = s}};
  EXPECT_THAT(plan_growth_places(places, std::vector{0, 2}, joiners, 1, config).numbers, ElementsAre(3));
}

TEST(GrowthPlaces, WhatAnyRankKnowsOfAJoinerCounts) {
  std::vector<Joiner> all = {{.launched_rank = 9, .number = 1, .place = "b", .came_ns = s}};
  const std::vector<Joiner> others = {
      {.launched_rank = 8, .number = 3, .place = "d", .came_ns = s},
      {.launched_rank = 9, .number = 1, .place = "b", .came_ns = s, .lost_ns = 2 * s}};
  merge_joiners(all, others);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].launched_rank, 8);
  EXPECT_EQ(all[1].lost_ns, 2 * s);
}

}  // namespace
}  // namespace holdfast::test
