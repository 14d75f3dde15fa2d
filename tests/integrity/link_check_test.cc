// Which links are named, and when one rank is known to be at fault.
#include "runtime/integrity/link_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Ranks whose numbers have gaps, as after a recovery.
LinkRecords three_ranks() {
  LinkRecords ranks;
  for (const int rank : {2, 5, 9}) {
    CheckRecord<LinkEnds>& each = ranks.emplace_back();
    each.rank = rank;
    for (const int peer : {2, 5, 9}) {
      if (peer == rank) continue;
      const auto out = static_cast<std::uint64_t>(rank * 100 + peer),
                 in = static_cast<std::uint64_t>(peer * 100 + rank);
      each.found.ends.push_back({.peer = peer,
                                 .sent_sum = out,
                                 .sent_weighted = 3 * out,
                                 .received_sum = in,
                                 .received_weighted = 3 * in});
    }
  }
  return ranks;
}

TEST(ChangedLinks, AreThoseWhoseEndsDiffer) {
  LinkRecords ranks = three_ranks();
  EXPECT_THAT(changed_links(ranks), IsEmpty());
  ranks[2].found.ends[0].received_weighted += 1;
  EXPECT_THAT(changed_links(ranks), ElementsAre(Link{2, 9}));
  ranks[0].found.ends[0].sent_sum += 1;
  EXPECT_THAT(changed_links(ranks), ElementsAre(Link{2, 5}, Link{2, 9}));
  ranks.erase(ranks.begin());
  EXPECT_THAT(changed_links(ranks), IsEmpty()) << "of a rank that is not there";
}

TEST(OnlyCommonEnd, IsThatOfTwoLinksOrMore) {
  const struct {
    std::vector<Link> links;
    std::optional<int> rank;
  } cases[] = {
      {{}, {}},
      {{{0, 1}}, {}},
      {{{0, 1}, {1, 0}}, {}},
      {{{0, 1}, {0, 2}}, 0},
      {{{0, 1}, {2, 1}}, 1},
      {{{0, 1}, {1, 2}}, 1},
      {{{0, 1}, {1, 0}, {1, 2}}, 1},
      {{{0, 1}, {2, 3}}, {}},
      {{{0, 1}, {1, 2}, {2, 0}}, {}},
  };
  for (const auto& each : cases) EXPECT_EQ(only_common_end(each.links), each.rank);
}

}  // namespace
}  // namespace holdfast::test
