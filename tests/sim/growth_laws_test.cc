// Growth laws: what the control plane sends as a function of the number of ranks, counted in the shipped routines. Ranks
// are threads on a simulated clock (tests/support/simulated_env.h), eight to a host. docs/scaling.md has the table.
//
//   test_sim --gtest_filter='GrowthLaws.*'     prints, by routine and ranks, what the busiest rank sends and receives
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/part_inventory.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/group/buddies.h"
#include "parallel/group/membership.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/core/record.h"
#include "runtime/elastic/recovery_plan.h"
#include "tests/elastic/recovery_fixture.h"
#include "tests/support/local_disk_env.h"
#include "tests/support/local_world.h"
#include "tests/support/simulated_env.h"

namespace holdfast::test {
namespace {

using elastic::plan_recovery;
using elastic::RecoveryAction;
using elastic::RecoveryInventory;
using elastic::RecoveryPlan;

constexpr int ranks_per_host = 8;
constexpr std::int64_t timeout_ms = 600'000;

// The machine of a rank of many hosts.
class HostEnv final : public ForwardingEnv {
 public:
  HostEnv(Env& inner, int rank) : ForwardingEnv(inner), host_(rank / ranks_per_host), group_env_(inner) {}
  std::string host_name() override { return fmt::format("node-{:05}.cluster.example", host_); }
  std::string machine_id() override { return fmt::format("{:032x}", host_); }
  Processes& processes() override { return group_env_.processes(); }

 private:
  int host_;
  ThreadRankEnv group_env_;
};

// CountedWorld counts what a rank sends and receives, in all epochs.
class CountedWorld final : public ShrinkingWorld {
 public:
  explicit CountedWorld(std::unique_ptr<ShrinkingWorld> inner) : inner_(std::move(inner)) {}
  Communicator& current() override {
    Communicator& newest = inner_->current();
    if (counted_.empty() || newest_ != &newest) {
      counted_.push_back(std::make_unique<CountedCommunicator>(newest));
      newest_ = &newest;
    }
    return *counted_.back();
  }
  Result<void> shrink(std::int64_t timeout, const std::string& why) override {
    return inner_->shrink(timeout, why);
  }
  Result<void> grow(int count, std::int64_t timeout, const std::string& why) override {
    return inner_->grow(count, timeout, why);
  }
  bool is_joiner() const override { return inner_->is_joiner(); }
  Traffic so_far() {
    Traffic sum;
    for (const std::unique_ptr<CountedCommunicator>& each : counted_)
      sum += each->traffic().of(Axis::control);
    return sum;
  }

 private:
  std::unique_ptr<ShrinkingWorld> inner_;
  std::vector<std::unique_ptr<CountedCommunicator>> counted_;
  Communicator* newest_ = nullptr;
};

// What the busiest rank sends and receives in a routine.
struct Cost {
  std::uint64_t messages = 0, bytes = 0;
  void add(const Traffic& spent) {
    messages = std::max(messages, spent.messages_sent + spent.messages_received);
    bytes = std::max(bytes, spent.bytes_sent + spent.bytes_received);
  }
};
using Costs = std::map<std::string, Cost>;  // by routine

Costs costs_of_membership(int ranks) {
  SimulatedEnv machine(posix_env());
  Costs costs;  // the threads run one at a time
  LocalWorld local(ranks, {}, machine);
  const auto run_rank = [&](int rank) {
    HostEnv env(machine, rank);
    CountedWorld world(local.join(rank));
    const Result<std::unique_ptr<Membership>> membership =
        Membership::begin(env, world, timeout_ms, [](const Member&) { return true; });
    ASSERT_TRUE(membership.ok()) << membership.error().message;
    costs["start"].add(world.so_far());
    if (rank / ranks_per_host == 1) return;  // this host is lost
    std::vector<std::int64_t> word(1);
    while (all_reduce_sum((*membership)->communicator(), {env, timeout_ms}, word).ok()) {
    }
    const Traffic before = world.so_far();
    const Result<void> recovered = (*membership)->recover(timeout_ms, "a death");
    ASSERT_TRUE(recovered.ok()) << recovered.error().message;
    EXPECT_EQ((*membership)->view().members.size(), static_cast<std::size_t>(ranks - ranks_per_host));
    costs["recovery from a lost host"].add(world.so_far() - before);
  };
  std::vector<std::unique_ptr<Thread>> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.push_back(machine.start_thread("rank", [&run_rank, rank] { run_rank(rank); }).value());
  for (const std::unique_ptr<Thread>& thread : threads) thread->wait();
  return costs;
}

// Prints the costs by size. From the smallest size to the largest messages may grow with log n, and bytes with n log n: the
// busiest rank passes on what it has of all to log n others.
void expect_growth(const std::string& what, const std::vector<int>& sizes,
                   const std::vector<Costs>& measured) {
  constexpr double slack_of_messages = 1.4, slack_of_bytes = 1.1;
  for (const auto& [routine, first] : measured.front()) {
    const int lost = routine.find("lost host") == std::string::npos ? 0 : ranks_per_host;
    const auto left = [&](int ranks) { return static_cast<double>(ranks - lost); };
    const auto rounds = [&](int ranks) { return std::ceil(std::log2(left(ranks))); };
    const double times_rounds = rounds(sizes.back()) / rounds(sizes.front());
    const double times_ranks = left(sizes.back()) / left(sizes.front());
    std::string line = fmt::format("{}, {}:", what, routine);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Cost& cost = measured[i].at(routine);
      line += fmt::format("  {} ranks {} messages {} bytes", sizes[i], cost.messages, cost.bytes);
    }
    fmt::print("{}\n", line);
    const Cost& last = measured.back().at(routine);
    EXPECT_LE(static_cast<double>(last.messages),
              slack_of_messages * times_rounds * static_cast<double>(first.messages))
        << line;
    EXPECT_LE(static_cast<double>(last.bytes),
              slack_of_bytes * times_rounds * times_ranks * static_cast<double>(first.bytes))
        << line;
  }
}

// Whole runs of many ranks: a start, steps, a lost host, and another start that goes on.
class GrowthLaws : public RecoveryTest {
 protected:
  enum class Storage { shared, local };

  void expect_growth_of_runs(const std::vector<int>& sizes, Storage storage) {
    std::vector<Costs> measured;
    for (const int ranks : sizes) measured.push_back(costs_of_run(ranks, storage));
    expect_growth(storage == Storage::local ? "local disks" : "shared storage", sizes, measured);
  }

 private:
  Costs costs_of_run(int ranks, Storage storage) {
    const std::string run = fmt::format("{}-{}", storage == Storage::local ? "local" : "shared", ranks);
    std::string deaths;
    for (int rank = ranks_per_host; rank < 2 * ranks_per_host; ++rank)
      deaths += fmt::format("{}step.begin@6:{}=kill", deaths.empty() ? "" : ",", rank);
    Costs costs;
    play({.run = run, .ranks = ranks, .overrides = {"training.steps=8"}, .faults = deaths}, storage, costs,
         {{1, "start"}, {5, "step"}, {7, "step with recovery from a lost host"}});
    play({.run = run, .ranks = ranks, .overrides = {"training.steps=12"}}, storage, costs,
         {{1, "start that goes on"}});
    return costs;
  }

  // `marks`: what a rank has done between the step before and this one, by the number of the step in its start.
  void play(Launch launch, Storage storage, Costs& costs, const std::map<int, std::string>& marks) {
    ScheduleMachine machine(posix_env());
    std::vector<std::unique_ptr<ForwardingEnv>> hosts, disks;
    Trouble trouble{.machine = &machine, .runs_at_launch = true};
    for (int rank = 0; rank < launch.ranks; ++rank) {
      hosts.push_back(std::make_unique<HostEnv>(machine, rank));
      trouble.host_of[rank] = hosts.back().get();
      if (storage == Storage::shared) continue;
      const std::string place = run_directory(fmt::format("disk-{}/{}", rank / ranks_per_host, launch.run));
      disks.push_back(std::make_unique<LocalDiskEnv>(*hosts.back(), run_directory(launch.run), place));
      trouble.host_of[rank] = disks.back().get();
    }
    std::map<int, CountedWorld*> worlds;
    trouble.connect = [&](std::unique_ptr<ShrinkingWorld> world, int rank) {
      auto counted = std::make_unique<CountedWorld>(std::move(world));
      worlds[rank] = counted.get();
      return counted;
    };
    std::map<int, Traffic> before;
    trouble.before_step = [&](int rank, int step) {
      const Traffic now = worlds.at(rank)->so_far();
      const Traffic spent = now - std::exchange(before[rank], now);
      if (const auto mark = marks.find(step); mark != marks.end()) costs[mark->second].add(spent);
    };
    for (const std::string& line :
         {fmt::format("parallel.lanes={}", launch.ranks), std::string("checkpoint.ram_every_steps=2"),
          std::string("checkpoint.every_steps=4"), std::string("checkpoint.replicas=off")})
      launch.overrides.push_back(line);
    for (const auto& end : train_all(launch, trouble)) {
      if (!end.has_value()) continue;
      EXPECT_EQ(end->code, ExitCode::done) << end->message;
    }
  }
};

// The decisions that every rank makes by itself, from what it has of all.
TEST(Plans, OfSixteenThousandRanksTakeNoPartOfARecovery) {
  constexpr int ranks = 16'384;
  constexpr double most_s = 3.0;  // a tenth of the default elastic.recovery_timeout
  std::vector<std::string> hosts;
  MembershipView before{.epoch = 1, .members = {}}, now{.epoch = 2, .members = {}};
  std::vector<RecoveryInventory> inventories;
  std::vector<PartInventory> parts;
  std::vector<ShardFile> shards;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string host = fmt::format("node-{:05}.cluster.example", rank / ranks_per_host);
    const std::string host_id = fmt::format("{}@{:032x}", host, rank / ranks_per_host);
    const Member member{.launched_rank = rank,
                        .process_id = 1000 + rank,
                        .started_ticks = 7,
                        .host = host,
                        .host_id = host_id};
    before.members.push_back(member);
    shards.push_back({.name = fmt::format("shard-{:05}.hfs", rank),
                      .bytes = 10,
                      .index_crc32c = 7,
                      .piece_count = 1,
                      .hosts = {host_id}});
    if (rank % ranks_per_host == 0) {
      parts.push_back({.host = host_id, .shm_run_id = "m"});
      parts.back().parts.push_back(
          {.run_id = "r", .state = {.step = 20}, .content = "c", .directory = "/disk"});
    }
    parts.back().parts.back().present.push_back(shards.back().name);
    if (rank / ranks_per_host == 1) continue;  // this host is lost
    now.members.push_back(member);
    hosts.push_back(host_id);
    inventories.push_back({.host = host_id,
                           .launched_ranks = ranks,
                           .joined = true,
                           .log_opened = true,
                           .step = 20,
                           .kept_step = 20,
                           .shm_run_id = std::string(32, 'r'),
                           .lost_some = true,
                           .noticed_us = 1,
                           .noticed = "a sentence of usual length that says what was noticed by this rank"});
  }
  parts.front().parts.front().named = shards;
  const auto takes = [&](const char* what, const std::function<void()>& work) {
    const std::int64_t begin_ns = posix_env().thread_processor_ns();
    work();
    const double seconds = static_cast<double>(posix_env().thread_processor_ns() - begin_ns) * 1e-9;
    fmt::print("{}: {:.3f} s of a processor\n", what, seconds);
    EXPECT_LT(seconds, most_s) << what;
  };
  std::vector<std::string> texts;
  for (const RecoveryInventory& each : inventories) texts.push_back(record_to_text(each));
  takes("reading the inventories of all ranks", [&] {
    for (const std::string& text : texts) EXPECT_TRUE(record_from_text<RecoveryInventory>(text).ok());
  });
  takes("who is lost", [&] { EXPECT_EQ(members_lost(before, now).size(), 8U); });
  takes("the plan of a recovery", [&] {
    const RecoveryPlan plan = plan_recovery(inventories, {.data_max = ranks / 8, .tensor = 8});
    EXPECT_EQ(plan.action, RecoveryAction::use_assignment);
    EXPECT_EQ(plan.assignment->active_ranks.size(), inventories.size());
  });
  takes("the assignment of ranks in pipelines", [&] {
    const Result<RankAssignment> assignment =
        assign_ranks({.data_max = ranks / 128, .pipeline = 16, .tensor = 8}, hosts);
    ASSERT_TRUE(assignment.ok()) << assignment.error().message;
    EXPECT_EQ(assignment->shape.active(), 127 * 128);
  });
  takes("the places of replicas", [&] {
    const Result<Mesh> mesh =
        Mesh::placed({.data = ranks / 128 - 1, .pipeline = 16, .tensor = 8, .spares = 120}, hosts);
    ASSERT_TRUE(mesh.ok()) << mesh.error().message;
    EXPECT_TRUE(any_crosses_hosts(buddies_of(*mesh, hosts), hosts));
  });
  takes("the checkpoints of local disks", [&] {
    const std::vector<FoundParts> found = find_parts(parts, {});
    ASSERT_EQ(found.size(), 1U);
    EXPECT_TRUE(found.front().missing().empty());
  });
}

TEST_F(GrowthLaws, OfMembership) {
  const std::vector<int> sizes = {32, 128, 512};
  std::vector<Costs> measured;
  for (const int ranks : sizes) measured.push_back(costs_of_membership(ranks));
  expect_growth("membership", sizes, measured);
}

TEST_F(GrowthLaws, OfWholeRuns) {
  const std::vector<int> sizes = {16, 32};
  for (const Storage storage : {Storage::shared, Storage::local}) expect_growth_of_runs(sizes, storage);
}
TEST_F(GrowthLaws, OfLargerRuns) {
  const std::vector<int> sizes = {32, 64, 128};
  for (const Storage storage : {Storage::shared, Storage::local}) expect_growth_of_runs(sizes, storage);
}

}  // namespace
}  // namespace holdfast::test
