// That digests at both ends of a link are the same unless gradients changed on their way, and that the sum of all
// ranks' balances then says so.
#include "parallel/data/link_digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <mutex>
#include <set>

#include "parallel/comm/host_transport.h"
#include "parallel/local/local_communicator.h"
#include "runtime/os/fault_point.h"
#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/lane_reduction_harness.h"
#include "tests/parallel/patient.h"

namespace holdfast::test {
namespace {

using test::ReducingRank;

TEST(LinkWeight, IsOddAndAnotherOneForEachDirectionOfEachLink) {
  constexpr int ranks = 200;
  std::set<std::uint64_t> weights;
  for (int source = 0; source < ranks; ++source) {
    for (int target = 0; target < ranks; ++target) {
      EXPECT_EQ(link_weight(source, target) % 2, 1U);
      weights.insert(link_weight(source, target));
    }
  }
  EXPECT_EQ(weights.size(), std::size_t{ranks} * ranks);
}

using Link = std::pair<int, int>;  // source, target

// Holds what the ranks found in a step.
struct Found {
  Digest balance = {};  // over all ranks
  std::map<Link, DigestWords> sent = {}, received = {};

  std::vector<Link> changed() const {
    std::vector<Link> links;
    for (const auto& [link, words] : sent)
      if (!(words == received.at(link))) links.push_back(link);
    return links;
  }
};

struct Exchange {
  int ranks = 2, lanes = 2, gradient_slots = 0;
  int block = 1;
  std::vector<int> hosts = {};  // of ranks
  std::string faults = {};
  bool digests_links = true;
};

// Makes one step and returns what its digests say.
Found reduce(const Exchange& exchange) {
  Found found;
  std::mutex mutex;
  HF_EXPECT_OK(run_local_ranks(exchange.ranks, [&](Communicator& c) -> Result<void> {
    HF_TRY(const std::unique_ptr<FaultPoints> faults,
           FaultPoints::parse(exchange.faults, c.rank(), posix_env()));
    HostTransport transport(c);
    ReducingRank reducing(transport, patient(),
                          {.lanes = exchange.lanes,
                           .block = exchange.block,
                           .gradient_slots = exchange.gradient_slots,
                           .hosts = exchange.hosts},
                          test::uneven_buckets());
    LaneReduction& reduction = reducing.reduction();
    faults->connect_memory([&](const Corruption& corruption) -> CorruptedNumber {
      reducing.device().synchronize();
      const std::span<float> values = reduction.last_received().values;
      float& value = values[corruption.element.value_or(0) % values.size()];
      value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1U << corruption.bit.value_or(0)));
      return {};
    });
    reduction.use_faults(*faults);
    HF_TRY_VOID(reducing.step(reducing.my_lanes(0), exchange.digests_links));
    const LinkDigests& links = reduction.links();
    const std::scoped_lock lock(mutex);
    found.balance += links.balance();
    for (int peer = 0; peer < c.size() && exchange.digests_links; ++peer) {
      if (peer == c.rank()) continue;
      found.sent[{c.rank(), peer}] = links.sent(peer);
      found.received[{peer, c.rank()}] = links.received(peer);
    }
    return {};
  }));
  return found;
}

class LinkDigestsOf : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  static Exchange exchange() {
    const auto [ranks, lanes, gradient_slots] = GetParam();
    return {.ranks = ranks, .lanes = lanes, .gradient_slots = gradient_slots};
  }
};

TEST_P(LinkDigestsOf, AgreeWhereNothingChanges) {
  const Found found = reduce(exchange());
  EXPECT_EQ(found.balance, Digest{});
  EXPECT_THAT(found.changed(), testing::IsEmpty());
  for (const auto& [link, words] : found.sent) EXPECT_NE(words.sum, 0U);
}

// The first messages and some of the last ones of the rank, of all waves.
TEST_P(LinkDigestsOf, NameTheLinkThatChangedABit) {
  const auto [ranks, lanes, gradient_slots] = GetParam();
  const int target = ranks - 1;
  for (const int hit : {1, 2, 3, 4, 5}) {
    for (const int bit : {0, 31}) {
      Exchange changed = exchange();
      changed.faults = fmt::format("reduce.received@{}:{}=flip:gradients:{}:{}", hit, target, bit, hit * 37);
      const Found found = reduce(changed);
      EXPECT_NE(found.balance.high, 0U) << changed.faults;
      EXPECT_NE(found.balance.low, 0U) << changed.faults;
      ASSERT_EQ(found.changed().size(), 1U) << changed.faults;
      EXPECT_EQ(found.changed()[0].second, target);
      EXPECT_TRUE(ranks > 2 || found.changed()[0].first == 0);
    }
  }
}

using LinkShape = std::tuple<int, int, int>;  // ranks, lanes, gradient slots
INSTANTIATE_TEST_SUITE_P(All, LinkDigestsOf,
                         testing::Values(LinkShape(2, 2, 0), LinkShape(2, 5, 0), LinkShape(2, 5, 2),
                                         LinkShape(3, 3, 0), LinkShape(3, 5, 3), LinkShape(4, 4, 2),
                                         LinkShape(4, 6, 0)));

// Lanes inside a host, and sums of blocks and lanes between hosts: a changed bit is named once, though it changes what
// is sent on.
TEST(LinkDigests, OfSumsOfBlocksNameTheLinkThatChangedABit) {
  const Exchange exchange{.ranks = 5, .lanes = 10, .block = 2, .hosts = {0, 0, 0, 1, 1}};
  const Found clean = reduce(exchange);
  EXPECT_EQ(clean.balance, Digest{});
  EXPECT_THAT(clean.changed(), testing::IsEmpty());
  for (int hit = 1; hit <= 12; ++hit) {
    Exchange changed = exchange;
    changed.faults = fmt::format("reduce.received@{}:1=flip:gradients:20:3", hit);
    const Found found = reduce(changed);
    EXPECT_NE(found.balance, Digest{}) << changed.faults;
    ASSERT_EQ(found.changed().size(), 1U) << changed.faults;
    EXPECT_EQ(found.changed()[0].second, 1);
  }
}

// The rank with all messages changed is an end of all links that are named.
TEST(LinkDigests, NameAllLinksOfARank) {
  std::string faults;
  for (int hit = 1; hit <= 100; ++hit)
    faults += fmt::format("{}reduce.received@{}:1=flip:gradients:20:3", hit == 1 ? "" : ",", hit);
  const Found found = reduce({.ranks = 3, .lanes = 4, .faults = faults});
  EXPECT_NE(found.balance, Digest{});
  EXPECT_THAT(found.changed(), testing::UnorderedElementsAre(Link(0, 1), Link(2, 1)));
}

TEST(LinkDigests, OfOtherStepsAreZeroAndLaunchNothing) {
  EXPECT_EQ(reduce({.faults = "reduce.received@1:0=flip:gradients:20:3", .digests_links = false}).balance,
            Digest{});
  HF_EXPECT_OK(run_local_ranks(2, [](Communicator& c) -> Result<void> {
    std::map<OpId, int> ops;
    CpuDeviceOptions options;
    options.observer = [&ops](OpId id) { ++ops[id]; };
    HostTransport transport(c);
    ReducingRank reducing(transport, patient(), {.lanes = 2}, test::uneven_buckets(), options);
    HF_TRY_VOID(reducing.step(reducing.my_lanes(0)));
    EXPECT_EQ(ops[OpId::digest], 0);
    HF_TRY_VOID(reducing.step(reducing.my_lanes(0), /*digests_links=*/true));
    EXPECT_GT(ops[OpId::digest], 0);
    HF_TRY_VOID(reducing.step(reducing.my_lanes(1)));
    EXPECT_EQ(reducing.reduction().links().balance(), Digest{});
    return barrier(c, patient());
  }));
}

TEST(LinkDigests, ARankAloneHasNoLink) {
  EXPECT_EQ(reduce({.ranks = 1, .lanes = 3}).balance, Digest{});
}

}  // namespace
}  // namespace holdfast::test
