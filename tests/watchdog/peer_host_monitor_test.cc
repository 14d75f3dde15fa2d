// What a host makes of what it hears of the others: partitions, links in one direction, messages that come
// late, twice, out of order or from another start.
#include "watchdog/peer_host_monitor.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace holdfast::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Ge;
using testing::Gt;
using testing::IsEmpty;
using testing::Key;
using testing::Le;
using testing::Pair;

constexpr std::int64_t second = 1'000'000'000;
constexpr std::uint64_t start = 77;

PeerHostTableSetup setup_of(int hosts, int own) {
  PeerHostTableSetup setup{.start = start, .own_host = own, .silence_ms = 5'000, .hosts = {}};
  for (int i = 0; i < hosts; ++i) setup.hosts.push_back({.name = fmt::format("n{}", i), .port = 1});
  return setup;
}

GuardMessage beat(int host, std::uint64_t number, std::vector<std::int32_t> silent = {},
                  std::uint64_t generation = 1) {
  return {
      .start = start, .host = host, .generation = generation, .number = number, .silent = std::move(silent)};
}

TEST(PeerHostMonitor, OnlyWhoWasHeardCanFallSilent) {
  PeerHostMonitor sight(setup_of(3, 0));
  EXPECT_TRUE(sight.heard(beat(1, 1), second));
  EXPECT_FALSE(sight.misses(1, 6 * second)) << "for just as long as it may";
  EXPECT_TRUE(sight.misses(1, 6 * second + 1));
  EXPECT_THAT(sight.silent(100 * second), ElementsAre(1));
  EXPECT_FALSE(sight.misses(2, 100 * second)) << "its guard may be unable to reach anybody";
  EXPECT_FALSE(sight.misses(0, 100 * second));
  EXPECT_TRUE(sight.heard(beat(1, 2), 100 * second));
  EXPECT_FALSE(sight.misses(1, 101 * second)) << "it is back";
}

TEST(PeerHostMonitor, ASilenceIsAtLeastFiveHeartbeatsAndNeverShorterThanTheFloor) {
  for (std::size_t hosts = 2; hosts <= 65'536; hosts += 1 + hosts / 8) {
    for (const std::int64_t floor_ms : {1'000, 5'000, 60'000}) {
      EXPECT_GE(silence_ms_of(hosts, floor_ms), 5 * beat_ms_of(hosts)) << hosts;
      EXPECT_GE(silence_ms_of(hosts, floor_ms), floor_ms) << hosts;
    }
    EXPECT_LE(hosts * 1'000 / static_cast<std::size_t>(beat_ms_of(hosts)), 2'010) << "messages a second";
  }
  EXPECT_EQ(beat_ms_of(2), 100);
  EXPECT_EQ(silence_ms_of(1'000, 5'000), 5'000);
  EXPECT_EQ(silence_ms_of(2'048, 5'000), 5'120);
}

// Two sides of a run that is cut into {0, 1} and {2}: each misses the other, and nobody else.
TEST(PeerHostMonitor, APartitionIsSeenFromBothSides) {
  std::vector<PeerHostMonitor> sights;
  for (int own = 0; own < 3; ++own) sights.emplace_back(setup_of(3, own));
  for (std::uint64_t number = 1; number <= 100; ++number) {
    const std::int64_t now_ns = static_cast<std::int64_t>(number) * second / 10;
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        const bool cut = number > 20 && (from == 2) != (to == 2);
        if (from == to || cut) continue;
        EXPECT_TRUE(sights[static_cast<std::size_t>(to)].heard(
            beat(from, number, sights[static_cast<std::size_t>(from)].silent(now_ns)), now_ns));
      }
    }
  }
  EXPECT_THAT(sights[0].silent(10 * second), ElementsAre(2));
  EXPECT_THAT(sights[1].silent(10 * second), ElementsAre(2));
  EXPECT_THAT(sights[2].silent(10 * second), ElementsAre(0, 1));
  EXPECT_FALSE(sights[0].misses(1, 10 * second));
}

TEST(PeerHostMonitor, ALinkInOneDirectionIsNone) {
  PeerHostMonitor hearing(setup_of(2, 0));
  EXPECT_TRUE(hearing.heard(beat(1, 1), second));
  EXPECT_FALSE(hearing.misses(1, second));
  EXPECT_TRUE(hearing.heard(beat(1, 2, {0}), 2 * second));
  EXPECT_TRUE(hearing.misses(1, 2 * second)) << "it says that it does not hear this one";
  EXPECT_THAT(hearing.silent(2 * second), IsEmpty()) << "but it is not silent itself";
  EXPECT_TRUE(hearing.heard(beat(1, 3), 3 * second));
  EXPECT_FALSE(hearing.misses(1, 3 * second));
}

TEST(PeerHostMonitor, WhatAThirdOneDoesNotHearChangesNothingHere) {
  PeerHostMonitor sight(setup_of(3, 0));
  EXPECT_TRUE(sight.heard(beat(1, 1, {2}), second));
  EXPECT_TRUE(sight.heard(beat(2, 1, {1}), second));
  EXPECT_FALSE(sight.misses(1, second));
  EXPECT_FALSE(sight.misses(2, second));
}

// Hosts that send each other heartbeats, but over the links that are cut, from 2 s to 20 s.
class CutLinks {
 public:
  using Link = std::pair<int, int>;  // from, to
  CutLinks(int hosts, std::vector<Link> cut) : cut_(std::move(cut)) {
    for (int own = 0; own < hosts; ++own) sights_.emplace_back(setup_of(hosts, own));
    const std::int64_t beat_ns = second / 10;
    for (std::int64_t now_ns = beat_ns; now_ns <= 20 * second; now_ns += beat_ns) {
      for (int from = 0; from < hosts; ++from) send(from, now_ns);
      for (int own = 0; own < hosts; ++own) look(own, now_ns);
    }
  }

  // When the host has to leave, and when others are out of its reach, in tenths of a second; -1: never.
  std::map<int, std::int64_t> leaves_ds, out_of_reach_ds;

 private:
  PeerHostMonitor& sight(int host) { return sights_[static_cast<std::size_t>(host)]; }
  void send(int from, std::int64_t now_ns) {
    const GuardMessage message = beat(from, ++number_, sight(from).silent(now_ns));
    for (int to = 0; to < static_cast<int>(sights_.size()); ++to) {
      const bool is_cut = now_ns > 2 * second && std::ranges::find(cut_, Link(from, to)) != cut_.end();
      if (from != to && !is_cut) sight(to).heard(message, now_ns);
    }
  }
  void look(int own, std::int64_t now_ns) {
    const std::int64_t now_ds = 10 * now_ns / second;
    if (!sight(own).leaves_because_of(now_ns).empty()) leaves_ds.try_emplace(own, now_ds);
    if (!sight(own).out_of_reach(now_ns).empty()) out_of_reach_ds.try_emplace(own, now_ds);
  }

  std::vector<Link> cut_;
  std::vector<PeerHostMonitor> sights_;
  std::uint64_t number_ = 0;
};

// Both guards find the same one, half a silence after they notice, and nobody is out of reach meanwhile.
TEST(PeerHostMonitor, OfTwoThatLoseEachOtherOneLeavesWhereAThirdOneHearsBoth) {
  for (const bool is_both_ways : {true, false}) {
    std::vector<CutLinks::Link> cut = {{1, 2}};
    if (is_both_ways) cut.emplace_back(2, 1);
    const CutLinks links(3, cut);
    EXPECT_THAT(links.leaves_ds, ElementsAre(Pair(2, AllOf(Ge(95), Le(97))))) << is_both_ways;
    EXPECT_THAT(links.out_of_reach_ds, ElementsAre(Pair(1, Gt(70 + 2 * 50)), Pair(2, Gt(70 + 2 * 50))))
        << "it has two silences to leave, here in vain";
  }
}

TEST(PeerHostMonitor, NobodyLeavesForALinkToTheFirstHost) {
  const CutLinks links(3, {{0, 2}, {2, 0}});
  EXPECT_THAT(links.leaves_ds, IsEmpty());
  EXPECT_THAT(links.out_of_reach_ds, ElementsAre(Pair(0, Le(71)), Pair(2, Le(71)))) << "both end at once";
}

TEST(PeerHostMonitor, ThoseOfTheFewestHostsLeave) {
  const CutLinks one_end(5, {{1, 2}, {2, 1}, {1, 3}, {3, 1}});
  EXPECT_THAT(one_end.leaves_ds, ElementsAre(Key(1))) << "it is at the end of both links";
  const CutLinks two_links(5, {{1, 2}, {2, 1}, {3, 4}, {4, 3}});
  EXPECT_THAT(two_links.leaves_ds, ElementsAre(Key(2), Key(4)));
}

TEST(PeerHostMonitor, NobodyLeavesForAHostThatIsCutOffOrDeafOrMute) {
  for (int lost = 0; lost < 3; ++lost) {
    std::vector<CutLinks::Link> deaf, mute, both;
    for (int other = 0; other < 3; ++other) {
      if (other == lost) continue;
      deaf.emplace_back(other, lost);
      mute.emplace_back(lost, other);
      both.insert(both.end(), {{other, lost}, {lost, other}});
    }
    for (const std::vector<CutLinks::Link>& cut : {deaf, mute, both}) {
      const CutLinks links(3, cut);
      EXPECT_THAT(links.leaves_ds, IsEmpty()) << lost;
      ASSERT_EQ(links.out_of_reach_ds.size(), 3u) << lost;
      for (const auto& [host, at_ds] : links.out_of_reach_ds)
        EXPECT_LE(at_ds, 73) << "as soon as it is missed: nobody can prove a death there";
    }
  }
}

TEST(PeerHostMonitor, RefusesWhatIsLateTwiceOrOfAnotherStart) {
  PeerHostMonitor sight(setup_of(2, 0));
  EXPECT_TRUE(sight.heard(beat(1, 5), second));
  EXPECT_FALSE(sight.heard(beat(1, 5), 4 * second)) << "it came before";
  EXPECT_FALSE(sight.heard(beat(1, 4), 4 * second)) << "a newer one came before";
  EXPECT_FALSE(sight.heard(beat(1, 9, {}, /*generation=*/0), 4 * second))
      << "another guard has followed that one";
  GuardMessage stale = beat(1, 6);
  stale.start = start - 1;
  EXPECT_FALSE(sight.heard(stale, 4 * second));
  EXPECT_FALSE(sight.heard(beat(0, 6), 4 * second)) << "it is this host";
  EXPECT_FALSE(sight.heard(beat(2, 6), 4 * second)) << "there is no such host";
  EXPECT_FALSE(sight.heard(beat(-1, 6), 4 * second));
  EXPECT_TRUE(sight.misses(1, 6 * second + 1)) << "what is refused is no sign of life";
  EXPECT_TRUE(sight.heard(beat(1, 1, {}, /*generation=*/2), 7 * second))
      << "a guard that has followed counts anew";
  EXPECT_FALSE(sight.misses(1, 7 * second));
}

TEST(PeerHostMonitor, AGuardThatEndsIsNoSilence) {
  PeerHostMonitor sight(setup_of(2, 0));
  EXPECT_TRUE(sight.heard(beat(1, 1), second));
  sight.closed(1, second + second / 10);
  EXPECT_FALSE(sight.misses(1, 11 * second)) << "another guard may begin";
  EXPECT_TRUE(sight.silent(12 * second).empty());
  EXPECT_TRUE(sight.misses(1, 12 * second)) << "none did, and who still waits is told";
  EXPECT_FALSE(sight.misses(1, 60 * second)) << "the others have gone on";
  EXPECT_TRUE(sight.heard(beat(1, 1, {}, 2), 60 * second));
  EXPECT_TRUE(sight.misses(1, 66 * second)) << "watched again";
  sight.closed(1, 75 * second);
  EXPECT_TRUE(sight.misses(1, 76 * second)) << "closed by this side, because nothing came";
}

TEST(PeerHostMonitor, WhoStoodStillHasHeardNobodyAndSuspectsNobody) {
  PeerHostMonitor sight(setup_of(2, 0));
  EXPECT_TRUE(sight.heard(beat(1, 1), second));
  sight.looked_late(60 * second);
  EXPECT_FALSE(sight.misses(1, 61 * second));
  EXPECT_TRUE(sight.misses(1, 66 * second));
}

TEST(PeerHostMonitor, RanksOfOtherHostsByTheClockOfThisOne) {
  PeerHostMonitor sight(setup_of(3, 0));
  GuardMessage message = beat(1, 1);
  message.sent_ns = 900 * second;
  SlotView slot;
  slot.launched_rank = 4;
  slot.begun_ns = 890 * second;
  slot.heartbeat_ns = 899 * second;
  slot.life_ns = 898 * second;
  message.ranks.push_back(slot);
  message.ended.push_back({.host = 1, .launched_rank = 5, .process = 70, .started_ticks = 7});
  EXPECT_TRUE(sight.heard(message, 10 * second));
  const std::vector<WatchedRank> ranks = sight.ranks(11 * second);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_FALSE(ranks[0].ended);
  EXPECT_TRUE(ranks[1].ended);
  EXPECT_EQ(ranks[1].slot.launched_rank, 5);
  EXPECT_EQ(ranks[0].host, "n1");
  EXPECT_FALSE(ranks[0].own_host);
  EXPECT_EQ(ranks[0].slot.launched_rank, 4);
  EXPECT_EQ(ranks[0].slot.begun_ns, 0);
  EXPECT_EQ(ranks[0].slot.heartbeat_ns, 9 * second);
  EXPECT_EQ(ranks[0].slot.wait_begun_ns, 0) << "it does not wait";
  EXPECT_EQ(ranks[0].slot.life_ns, 8 * second);
  EXPECT_EQ(ranks[0].slot.storage_begun_ns, 0);
  EXPECT_THAT(sight.ranks(20 * second), IsEmpty()) << "nobody knows any more what it does";
}

}  // namespace
}  // namespace holdfast::test
