// What a host makes of what it hears of the others: partitions, links in one direction, messages that come
// late, twice, out of order or from another start.
#include "watchdog/peer_host_monitor.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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
  EXPECT_FALSE(sight.out_of_reach(1, 6 * second)) << "for just as long as it may";
  EXPECT_TRUE(sight.out_of_reach(1, 6 * second + 1));
  EXPECT_THAT(sight.silent(100 * second), ElementsAre(1));
  EXPECT_FALSE(sight.out_of_reach(2, 100 * second)) << "its guard may be unable to reach anybody";
  EXPECT_FALSE(sight.out_of_reach(0, 100 * second));
  EXPECT_TRUE(sight.heard(beat(1, 2), 100 * second));
  EXPECT_FALSE(sight.out_of_reach(1, 101 * second)) << "it is back";
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
  EXPECT_FALSE(sights[0].out_of_reach(1, 10 * second));
}

TEST(PeerHostMonitor, ALinkInOneDirectionIsNone) {
  PeerHostMonitor hearing(setup_of(2, 0));
  EXPECT_TRUE(hearing.heard(beat(1, 1), second));
  EXPECT_FALSE(hearing.out_of_reach(1, second));
  EXPECT_TRUE(hearing.heard(beat(1, 2, {0}), 2 * second));
  EXPECT_TRUE(hearing.out_of_reach(1, 2 * second)) << "it says that it does not hear this one";
  EXPECT_THAT(hearing.silent(2 * second), IsEmpty()) << "but it is not silent itself";
  EXPECT_TRUE(hearing.heard(beat(1, 3), 3 * second));
  EXPECT_FALSE(hearing.out_of_reach(1, 3 * second));
}

TEST(PeerHostMonitor, WhatAThirdOneDoesNotHearChangesNothingHere) {
  PeerHostMonitor sight(setup_of(3, 0));
  EXPECT_TRUE(sight.heard(beat(1, 1, {2}), second));
  EXPECT_TRUE(sight.heard(beat(2, 1, {1}), second));
  EXPECT_FALSE(sight.out_of_reach(1, second));
  EXPECT_FALSE(sight.out_of_reach(2, second));
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
  EXPECT_TRUE(sight.out_of_reach(1, 6 * second + 1)) << "what is refused is no sign of life";
  EXPECT_TRUE(sight.heard(beat(1, 1, {}, /*generation=*/2), 7 * second))
      << "a guard that has followed counts anew";
  EXPECT_FALSE(sight.out_of_reach(1, 7 * second));
}

TEST(PeerHostMonitor, AGuardThatEndsIsNoSilence) {
  PeerHostMonitor sight(setup_of(2, 0));
  EXPECT_TRUE(sight.heard(beat(1, 1), second));
  sight.closed(1, second + second / 10);
  EXPECT_FALSE(sight.out_of_reach(1, 11 * second)) << "another guard may begin";
  EXPECT_TRUE(sight.silent(12 * second).empty());
  EXPECT_TRUE(sight.out_of_reach(1, 12 * second)) << "none did, and who still waits is told";
  EXPECT_FALSE(sight.out_of_reach(1, 60 * second)) << "the others have gone on";
  EXPECT_TRUE(sight.heard(beat(1, 1, {}, 2), 60 * second));
  EXPECT_TRUE(sight.out_of_reach(1, 66 * second)) << "watched again";
  sight.closed(1, 75 * second);
  EXPECT_TRUE(sight.out_of_reach(1, 76 * second)) << "closed by this side, because nothing came";
}

TEST(PeerHostMonitor, WhoStoodStillHasHeardNobodyAndBlamesNobody) {
  PeerHostMonitor sight(setup_of(2, 0));
  EXPECT_TRUE(sight.heard(beat(1, 1), second));
  sight.looked_late(60 * second);
  EXPECT_FALSE(sight.out_of_reach(1, 61 * second));
  EXPECT_TRUE(sight.out_of_reach(1, 66 * second));
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
}  // namespace holdfast
