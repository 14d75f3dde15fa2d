// Tests who leads a place, who keeps whose shards, and which shards are copied between hosts before a state
// is read.
#include <gtest/gtest.h>

#include "runtime/train/run_places.h"
#include "runtime/train/shard_fetch.h"

namespace holdfast {
namespace {

RunPlaces places_of_ranks(const std::vector<int>& numbers) {
  std::vector<Place> places;
  for (const int number : numbers) places.push_back({.number = number, .host = "n" + std::to_string(number)});
  return RunPlaces(std::move(places));
}

TEST(RunPlaces, TheNextPlaceKeepsTheCopies) {
  struct Case {
    std::vector<int> places;  // by rank
    std::vector<int> leaders, keepers;
  };
  const std::vector<Case> cases = {
      {{0, 0}, {0}, {-1, -1}},
      {{0, 1}, {0, 1}, {1, 0}},
      {{0, 0, 2, 2, 4, 4}, {0, 2, 4}, {2, 3, 4, 5, 0, 1}},
      {{0, 0, 0, 3}, {0, 3}, {3, 3, 3, 0}},
      {{4, 2, 4, 2}, {0, 1}, {1, 0, 3, 2}},  // as numbered at the start, seated otherwise
  };
  for (const Case& each : cases) {
    const RunPlaces places = places_of_ranks(each.places);
    EXPECT_EQ(places.leaders(), each.leaders);
    EXPECT_EQ(places.copy_keepers(), each.keepers);
  }
}

TEST(ShardFetch, EachTargetGetsWhatItLacks) {
  const std::vector<std::vector<int>> holders = {{0, 2}, {2, 4}, {4}, {}};
  EXPECT_EQ(plan_fetches(holders, {{}, {}, {}, {}}), std::vector<ShardFetch>());
  const std::vector<ShardFetch> fetches = plan_fetches(holders, {{0, 4}, {0, 2}, {0}, {0}});
  const std::vector<ShardFetch> expected = {{.shard = 0, .source = 0, .target = 4},
                                            {.shard = 1, .source = 4, .target = 0},
                                            {.shard = 2, .source = 4, .target = 0}};
  EXPECT_EQ(fetches, expected);
}

}  // namespace
}  // namespace holdfast
