#include "runtime/chaos/chaos_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/chaos/campaign.h"
#include "runtime/chaos/chaos_run.h"
#include "runtime/config/loader.h"
#include "runtime/core/env.h"
#include "runtime/core/fault_point.h"

namespace holdfast {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

ChaosLimits limits() {
  ChaosLimits limits{.steps = 50, .layouts = layouts_up_to(4, 2, 2)};
  for (const ChaosFault fault :
       {ChaosFault::kill, ChaosFault::two_kills, ChaosFault::kill_in_recovery, ChaosFault::kill_at_point,
        ChaosFault::crash, ChaosFault::slow_rank, ChaosFault::mpirun_killed, ChaosFault::job_killed,
        ChaosFault::damaged_checkpoint}) {
    limits.faults.push_back(fault);
  }
  limits.points = {"step.begin", "step.after_vote", "save.before_rename"};
  limits.savings = {"", "--checkpoint.ram_every_steps=1"};
  return limits;
}

TEST(ChaosPlan, ASeedRepeatsItsPlan) {
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    EXPECT_EQ(to_lines(plan_chaos(seed, limits())), to_lines(plan_chaos(seed, limits())));
  std::set<std::vector<std::string>> different;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<std::string> lines = to_lines(plan_chaos(seed, limits()));
    lines.erase(lines.begin());  // which names the seed
    different.insert(std::move(lines));
  }
  EXPECT_GT(different.size(), 190U);
}

TEST(ChaosPlan, StaysInsideTheLimits) {
  std::set<ChaosFault> seen;
  std::set<std::string> layouts;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const ChaosPlan plan = plan_chaos(seed, limits());
    ASSERT_FALSE(plan.injections.empty());
    ASSERT_LE(plan.injections.size(), 4U);
    layouts.insert(to_text(plan.layout));
    std::uint64_t before = 0;
    for (const ChaosInjection& injection : plan.injections) {
      seen.insert(injection.fault);
      EXPECT_GE(injection.step, std::max<std::uint64_t>(before, 1));
      EXPECT_LT(injection.step, 49U) << "there is time to see it";
      EXPECT_LT(injection.victim, plan.layout.ranks);
      before = injection.step;
    }
    // What it arms is what the program understands.
    EXPECT_TRUE(FaultPoints::parse(fault_points_of(plan), 0, posix_env()).ok()) << fault_points_of(plan);
  }
  EXPECT_EQ(seen.size(), limits().faults.size()) << "every fault that is possible is drawn";
  EXPECT_EQ(layouts.size(), limits().layouts.size());
}

TEST(ChaosPlan, WhichFaultsExistDiffersFromSeedToSeed) {
  std::size_t with_one = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    std::set<ChaosFault> kinds;
    const ChaosPlan plan = plan_chaos(seed, limits());
    for (const ChaosInjection& injection : plan.injections) kinds.insert(injection.fault);
    with_one += plan.injections.size() == 4 && kinds.size() == 1 ? 1 : 0;
  }
  EXPECT_GT(with_one, 5U) << "four draws of nine kinds would hardly ever be the same";
}

TEST(ChaosPlan, KillsOnlyUsesUpEveryStart) {
  ChaosLimits kills = limits();
  kills.kills_only = true;
  kills.steps = 120;
  kills.layouts = {{.ranks = 8, .pipeline = 1, .tensor = 2, .spares = 2}};
  std::size_t in_recovery = 0, all = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const ChaosPlan plan = plan_chaos(seed, kills);
    EXPECT_EQ(plan.injections.size(), 29U);
    int deaths = 0;
    for (const ChaosInjection& injection : plan.injections) {
      if (injection.fault == ChaosFault::mpirun_killed) {
        EXPECT_EQ(deaths, 6) << "until one copy is left";
        deaths = 0;
        ++all;
        continue;
      }
      const int more = injection.fault == ChaosFault::kill ? 1 : 2;
      deaths += more;
      all += static_cast<std::size_t>(more);
      in_recovery += injection.fault == ChaosFault::kill_in_recovery ? 1 : 0;
    }
  }
  EXPECT_GT(in_recovery * 3, all * 8 / 10) << "about a third";
}

TEST(ChaosPlan, Layouts) {
  std::vector<std::string> found;
  for (const ChaosLayout& layout : layouts_up_to(3, 2, 2)) found.push_back(to_text(layout));
  EXPECT_THAT(
      found,
      ElementsAre("2 ranks = 2 copies x 1 stage x 1", "2 ranks = 1 copy x 1 stage x 1 + 1 spare",
                  "2 ranks = 1 copy x 1 stage x 2", "2 ranks = 1 copy x 2 stages x 1",
                  "3 ranks = 3 copies x 1 stage x 1", "3 ranks = 2 copies x 1 stage x 1 + 1 spare",
                  "3 ranks = 1 copy x 1 stage x 1 + 2 spares", "3 ranks = 1 copy x 1 stage x 2 + 1 spare",
                  "3 ranks = 1 copy x 2 stages x 1 + 1 spare"));
}

TEST(ChaosRun, WhatThePlanSetsIsNotSetTwice) {
  const ChaosSetup setup{.program = "holdfast",
                         .config = "run.toml",
                         .overrides = {"--run.seed=7", "--parallel.data=9", "--checkpoint.ram_every_steps=5"},
                         .lanes = 4,
                         .digest = {}};
  const ChaosPlan plan{.seed = 1,
                       .layout = {.ranks = 5, .pipeline = 2, .spares = 1},
                       .saving = "--checkpoint.ram_every_steps=1"};
  EXPECT_THAT(launch_words(setup, plan, "d"),
              ElementsAre("holdfast", "launch", "-np", "5", "run.toml", "--run.seed=7", "--run.directory=d",
                          "--parallel.lanes=4", "--parallel.tensor_lanes=1", "--parallel.data=2",
                          "--parallel.pipeline=2", "--parallel.tensor=1", "--elastic.spares=1",
                          "--checkpoint.ram_every_steps=1"));
}

Config small_config() {
  Config config;
  config.model.layers = 2;
  config.model.heads = config.model.kv_heads = 4;
  config.model.width = 64;
  config.model.vocabulary = 256;
  config.training.steps = 50;
  config.training.sequence_length = 64;
  config.training.microbatch_size = 2;
  config.parallel.lanes = 2;
  config.parallel.tensor_lanes = 2;
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

TEST(Campaign, OnlyLayoutsThatTheConfigCanHave) {
  const Result<ChaosChoice> choice = choose_limits(small_config(), {.config = "run.toml", .ranks = 8});
  ASSERT_TRUE(choice.ok()) << choice.error().message;
  for (const ChaosLayout& layout : choice->limits.layouts) {
    EXPECT_LE(layout.data(), 2) << "a rank needs a lane: " << to_text(layout);
    EXPECT_LE(layout.tensor, 2);
    EXPECT_LE(layout.pipeline, 4);
  }
  EXPECT_THAT(choice->skipped, Contains(testing::Key(ChaosFault::lost_host)));
  EXPECT_THAT(choice->skipped, Contains(testing::Key(ChaosFault::damaged_checkpoint)))
      << "there is none before the end";
  EXPECT_THAT(choice->limits.points, Not(Contains(HasSubstr("recover."))));
}

TEST(Campaign, NothingIsLeftToDraw) {
  const Result<ChaosChoice> choice =
      choose_limits(small_config(), {.config = "run.toml", .faults = {ChaosFault::lost_host}});
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.error().message, HasSubstr("lost_host: all ranks are on this host"));
}

}  // namespace
}  // namespace holdfast
