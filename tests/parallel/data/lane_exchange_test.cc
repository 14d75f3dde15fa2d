#include "parallel/data/lane_exchange.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/parallel/lane_reduction_harness.h"

namespace holdfast::test {
namespace {

using Stage = LaneExchange::Stage;
using Link = std::pair<int, int>;  // source, target

// Hosts with so many ranks each; the last one may have fewer.
std::vector<int> hosts_of(int ranks, int on_host) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / on_host);
  return hosts;
}

// The plans of all ranks of one group.
struct Group {
  Group(int lanes, int ranks, int block, const std::vector<int>& hosts)
      : schedule(lanes, ranks, block), buckets(test::uneven_buckets(), ranks, 0, block) {
    for (int rank = 0; rank < ranks; ++rank) plans.emplace_back(buckets, schedule, rank, hosts);
  }

  // The messages that `of(plan, out, in)` gives, as their sources have them; each target must expect the same.
  template <typename Of>
  std::map<Link, ElementRange> messages(const Of& of) const {
    std::map<Link, ElementRange> sent, expected;
    for (const LaneExchange& plan : plans) {
      std::vector<LaneExchange::Message> out, in;
      of(plan, out, in);
      for (const LaneExchange::Message& message : out) {
        EXPECT_TRUE(sent.emplace(Link(plan.rank(), message.peer), message.range).second)
            << "one in a direction";
        EXPECT_GT(message.range.size(), 0U);
      }
      for (const LaneExchange::Message& message : in)
        EXPECT_TRUE(expected.emplace(Link(message.peer, plan.rank()), message.range).second);
    }
    EXPECT_EQ(sent.size(), expected.size());
    for (const auto& [link, range] : sent) {
      EXPECT_NE(link.first, link.second);
      EXPECT_TRUE(expected.contains(link)) << link.first << " to " << link.second;
      EXPECT_EQ(range.begin, expected[link].begin);
      EXPECT_EQ(range.end, expected[link].end);
    }
    return sent;
  }
  std::map<Link, ElementRange> messages(int wave, Stage stage, int bucket) const {
    return messages([&](const LaneExchange& plan, auto& out, auto& in) {
      plan.outgoing(wave, stage, bucket, out);
      plan.incoming(wave, stage, bucket, in);
    });
  }
  std::map<Link, ElementRange> messages(int wave, int position) const {
    return messages([&](const LaneExchange& plan, auto& out, auto& in) {
      plan.outgoing(wave, plan.at(wave, position), out);
      plan.incoming(wave, plan.at(wave, position), in);
    });
  }

  LaneSchedule schedule;
  BucketPlan buckets;
  std::vector<LaneExchange> plans;  // by rank
};

// Follows lanes, as sets, from rank to rank through all exchanges of a wave: every element of every owner must get each
// lane of the wave once, in parts that are whole blocks inside one host, or single lanes.
void expect_all_lanes_arrive(const Group& group, int wave) {
  const LaneExchange& any = group.plans.front();
  std::vector<LanePart> parts;
  any.parts(wave, parts);
  int next = 0;
  for (const LanePart& part : parts) {
    EXPECT_EQ(part.first, next);
    next = part.end();
    if (!part.is_block()) continue;
    EXPECT_EQ(part.count, group.schedule.block());
    EXPECT_EQ(group.schedule.lane_of(wave, part.first) % part.count, 0);
    for (int member = part.first; member < part.end(); ++member)
      EXPECT_TRUE(group.plans[static_cast<std::size_t>(part.first)].same_host(member));
  }
  EXPECT_EQ(next, group.schedule.lanes_in_wave(wave));
  const int bucket_count = group.buckets.local_count(), count = any.count(wave);
  int inside = 0, to_owners = 0;  // the next bucket of each stage
  for (int position = 0; position < count; ++position) {
    const LaneExchange::Exchange exchange = any.at(wave, position);
    group.messages(wave, position);  // checks them
    if (exchange.inside >= 0) {
      EXPECT_EQ(exchange.inside, inside++);
      EXPECT_EQ(position, any.first_position(wave, exchange.inside));
    }
    if (exchange.to_owners >= 0) {
      EXPECT_EQ(exchange.to_owners, to_owners++);
      EXPECT_EQ(position, any.last_position(wave, exchange.to_owners));
      EXPECT_TRUE(count == bucket_count || to_owners < inside || inside == bucket_count) << "summed before";
    }
  }
  EXPECT_EQ(to_owners, bucket_count);
  EXPECT_EQ(inside, count == bucket_count ? 0 : bucket_count);
  for (int bucket = 0; bucket < bucket_count; ++bucket) {
    const std::map<Link, ElementRange> inner = group.messages(wave, Stage::inside, bucket),
                                       outer = group.messages(wave, Stage::to_owners, bucket);
    EXPECT_TRUE(count > bucket_count || inner.empty());
    for (const LanePart& part : parts) {
      for (int owner = 0; owner < group.schedule.ranks(); ++owner) {
        const ElementRange& owned = any.owned(owner, bucket);
        if (owned.size() == 0) continue;
        const int source = any.source_of(part, owner);
        EXPECT_TRUE(part.has(source));
        EXPECT_EQ(outer.contains(Link(source, owner)), source != owner);
        if (!part.is_block()) continue;
        const ElementRange summed = any.summed_range(bucket, part, source);
        EXPECT_TRUE(summed.begin <= owned.begin && owned.end <= summed.end);
        for (int member = part.first; member < part.end(); ++member)
          EXPECT_EQ(inner.contains(Link(member, source)), member != source);
      }
    }
  }
}

TEST(LaneExchange, BringsEveryLaneToEveryOwnerAtEveryDegree) {
  constexpr int lanes = 12;
  for (const int block : {1, 2, 3, 4, 6, 12}) {
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      for (const int on_host : {1, 2, 3, 4, 8, lanes}) {
        SCOPED_TRACE(fmt::format("blocks of {} on {} ranks, {} on a host", block, ranks, on_host));
        const Group group(lanes, ranks, block, hosts_of(ranks, on_host));
        for (int wave = 0; wave < group.schedule.waves(); ++wave) expect_all_lanes_arrive(group, wave);
      }
    }
  }
}

TEST(LaneExchange, SumsBlocksOnlyWhereThatSavesSomething) {
  const auto sums = [](int lanes, int ranks, int block, const std::vector<int>& hosts) {
    return Group(lanes, ranks, block, hosts).plans.front().sums_blocks();
  };
  EXPECT_TRUE(sums(8, 8, 4, hosts_of(8, 4)));
  EXPECT_TRUE(sums(8, 8, 2, hosts_of(8, 4)));
  EXPECT_TRUE(sums(16, 8, 4, hosts_of(8, 4))) << "in two waves";
  EXPECT_TRUE(sums(12, 8, 4, hosts_of(8, 4))) << "the second of which fills one host";
  EXPECT_TRUE(sums(8, 6, 2, {0, 1, 1, 1, 2, 2})) << "the last of the first wave";
  EXPECT_FALSE(sums(8, 8, 4, {})) << "one host";
  EXPECT_FALSE(sums(8, 8, 4, hosts_of(8, 8)));
  EXPECT_FALSE(sums(8, 8, 1, hosts_of(8, 4)));
  EXPECT_FALSE(sums(8, 8, 8, hosts_of(8, 4))) << "over both hosts";
  EXPECT_FALSE(sums(8, 8, 4, {0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_FALSE(sums(8, 3, 4, hosts_of(3, 2))) << "no wave has a block";
}

// Links inside hosts and between them are then busy together.
TEST(LaneExchange, HasBothStagesInOneExchangeWhereBlocksDivideTheDegree) {
  const Group aligned(16, 8, 4, hosts_of(8, 4)), straddling(16, 7, 2, hosts_of(7, 4));
  const int buckets = aligned.buckets.local_count();
  EXPECT_EQ(aligned.plans.front().count(0), buckets + 1);
  EXPECT_EQ(aligned.plans.front().count(1), buckets + 1);
  EXPECT_EQ(straddling.plans.front().count(0), buckets + 1);
  EXPECT_EQ(straddling.plans.front().count(1), 2 * buckets) << "its blocks begin at odd ranks";
}

// Bytes that all ranks send, and of these to other hosts.
std::pair<double, double> bytes_of_step(const Group& group) {
  double all = 0.0, between = 0.0;
  for (int wave = 0; wave < group.schedule.waves(); ++wave) {
    for (int position = 0; position < group.plans.front().count(wave); ++position) {
      for (const auto& [link, range] : group.messages(wave, position)) {
        const double bytes = static_cast<double>(range.size() * sizeof(float));
        all += bytes;
        if (!group.plans[static_cast<std::size_t>(link.first)].same_host(link.second)) between += bytes;
      }
    }
  }
  return {all, between};
}

// The bytes between hosts fall by the ranks of a host, and a rank sends about as many as before.
TEST(LaneExchange, BlocksOfAHostCutTheBytesBetweenHosts) {
  for (const int on_host : {2, 4, 8}) {
    const auto [flat, flat_between] = bytes_of_step(Group(16, 16, 1, hosts_of(16, on_host)));
    const auto [blocks, blocks_between] = bytes_of_step(Group(16, 16, on_host, hosts_of(16, on_host)));
    EXPECT_NEAR(flat_between / blocks_between, on_host, 1e-9 * on_host);
    EXPECT_LT(blocks, 1.1 * flat);
  }
}

}  // namespace
}  // namespace holdfast::test
