#include "tools/chaos/chaos_plan.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/config/loader.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/run/launch_record.h"
#include "tests/support/forwarding_env.h"
#include "tools/chaos/campaign.h"
#include "tools/chaos/chaos_run.h"

namespace holdfast::test {
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

TEST(ChaosPlan, HasAFaultEachSoManySecondsOfAllKindsInTurn) {
  ChaosLimits regular = limits();
  regular.faults = {ChaosFault::kill, ChaosFault::crash, ChaosFault::mpirun_killed, ChaosFault::full_disk,
                    ChaosFault::stalled_disk};
  regular.every_us = 600'000'000;
  regular.faults_max = 12;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const ChaosPlan plan = plan_chaos(seed, regular);
    ASSERT_EQ(plan.injections.size(), 12U);
    std::map<ChaosFault, int> count;
    for (std::size_t i = 0; i < plan.injections.size(); ++i) {
      ++count[plan.injections[i].fault];
      EXPECT_EQ(plan.injections[i].delay_us, 600'000'000);
      EXPECT_LE(plan.injections[i].step, i + 1) << "only the time makes them wait";
      EXPECT_TRUE(plan.injections[i].point.empty());
    }
    EXPECT_EQ(count.size(), 4U) << "one disk cannot be full and stall";
    for (const auto& [fault, times] : count) EXPECT_EQ(times, 3) << facts_of(fault).name;
  }
}

TEST(ResourceWatch, DescriptorsThatComeAndGoAreNotKept) {
  const auto use = [](std::uint64_t descriptors) {
    return ResourceUse{.resident_bytes = 1, .descriptors = descriptors};
  };
  std::vector<ResourceUse> looks(20, use(30));
  looks.back() = looks[3] = use(90);
  EXPECT_EQ(growth_of(looks).descriptors(), 0);
  EXPECT_EQ(descriptors_kept({growth_of(looks)}), "");
  for (std::size_t i = 0; i < looks.size(); ++i) looks[i] = use(30 + 2 * i);
  ResourceGrowth grown = growth_of(looks);
  grown.program = "guard";
  EXPECT_EQ(grown.descriptors(), 30);
  EXPECT_THAT(descriptors_kept({growth_of({use(1)}), grown}),
              HasSubstr("(guard) had 30 descriptors at first and 60"));
}

class ClockEnv final : public ForwardingEnv {
 public:
  ClockEnv() : ForwardingEnv(posix_env()) {}
  std::int64_t monotonic_ns() override { return now_ns_; }
  void sleep_us(std::int64_t duration_us) override { now_ns_ += duration_us * 1'000; }

 private:
  std::int64_t now_ns_ = 1;
};

TEST(ResourceWatch, LooksAtTheProcessesOfAStart) {
  const Result<std::unique_ptr<Process>> process = posix_env().processes().start(
      {.arguments = {"sleep", "60"}, .variables = {{launch_variable, "/watched/launch/one"}}});
  ASSERT_TRUE(process.ok());
  // It has no memory at the moment at which it becomes the program.
  const auto is_program = [&] {
    const Result<std::string> words =
        posix_env().read_text(fmt::format("/proc/{}/cmdline", (*process)->id()));
    const std::optional<ProcessFacts> facts = posix_env().processes().facts((*process)->id());
    return words.ok() && words->starts_with("sleep") && facts.has_value() && facts->resident_bytes > 0;
  };
  while (!is_program()) posix_env().sleep_us(1'000);
  ClockEnv env;
  ResourceWatch watch(env);
  for (int looks = 0; looks < 12; ++looks) {
    watch.look(posix_env().process_id(), "/watched/launch/one");
    watch.look(posix_env().process_id(), "/watched/launch/one");  // too soon
    env.sleep_us(5'000'000);
  }
  const std::vector<ResourceGrowth> growths = watch.growths();
  ASSERT_EQ(growths.size(), 2U);
  EXPECT_EQ(growths[0].process, posix_env().process_id());
  EXPECT_EQ(growths[1].process, (*process)->id());
  EXPECT_EQ(growths[1].program, "sleep");
  EXPECT_EQ(growths[1].seconds, 55) << "from the first sight, which is no look";
  EXPECT_GT(growths[1].first.resident_bytes, 0U);
  EXPECT_GE(growths[1].first.descriptors, 3U);
  EXPECT_EQ(growths[1].descriptors(), 0);
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

TEST(ChaosPlan, WhichInjectionHasArmedWhatHappened) {
  const ChaosInjection spin{.fault = ChaosFault::livelock, .point = "step.before_reduce@12:1=spin"};
  EXPECT_TRUE(is_armed_by(spin, "step.before_reduce", 12, 1, "spin"));
  EXPECT_FALSE(is_armed_by(spin, "step.before_reduce", 1, 1, "spin"));
  EXPECT_FALSE(is_armed_by(spin, "step.before_reduce", 12, 11, "spin"));
  EXPECT_FALSE(is_armed_by(spin, "step.before_reduce", 12, 1, "kill"));
  EXPECT_FALSE(is_armed_by(spin, "step.begin", 12, 1, "spin"));
  const ChaosInjection first{.fault = ChaosFault::kill_at_point, .point = "recover.begin:3=kill"};
  EXPECT_TRUE(is_armed_by(first, "recover.begin", 1, 3, "kill"));
  EXPECT_FALSE(is_armed_by(first, "recover.begin", 2, 3, "kill"));
  EXPECT_FALSE(is_armed_by({.fault = ChaosFault::kill}, "recover.begin", 1, 3, "kill"));
  // What the plan makes is found again, each of the three of a slow rank.
  ChaosLimits slow = limits();
  slow.faults = {ChaosFault::slow_rank};
  const ChaosInjection late = plan_chaos(1, slow).injections.front();
  for (std::uint64_t hit = late.step; hit < late.step + 3; ++hit)
    EXPECT_TRUE(is_armed_by(late, "step.before_backward", hit, late.victim, "sleep")) << late.point;
}

// Of one rank and of all; once, for a while, and for good: what the log of fault points says is found in the plan.
TEST(ChaosPlan, StorageFailsForAsLongAndAsManyAsTheSeedSays) {
  ChaosLimits storage = limits();
  storage.faults = {ChaosFault::read_error, ChaosFault::write_error};
  storage.lanes = 4;
  storage.samples_of_step = 8;
  std::set<std::string> kinds;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (const ChaosInjection& injection : plan_chaos(seed, storage).injections) {
      const std::string& point = injection.point;
      const bool reads = injection.fault == ChaosFault::read_error;
      const std::size_t equals = point.find('='), rank = point.find(':');
      const bool on_all = rank > equals;
      const std::string action = point.substr(equals + 1);
      EXPECT_THAT(point, testing::StartsWith(reads ? "data.read@" : "save.before_shard@"));
      kinds.insert(fmt::format("{} {} {}", reads, on_all,
                               action == "error"              ? "once"
                               : action == "error:EIO:always" ? "for good"
                                                              : "for a while"));
      const std::uint64_t hit = std::stoull(point.substr(point.find('@') + 1));
      const int of_rank = on_all ? 7 : std::stoi(point.substr(rank + 1));
      EXPECT_TRUE(is_armed_by(injection, reads ? read_point : write_point, hit, of_rank, action)) << point;
      EXPECT_TRUE(FaultPoints::parse(point, 0, posix_env()).ok()) << point;
    }
  }
  EXPECT_EQ(kinds.size(), 10U) << "on all ranks it is never for good";
}

// The job is killed first, and the launch after that has the point armed: none other.
TEST(ChaosPlan, ReadsOfCheckpointsFailWhereARunBeginsAgain) {
  ChaosLimits storage = limits();
  storage.faults = {ChaosFault::load_error};
  std::set<std::string> kinds;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const ChaosPlan plan = plan_chaos(seed, storage);
    EXPECT_EQ(fault_points_of(plan), "");
    for (const ChaosInjection& injection : plan.injections) {
      const std::string& point = injection.point;
      EXPECT_TRUE(is_armed_later(injection));
      EXPECT_EQ(fault_points_of(plan, {.only_of_data = true, .later = &injection}), point);
      EXPECT_TRUE(FaultPoints::parse(point, 0, posix_env()).ok()) << point;
      EXPECT_THAT(point, testing::StartsWith("load.read@"));
      EXPECT_THAT(to_text(injection), HasSubstr(point + ", "));
      const std::string action = point.substr(point.find('='));
      kinds.insert(fmt::format("{} {}", point.find(':') > point.find('='),
                               action.find(':') == std::string::npos ? action : action.substr(0, 12)));
    }
  }
  EXPECT_THAT(kinds, Contains("true =error"));
  EXPECT_THAT(kinds, Contains("false =error:EIO:a"));
  EXPECT_THAT(kinds, Not(Contains("true =error:EIO:a"))) << "on all ranks it is never for good";
}

TEST(ChaosPlan, SlowStorageIsMostlyOfASecondACallAndRarelyOfAMinute) {
  const ChaosLimits slow{
      .steps = 50,
      .layouts = {{.ranks = 2}},
      .faults = {ChaosFault::full_disk, ChaosFault::stalled_disk, ChaosFault::slow_storage},
      .savings = {""}};
  std::map<std::int64_t, int> count;
  int of_data = 0, beside_other_disks = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    bool is_slow = false, is_other = false;
    for (const ChaosInjection& injection : plan_chaos(seed, slow).injections) {
      if (injection.fault != ChaosFault::slow_storage) {
        is_other = true;
        continue;
      }
      is_slow = true;
      ++count[injection.call_ms];
      of_data += injection.of_data ? 1 : 0;
      EXPECT_EQ(injection.lasts, 0U);
      EXPECT_GT(injection.pause_us, 1000 * injection.call_ms) << "a call is over before";
      EXPECT_LE(injection.pause_us, 120'000'000);
      EXPECT_THAT(to_text(injection), HasSubstr(fmt::format("takes {} s", injection.call_ms / 1000)));
    }
    beside_other_disks += is_slow && is_other ? 1 : 0;
  }
  EXPECT_EQ(beside_other_disks, 0) << "a run has one disk";
  EXPECT_EQ(count.size(), 3U);
  EXPECT_GT(count[1'000], 2 * count[10'000]);
  EXPECT_GT(count[10'000], 2 * count[60'000]);
  EXPECT_GT(of_data, 10);
}

// A rank with two lanes passes some places twice a step.
TEST(ChaosPlan, WhatIsOfAStepHappensInIt) {
  ChaosLimits two = limits();
  two.faults = {ChaosFault::livelock, ChaosFault::slow_rank, ChaosFault::kill_at_point};
  two.layouts = {{.ranks = 2}};
  two.lanes = 4;
  two.points = {"step.before_reduce", "step.end"};
  std::set<std::string> places;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (const ChaosInjection& injection : plan_chaos(seed, two).injections) {
      const bool slow = injection.fault == ChaosFault::slow_rank;
      const std::string name = injection.point.substr(0, injection.point.find('@'));
      const std::uint64_t hit = name == "step.end" ? injection.step : 2 * (injection.step - 1) + 1;
      EXPECT_THAT(injection.point, testing::StartsWith(fmt::format("{}@{}:", name, hit)));
      EXPECT_TRUE(!slow || injection.point.find(fmt::format(",{}@{}:", name, hit + 2)) != std::string::npos);
      if (injection.fault == ChaosFault::livelock) places.insert(name);
    }
  }
  EXPECT_EQ(places.size(), 2U) << "a livelock begins anywhere in a step";
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

// Of the deaths that the plan brings about by hand; one that happens by itself has its place in the budget.
TEST(ChaosPlan, KillsOnlyUsesUpEveryStart) {
  ChaosLimits kills = limits();
  kills.kills_only = true;
  kills.steps = 400;
  kills.layouts = {{.ranks = 8, .pipeline = 1, .tensor = 2, .spares = 2}};
  int all_kills = 0, in_recovery = 0, by_mpirun = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const ChaosPlan plan = plan_chaos(seed, kills);
    const bool by_itself = plan.injections.front().fault == ChaosFault::kill_at_point;
    EXPECT_LE(plan.injections.size(), by_itself ? 40U : 39U);
    EXPECT_GE(plan.injections.size(), 38U);
    EXPECT_LT(plan.injections.back().step, 200U) << "more pass than are waited for";
    EXPECT_NE(plan.injections.back().fault, ChaosFault::all_killed) << "the last start lives on";
    int deaths = by_itself ? 1 : 0;
    for (const ChaosInjection& injection : plan.injections) {
      if (injection.fault == ChaosFault::kill_at_point) continue;
      if (injection.fault == ChaosFault::mpirun_killed || injection.fault == ChaosFault::all_killed) {
        EXPECT_EQ(deaths, 6) << "until one copy is left";
        all_kills += injection.fault == ChaosFault::all_killed ? 2 + deaths : 1 + deaths;
        in_recovery += by_itself ? 1 : 0;
        by_mpirun += injection.fault == ChaosFault::mpirun_killed ? 1 : 0;
        deaths = by_itself ? 1 : 0;
        continue;
      }
      EXPECT_EQ(injection.deaths == 1, injection.fault == ChaosFault::kill);
      deaths += injection.deaths;
      in_recovery += injection.fault == ChaosFault::kill_in_recovery ? injection.deaths - 1 : 0;
    }
  }
  EXPECT_GT(by_mpirun, 30);
  EXPECT_GT(in_recovery * 100, all_kills * 45) << "a third is wanted, and not every one comes in time";
}

TEST(ChaosPlan, KillsOnlyTakesTheLayoutsInTurn) {
  ChaosLimits kills = limits();
  kills.kills_only = true;
  std::set<std::string> layouts;
  for (std::uint64_t seed = 7; seed < 7 + kills.layouts.size(); ++seed)
    layouts.insert(to_text(plan_chaos(seed, kills).layout));
  EXPECT_EQ(layouts.size(), kills.layouts.size());
}

TEST(ChaosPlan, ALayoutIsAWord) {
  const std::optional<ChaosLayout> layout = read_layout("2x3x1+4");
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(to_text(*layout), "10 ranks = 2 copies x 3 stages x 1 + 4 spares");
  EXPECT_EQ(to_word(*layout), "2x3x1+4");
  EXPECT_EQ(to_word(read_layout("4x1x2").value()), "4x1x2");
  for (const char* text : {"", "2", "2x2", "2x2x", "0x1x1", "2x2x2+", "2x2x2+-1", "2x2x2 ", "2x2x2+1+1",
                           "x1x1", "99999999999x1x1", "2*2*2"})
    EXPECT_FALSE(read_layout(text).has_value()) << text;
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
              ElementsAre("holdfast", "launch", "--faults", "-np", "5", "run.toml", "--run.seed=7",
                          "--run.directory=d", "--parallel.lanes=4", "--parallel.tensor_lanes=1",
                          "--parallel.data=2", "--parallel.pipeline=2", "--parallel.tensor=1",
                          "--elastic.spares=1", "--checkpoint.ram_every_steps=1"));
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
  config.checkpoint.every_steps = config.checkpoint.ram_every_steps = 0;
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

TEST(Campaign, OnlyLayoutsThatTheConfigCanHave) {
  const Result<ChaosChoice> choice = choose_limits(small_config(), {.config = "run.toml", .ranks = 8}, {});
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

TEST(Campaign, OnlyTheLayoutsThatWereNamed) {
  CampaignOptions options{.config = "run.toml", .layouts = {read_layout("2x1x2+3").value()}};
  const Result<ChaosChoice> choice = choose_limits(small_config(), options, {});
  ASSERT_TRUE(choice.ok()) << choice.error().message;
  ASSERT_EQ(choice->limits.layouts.size(), 1U);
  EXPECT_EQ(choice->limits.layouts.front().ranks, 7);
  options.layouts.push_back(read_layout("3x1x1").value());
  const Result<ChaosChoice> impossible = choose_limits(small_config(), options, {});
  ASSERT_FALSE(impossible.ok());
  EXPECT_THAT(impossible.error().message, HasSubstr("cannot run in the layout 3x1x1 (3 ranks = 3 copies"));
}

TEST(Campaign, WhatHostsCanMeetWithIsForTheirOwnerToSay) {
  const ChaosMachine machine{.hosts = {{.name = "a", .slots = 2}, {.name = "b", .slots = 2}},
                             .other_hosts = {"b"}};
  CampaignOptions options{.config = "run.toml"};
  const auto skipped = [&] { return choose_limits(small_config(), options, machine)->skipped; };
  EXPECT_THAT(skipped()[ChaosFault::lost_host], HasSubstr("--lose-host CMD and --return-host CMD"));
  EXPECT_THAT(skipped()[ChaosFault::cut_link], HasSubstr("--cut-link CMD and --mend-link CMD"));
  EXPECT_THAT(skipped(), Contains(testing::Key(ChaosFault::full_disk)));
  EXPECT_THAT(skipped(), Contains(testing::Key(ChaosFault::ram_lost)));
  options.host_commands = {{"lose-host", "off"}, {"return-host", "on"}, {"cut-link", "down"}};
  EXPECT_THAT(skipped(), Not(Contains(testing::Key(ChaosFault::lost_host))));
  EXPECT_THAT(skipped(), Contains(testing::Key(ChaosFault::cut_link)));
}

TEST(Campaign, EveryFaultOfHostsTakesItsOwnCommands) {
  const ChaosMachine machine{.hosts = {{.name = "a", .slots = 2}, {.name = "b", .slots = 2}},
                             .other_hosts = {"b"}};
  Config config = small_config();
  config.health.preset = "guard";
  for (const HostFault& of_host : host_faults()) {
    const auto reason = [&](const HostCommands& commands, const char* hostfile = "hosts") {
      const CampaignOptions options{.config = "run.toml", .hostfile = hostfile, .host_commands = commands};
      const auto skipped = choose_limits(config, options, machine)->skipped;
      const auto found = skipped.find(of_host.fault);
      return found == skipped.end() ? "" : found->second;
    };
    const std::string begin(of_host.begin), end(of_host.end);
    EXPECT_THAT(reason({}), HasSubstr(fmt::format("nobody said how: --{} CMD", begin)));
    if (!end.empty()) {
      EXPECT_THAT(reason({}), HasSubstr(fmt::format(" and --{} CMD", end)));
    }
    EXPECT_EQ(reason({{begin, "begin"}}).empty(), end.empty());
    EXPECT_FALSE(reason({{end, "end"}}).empty());
    EXPECT_EQ(reason({{begin, "begin"}, {end, "end"}}), "");
    EXPECT_EQ(reason({{begin, "begin"}, {end, "end"}}, "").empty(), !of_host.renames)
        << "who is named by --host has the names of before";
  }
}

TEST(ChaosPlan, WhatHappensToAHostLastsUnlessItsRanksAreKilled) {
  ChaosLimits limits{.steps = 50, .layouts = {{.ranks = 6}}, .savings = {""}};
  std::set<ChaosFault> drawn;
  for (const HostFault& of_host : host_faults()) limits.faults.push_back(of_host.fault);
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    for (const ChaosInjection& injection : plan_chaos(seed, limits).injections) {
      drawn.insert(injection.fault);
      const bool is_by_clock = injection.fault == ChaosFault::unfit_host;
      EXPECT_EQ(injection.lasts == 0, injection.fault == ChaosFault::host_killed ||
                                          injection.fault == ChaosFault::sick_host || is_by_clock);
      EXPECT_EQ(injection.pause_us > 0, is_by_clock) << to_text(injection);
      EXPECT_TRUE(facts_of(injection.fault).lasts) << "it is made by a command";
      EXPECT_EQ(to_text(injection).find(" steps") == std::string::npos, injection.lasts == 0);
    }
  }
  EXPECT_EQ(drawn.size(), host_faults().size());
}

TEST(Campaign, ADiskIsFullWhereOneCanBeMounted) {
  Config config = small_config();
  config.checkpoint.every_steps = 5;
  const CampaignOptions options{.config = "run.toml"};
  EXPECT_THAT(choose_limits(config, options, {})->limits.faults, Contains(ChaosFault::full_disk));
  const Result<ChaosChoice> choice = choose_limits(config, options, {.no_small_disk = "it is forbidden"});
  EXPECT_THAT(choice->limits.faults, Not(Contains(ChaosFault::full_disk)));
  EXPECT_EQ(choice->skipped.at(ChaosFault::full_disk), "it is forbidden");
}

TEST(Campaign, ADiskStallsWhereOneCanBeMounted) {
  CampaignOptions options{.config = "run.toml"};
  EXPECT_THAT(choose_limits(small_config(), options, {})->limits.faults, Contains(ChaosFault::stalled_disk));
  const Result<ChaosChoice> choice =
      choose_limits(small_config(), options, {.no_stalling_disk = "there is no mkfs.ext4"});
  EXPECT_THAT(choice->limits.faults, Not(Contains(ChaosFault::stalled_disk)));
  EXPECT_THAT(choice->limits.faults, Contains(ChaosFault::stalled_output)) << "which takes a pipe alone";
  EXPECT_EQ(choice->skipped.at(ChaosFault::stalled_disk), "there is no mkfs.ext4");
}

TEST(Campaign, StorageIsSlowWhereFuseIs) {
  const CampaignOptions options{.config = "run.toml"};
  EXPECT_THAT(choose_limits(small_config(), options, {})->limits.faults, Contains(ChaosFault::slow_storage));
  const Result<ChaosChoice> choice =
      choose_limits(small_config(), options, {.no_slow_files = "no /dev/fuse"});
  EXPECT_THAT(choice->limits.faults, Not(Contains(ChaosFault::slow_storage)));
  EXPECT_EQ(choice->skipped.at(ChaosFault::slow_storage), "no /dev/fuse");
}

TEST(Campaign, SavesAsConfiguredWhenAsked) {
  CampaignOptions options{.config = "run.toml"};
  EXPECT_GT(choose_limits(small_config(), options, {})->limits.savings.size(), 1U);
  options.as_configured = true;
  EXPECT_THAT(choose_limits(small_config(), options, {})->limits.savings, ElementsAre(""));
}

TEST(ChaosPlan, StallsEndByTheClockAndADiskThatStallsIsNeverFull) {
  const ChaosLimits limits{
      .steps = 50,
      .layouts = {{.ranks = 2}},
      .faults = {ChaosFault::full_disk, ChaosFault::stalled_disk, ChaosFault::stalled_output},
      .savings = {""}};
  int stalls = 0, fills = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    bool stalls_here = false, fills_here = false;
    for (const ChaosInjection& injection : plan_chaos(seed, limits).injections) {
      if (injection.fault == ChaosFault::full_disk) fills_here = true;
      if (!is_stall(injection.fault)) continue;
      if (injection.fault == ChaosFault::stalled_disk) stalls_here = true;
      EXPECT_EQ(injection.lasts, 0U);
      EXPECT_GE(injection.pause_us, 500'000);
      EXPECT_LE(injection.pause_us, 8'000'000);
      EXPECT_THAT(to_text(injection), HasSubstr(" s"));
    }
    EXPECT_FALSE(stalls_here && fills_here) << seed;
    stalls += stalls_here ? 1 : 0;
    fills += fills_here ? 1 : 0;
  }
  EXPECT_GT(stalls, 20);
  EXPECT_GT(fills, 20);
}

TEST(Campaign, NothingIsLeftToDraw) {
  const Result<ChaosChoice> choice =
      choose_limits(small_config(), {.config = "run.toml", .faults = {ChaosFault::lost_host}}, {});
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.error().message, HasSubstr("lost_host: all ranks are on this host"));
}

}  // namespace
}  // namespace holdfast::test
