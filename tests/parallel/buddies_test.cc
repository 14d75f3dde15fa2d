#include "parallel/buddies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace holdfast {
namespace {

// "aab" -> {"a", "a", "b"}
std::vector<std::string> hosts(const std::string& letters) {
  std::vector<std::string> names;
  for (const char letter : letters) names.emplace_back(1, letter);
  return names;
}

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
}  // namespace holdfast
