#include "parallel/group/buddies.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "tests/parallel/hosts.h"

namespace holdfast::test {
namespace {

struct Case {
  MeshShape shape;
  std::string hosts;
  std::vector<int> buddies;
  std::string why;
};

TEST(Buddies, Table) {
  const std::vector<Case> cases = {
      {{.data = 1}, "a", {-1}, "nobody else"},
      {{.data = 2}, "aa", {1, 0}, "one host: the other rank"},
      {{.data = 4}, "aaaa", {1, 2, 3, 0}, "one host: a ring"},
      {{.data = 2}, "ab", {1, 0}, "two hosts"},
      {{.data = 4}, "aabb", {2, 3, 0, 1}, "two hosts: nobody keeps two"},
      {{.data = 3}, "abc", {1, 2, 0}, "three hosts: a ring"},
      {{.data = 4}, "aaab", {3, 3, 3, 0}, "another host goes before equal numbers"},
      {{.data = 5}, "aaabb", {3, 4, 3, 0, 1}, "as equal as it can be"},
      {{.data = 4}, "aabc", {2, 3, 0, 1}, "one pair, two alone"},
      {{.data = 1, .pipeline = 2}, "ab", {-1, -1}, "no data parallelism, no buddy"},
      {{.data = 2, .pipeline = 2}, "aabb", {2, 3, 0, 1}, "the same stage of the other copy"},
      {{.data = 2, .pipeline = 2}, "aaab", {2, 3, 0, 1}, "of a group inside one host, another rank"},
      {{.data = 2, .tensor = 2}, "aabb", {2, 3, 0, 1}, "the same slices"},
      {{.data = 2, .spares = 1}, "aab", {1, 0, -1}, "a spare has nothing to keep"},
  };
  for (const Case& each : cases) {
    const std::vector<std::string> names = hosts(each.hosts);
    const Mesh mesh = Mesh::placed(each.shape, names).value();
    EXPECT_EQ(buddies_of(mesh, names), each.buddies) << each.hosts << ": " << each.why;
  }
}

// Over all ways to put up to six ranks on three hosts.
TEST(Buddies, AreOnAnotherHostWhereTheGroupHasOneAndShareTheWork) {
  for (int data = 2; data <= 6; ++data) {
    for (int code = 0; code < 729; ++code) {
      std::string letters;
      for (int rest = code, rank = 0; rank < data; ++rank, rest /= 3)
        letters += static_cast<char>('a' + rest % 3);
      const std::vector<std::string> names = hosts(letters);
      const Mesh mesh = Mesh::placed({.data = data}, names).value();
      const std::vector<int> buddies = buddies_of(mesh, names);
      std::map<std::string, int> on_host;
      for (const std::string& name : names) ++on_host[name];
      std::map<int, int> kept;
      for (std::size_t rank = 0; rank < buddies.size(); ++rank) {
        const auto buddy = static_cast<std::size_t>(buddies[rank]);
        ASSERT_NE(buddy, rank);
        ASSERT_EQ(names[buddy] == names[rank], on_host.size() == 1) << letters;
        ++kept[buddies[rank]];
      }
      // No more than the most crowded host forces on the ranks of the others.
      int crowded = 0;
      for (const auto& [name, count] : on_host) crowded = std::max(crowded, count);
      const int others = on_host.size() == 1 ? data : data - crowded;
      const int share = on_host.size() == 1 ? 1 : std::max(2, (crowded + others - 1) / others + 1);
      for (const auto& [rank, count] : kept) ASSERT_LE(count, share) << letters << " rank " << rank;
    }
  }
}

// Tries all members by the rule of the header: another host first, then who keeps the fewest, then who comes
// next.
std::vector<int> buddies_by_brute_force(const Mesh& mesh, const std::vector<std::string>& host_of_rank) {
  std::vector<int> buddies(host_of_rank.size(), -1), kept(host_of_rank.size(), 0);
  for (int rank = 0; rank < mesh.shape().ranks(); ++rank) {
    if (mesh.is_spare(rank)) continue;
    const std::vector<int> group = mesh.data_group(rank);
    if (group.front() != rank) continue;
    for (std::size_t member = 0; member < group.size(); ++member) {
      const auto own = static_cast<std::size_t>(group[member]);
      std::vector<std::tuple<bool, int, std::size_t, int>> candidates;
      for (std::size_t distance = 1; distance < group.size(); ++distance) {
        const auto other = static_cast<std::size_t>(group[(member + distance) % group.size()]);
        candidates.emplace_back(host_of_rank[other] == host_of_rank[own], kept[other], distance, other);
      }
      if (candidates.empty()) continue;
      buddies[own] = std::get<3>(std::ranges::min(candidates));
      ++kept[static_cast<std::size_t>(buddies[own])];
    }
  }
  return buddies;
}

TEST(Buddies, AreThoseOfABruteForceSearch) {
  std::mt19937 random(20261123);
  const auto up_to = [&random](int limit) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  int checked = 0;
  for (int round = 0; round < 2'000; ++round) {
    const MeshShape shape = {
        .data = up_to(17), .pipeline = up_to(3), .tensor = up_to(2), .spares = up_to(4) - 1};
    const int hosts = up_to(6);
    std::vector<std::string> names;
    for (int rank = 0; rank < shape.ranks(); ++rank) names.push_back(fmt::format("host{}", up_to(hosts)));
    const Result<Mesh> mesh = Mesh::placed(shape, names);
    if (!mesh.ok()) continue;  // no room for the tensor groups
    ++checked;
    ASSERT_EQ(buddies_of(*mesh, names), buddies_by_brute_force(*mesh, names))
        << fmt::format("round {}: {} x {} x {} + {} on {} hosts", round, shape.data, shape.pipeline,
                       shape.tensor, shape.spares, hosts);
  }
  EXPECT_GT(checked, 1'000);
}

// A plan asks for the buddies of every layout that it prices. A search that grows with the square of the
// ranks takes minutes here and ends in the test's timeout.
TEST(Buddies, OfSixteenThousandRanksComeAtOnce) {
  constexpr int rank_count = 16'384, ranks_per_host = 8;
  std::vector<std::string> names;
  for (int rank = 0; rank < rank_count; ++rank) names.push_back(fmt::format("host{}", rank / ranks_per_host));
  for (const MeshShape& shape :
       {MeshShape{.data = rank_count}, MeshShape{.data = 512, .pipeline = 8, .tensor = 4}}) {
    for (int layout = 0; layout < 20; ++layout) {
      const Mesh mesh = Mesh::placed(shape, names).value();
      const std::vector<int> buddies = buddies_of(mesh, names);
      EXPECT_TRUE(all_cross_hosts(buddies, names));
      EXPECT_EQ(std::set<int>(buddies.begin(), buddies.end()).size(), buddies.size()) << "nobody keeps two";
    }
  }
}

TEST(Buddies, KnowsWhetherAHostMayGo) {
  EXPECT_FALSE(any_crosses_hosts(std::vector<int>{1, 0}, hosts("aa")));
  EXPECT_TRUE(any_crosses_hosts(std::vector<int>{1, 0}, hosts("ab")));
  EXPECT_FALSE(any_crosses_hosts(std::vector<int>{-1, -1}, hosts("ab")));
  EXPECT_TRUE(any_crosses_hosts(std::vector<int>{3, 3, 3, 0}, hosts("aaab")));
  EXPECT_TRUE(all_cross_hosts(std::vector<int>{3, 3, 3, 0}, hosts("aaab")));
  EXPECT_FALSE(all_cross_hosts(std::vector<int>{1, 0, 3, 2}, hosts("aaab")))
      << "rank 0 and its buddy go together";
  EXPECT_FALSE(all_cross_hosts(std::vector<int>{2, -1, 0}, hosts("aab"))) << "rank 1 has none";
  EXPECT_FALSE(all_cross_hosts(std::vector<int>{}, hosts("ab")));
}

}  // namespace
}  // namespace holdfast::test
