// Tests what the ranks that are left tell each other of how far they had come.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "parallel/comm/gather.h"
#include "parallel/local/local_communicator.h"
#include "runtime/elastic/epoch_memory.h"
#include "runtime/elastic/inventory.h"
#include "runtime/elastic/recovery_plan.h"
#include "tests/parallel/communicator_contract.h"

namespace holdfast::test {
namespace {

// Returns what every rank learns by gather(), of which each says one of `said`.
RecoveryInventory merged(const std::vector<RecoveryInventory>& said) {
  std::vector<RecoveryInventory> merged(said.size());
  HF_EXPECT_OK(
      run_local_ranks(static_cast<int>(said.size()), [&](Communicator& communicator) -> Result<void> {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        HF_TRY(const std::vector<RecoveryInventory> inventories,
               gather(communicator, {posix_env(), 60'000}, said[rank]));
        merged[rank] = merge_inventories(inventories);
        return {};
      }));
  for (const RecoveryInventory& each : merged) EXPECT_EQ(each.step, merged.front().step);
  return merged.front();
}

TEST(GatherInventories, IsThatOfTheRankThatCameFurthest) {
  const std::vector<RecoveryInventory> said = {
      {.launched_ranks = 3, .joined = true, .step = 7},
      {.launched_ranks = 4, .joined = true, .step = 9, .gemm_peak = 2.5},
      {.launched_ranks = 3, .joined = true, .step = 8, .shm_run_id = "run"}};
  const RecoveryInventory all = merged(said);
  EXPECT_EQ(all.step, 9U);
  EXPECT_EQ(all.launched_ranks, 4);
  EXPECT_EQ(all.gemm_peak, 2.5);
  EXPECT_EQ(all.shm_run_id, "run");
  EXPECT_TRUE(all.joined);
  EXPECT_FALSE(merged({{.joined = true}, {.joined = false}}).joined) << "one that has to begin anew";
}

TEST(GatherInventories, WhatOneRankKnowsHoldsForAll) {
  const RecoveryInventory all =
      merged({{.kept_step = 6, .redone_step = 4, .redone = 1},
              {.verdict = "rank 2 hung", .lost_some = true, .redone_step = 5, .redone = 2},
              {.redone_step = 5, .redone = 1}});
  EXPECT_TRUE(all.lost_some);
  EXPECT_EQ(all.kept_step, 6U);
  EXPECT_EQ(all.verdict, "rank 2 hung");
  EXPECT_EQ(all.redone_step, 5U);
  EXPECT_EQ(all.redone, 2);
}

// A rank that was told by another knows less than those that noticed it themselves, however early.
TEST(GatherInventories, TheFirstThatNoticedItItselfSaysHow) {
  const RecoveryInventory all = merged({{.noticed_us = 10, .reported = true, .noticed = "rank 1 gave up"},
                                        {.noticed_us = 30, .noticed = "late"},
                                        {.noticed_us = 20, .noticed = "two lines\nof it"}});
  EXPECT_EQ(all.noticed, "two lines\nof it");
  EXPECT_EQ(all.noticed_us, 20);
  EXPECT_FALSE(all.reported);
}

MembershipView view_of(std::uint64_t epoch, const std::vector<int>& launched_ranks) {
  MembershipView view{.epoch = epoch, .members = {}};
  for (const int rank : launched_ranks) view.members.push_back({.launched_rank = rank, .host = "a"});
  return view;
}

// Launched ranks 1, 4, 6 and 7 are ranks 0 to 3 of the epoch before; the last is a spare.
TEST(NoCoordinateIsLost, OnlyWhereEveryRankThatComputesIsLeft) {
  const RankAssignment assignment{.shape = {.data = 3}, .active_ranks = {2, 0, 1}, .spares = {3}};
  const MembershipView before = view_of(1, {1, 4, 6, 7});
  EXPECT_TRUE(no_coordinate_is_lost(assignment, before, before));
  EXPECT_TRUE(no_coordinate_is_lost(assignment, before, view_of(2, {1, 4, 6})))
      << "a spare holds no part of the state";
  for (const int lost : {1, 4, 6}) {
    std::vector<int> left = {1, 4, 6, 7};
    std::erase(left, lost);
    EXPECT_FALSE(no_coordinate_is_lost(assignment, before, view_of(2, left))) << lost;
    EXPECT_FALSE(no_coordinate_is_lost(assignment, before, view_of(2, {lost}))) << lost;
  }
}

}  // namespace
}  // namespace holdfast::test
