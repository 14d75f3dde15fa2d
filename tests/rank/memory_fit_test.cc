// Decisions about memory, by table: pure numbers, in units of one.
#include "runtime/rank/memory_fit.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::test {
namespace {

using Kind = FitAnswer::Kind;
using enum SnapshotTiers;

// Plans 10 of ordinary memory, 3 slots of 2, and replicas of 4; 2 more of ordinary memory without slots.
struct Machine {
  int ranks = 2;
  std::uint64_t available = 1000, total = 1000, shared_free = 1000;
  std::uint64_t kept = 0, unneeded = 0, resumed = 0;
};

std::vector<RankMemory> ranks_of(const Machine& machine, const std::string& host = "a") {
  const RankMemory rank{.host = host,
                        .need = {{{12, 0}, {10, 6}, {10, 10}}},
                        .slot_bytes = 2,
                        .kept_bytes = machine.kept,
                        .unneeded_bytes = machine.unneeded,
                        .resumed_bytes = machine.resumed,
                        .room = MemoryRoom{machine.available, machine.total, ""},
                        .shared_free = machine.shared_free};
  return std::vector<RankMemory>(static_cast<std::size_t>(machine.ranks), rank);
}

struct FitCase {
  const char* name;
  Machine machine;
  SnapshotTiers had = none;
  bool time_is_over = false;
  Kind kind = Kind::fits;
  SnapshotRoom room = {};
  bool removes_first = false;
};

class MemoryFit : public testing::TestWithParam<FitCase> {};

TEST_P(MemoryFit, Decides) {
  const FitCase& each = GetParam();
  const std::vector<RankMemory> ranks = ranks_of(each.machine);
  const FitAnswer answer =
      decide_fit({.ranks = ranks, .wanted = all, .waits_for = each.had, .time_is_over = each.time_is_over});
  EXPECT_EQ(answer.kind, each.kind);
  EXPECT_EQ(answer.room, each.room);
  EXPECT_EQ(answer.removes_snapshots_first, each.removes_first);
}

const FitCase fit_cases[] = {
    {"Exactly", {.available = 40}},
    {"OneLessTakesFewerTiersAtAFreshStart", {.available = 39}, none, false, Kind::fits, {own, false}},
    {"NoRoomForSlots", {.available = 31}, none, false, Kind::fits, {none, false}},
    {"AStartWaitsForTheLeast", {.available = 23}, none, false, Kind::wait, {none, false}},
    {"ARunWaitsForWhatItHad", {.available = 39}, all, false, Kind::wait, {all, false}},
    {"ARunDoesNotWaitForWhatItNeverHad", {.available = 39}, own, false, Kind::fits, {own, false}},
    {"AfterTheWaitFewerTiers", {.available = 39}, all, true, Kind::fits, {own, false}},
    {"AfterTheWaitNothing", {.available = 23}, all, true, Kind::lacks, {none, false}},
    {"NeverWithReplicas", {.available = 39, .total = 39}, all, false, Kind::fits, {own, false}},
    {"NeverAtAll", {.available = 23, .total = 23}, all, false, Kind::too_large, {none, false}},
    {"NeverAtAllAlsoWhenTheTimeIsOver",
     {.available = 3, .total = 23},
     all,
     true,
     Kind::too_large,
     {none, false}},
    {"KeptMemoryCountsOnce", {.available = 22, .kept = 9}},
    {"MoreIsKeptThanNeeded", {.available = 20, .kept = 50}},
    {"WhatIsKeptAndNotNeededIsGivenBack", {.available = 10, .kept = 15}},
    {"AndNoMoreThanThat", {.available = 9, .kept = 15}, none, false, Kind::fits, {own, false}},
    {"UnneededSnapshotsCountAsFree", {.available = 20, .unneeded = 20}},
    {"UnneededSnapshotsGoFirst",
     {.available = 19, .unneeded = 21},
     none,
     false,
     Kind::fits,
     {all, false},
     true},
    {"TheThirdSlotComesLater", {.available = 36, .resumed = 4}, all, false, Kind::fits, {all, true}},
    {"ButNotWhereNothingGoes", {.available = 36}, all, false, Kind::wait, {all, false}},
    {"SharedMemoryIsTooSmall", {.shared_free = 5}, all, false, Kind::fits, {none, false}},
    {"SharedMemoryHasSlotsAlone", {.shared_free = 12}, all, false, Kind::fits, {own, false}},
    {"SharedMemoryHoldsOldOnes", {.shared_free = 0, .unneeded = 20}},
    {"SharedMemoryOfExactlyThePlan",
     {.shared_free = 0, .unneeded = 16, .resumed = 4},
     all,
     false,
     Kind::fits,
     {all, true}},
};

INSTANTIATE_TEST_SUITE_P(Table, MemoryFit, testing::ValuesIn(fit_cases),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(MemoryFitHosts, TheFullestHostDecidesAndIsNamed) {
  std::vector<RankMemory> ranks = ranks_of({});
  for (const RankMemory& rank : ranks_of({.available = 35}, "b")) ranks.push_back(rank);
  const FitAnswer answer = decide_fit({.ranks = ranks});
  EXPECT_EQ(answer.room.tiers, own);
  EXPECT_EQ(answer.host, "b");
  EXPECT_EQ(answer.needed_bytes, 40u);
  EXPECT_EQ(answer.available_bytes, 35u);
}

// Each rank is limited by itself, so nobody takes what another needs.
TEST(MemoryFitHosts, RanksWithGroupsOfTheirOwnShareNothing) {
  std::vector<RankMemory> ranks = ranks_of({.available = 20, .total = 20});
  EXPECT_EQ(decide_fit({.ranks = ranks}).kind, Kind::too_large);
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].room->limited_by = "/group/" + std::to_string(i);
  EXPECT_EQ(decide_fit({.ranks = ranks}).room.tiers, all);
}

TEST(MemoryFitHosts, WhatIsNotKnownFits) {
  std::vector<RankMemory> ranks = ranks_of({.available = 0, .shared_free = 0});
  for (RankMemory& rank : ranks) {
    rank.room = std::nullopt;
    rank.shared_free = std::nullopt;
  }
  EXPECT_EQ(decide_fit({.ranks = ranks}).room, SnapshotRoom{});
}

TEST(MemoryFitHosts, TiersThatNobodyAsksForAreNotTaken) {
  const std::vector<RankMemory> ranks = ranks_of({});
  EXPECT_EQ(decide_fit({.ranks = ranks, .wanted = own}).room.tiers, own);
}

}  // namespace
}  // namespace holdfast::test
