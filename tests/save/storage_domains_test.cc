// Tests who leads a storage domain, who keeps whose shards, and which shards are copied between hosts before
// a state is read.
#include <gtest/gtest.h>

#include "runtime/save/part_exchange.h"
#include "runtime/save/storage_domains.h"

namespace holdfast::test {
namespace {

StorageDomains places_of_ranks(const std::vector<int>& numbers) {
  std::vector<StorageDomain> domains;
  for (const int number : numbers)
    domains.push_back({.number = number, .host = "n" + std::to_string(number)});
  return StorageDomains(std::move(domains));
}

TEST(StorageDomains, TheNextDomainKeepsTheCopies) {
  struct Case {
    std::vector<int> domains;  // by rank
    std::vector<int> leaders, keepers;
  };
  const std::vector<Case> cases = {
      {{0, 0}, {0}, {-1, -1}},
      {{0, 1}, {0, 1}, {1, 0}},
      {{0, 0, 2, 2, 4, 4}, {0, 2, 4}, {2, 3, 4, 5, 0, 1}},
      {{0, 0, 0, 3}, {0, 3}, {3, 3, 3, 0}},
      {{4, 2, 4, 2}, {0, 1}, {1, 0, 3, 2}},  // as numbered at the start, assigned otherwise
  };
  for (const Case& each : cases) {
    const StorageDomains domains = places_of_ranks(each.domains);
    EXPECT_EQ(domains.leaders(), each.leaders);
    EXPECT_EQ(domains.copy_keepers(), each.keepers);
  }
}

TEST(StorageDomains, EachHasANameOfItsOwnAndKeepsIt) {
  struct Case {
    std::vector<DomainName> domains;
    std::vector<std::string> names;
  };
  const std::vector<Case> cases = {
      {{{"", "a"}, {"", "b"}}, {"a", "b"}},
      {{{"", "a"}, {"", "a"}, {"", "a"}}, {"a", "a#2", "a#3"}},
      {{{"", "a"}, {"a#3", "a"}, {"a", "a"}}, {"a#2", "a#3", "a"}},
      {{{"b", "a"}, {"", "a"}}, {"b", "a"}},    // a disk that was moved
      {{{"b", "a"}, {"b", "b"}}, {"a", "b"}},   // a directory that was copied while the first is there
      {{{"b", "a"}, {"b", "c"}}, {"b", "c"}},   // and copied twice
      {{{"", "a"}, {"a", "c"}}, {"a#2", "a"}},  // a host with a new disk, and its old one elsewhere
  };
  for (const Case& each : cases) EXPECT_EQ(names_of_domains(each.domains), each.names);
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
}  // namespace holdfast::test
