#include "parallel/data/lane_reduction.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <map>
#include <thread>

#include "parallel/comm/host_transport.h"
#include "parallel/local/local_communicator.h"
#include "tests/parallel/allocation_counter.h"
#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/lane_reduction_harness.h"
#include "tests/parallel/patient.h"

namespace holdfast::test {
namespace {

using test::ReducingRank;

// A transport that says now and then what it said before, as one that is asked a moment earlier.
class LateTransport final : public Transport {
 public:
  explicit LateTransport(Communicator& communicator) : inner_(communicator) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool can_open() const override { return inner_.can_open(); }
  Result<Number> open(std::span<const Incoming> incoming) override { return inner_.open(incoming); }
  Result<void> send(Number number, std::span<const Outgoing> outgoing) override {
    return inner_.send(number, outgoing);
  }
  Result<bool> advance() override { return inner_.advance(); }
  bool received(Number number, int peer) const override { return inner_.received(number, peer); }
  Number oldest() const override {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    if (random_ >> 63 != 0) said_ = inner_.oldest();
    return said_;
  }
  Awaited awaited() const override { return inner_.awaited(); }
  void abandon() override { inner_.abandon(); }
  bool abandoned() override { return inner_.abandoned(); }

 private:
  HostTransport inner_;
  mutable std::uint64_t random_ = 1;
  mutable Number said_ = 0;
};

TEST(LaneSchedule, WavesTakeLanesInIncreasingOrder) {
  for (int lanes = 1; lanes <= 9; ++lanes) {
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      const LaneSchedule schedule(lanes, ranks);
      int next = 0;
      for (int wave = 0; wave < schedule.waves(); ++wave) {
        for (int rank = 0; rank < ranks; ++rank) {
          const int lane = schedule.lane_of(wave, rank);
          EXPECT_EQ(lane, rank < schedule.lanes_in_wave(wave) ? next : -1);
          if (lane >= 0) ++next;
        }
      }
      EXPECT_EQ(next, lanes);
    }
  }
}

class LaneReductionBits : public testing::TestWithParam<std::tuple<int, int>> {};  // ranks, lanes

TEST_P(LaneReductionBits, AreThoseOfASequentialSum) {
  const auto [ranks, lanes] = GetParam();
  HF_EXPECT_OK(run_local_ranks(ranks, [lanes = lanes](Communicator& c) {
    HostTransport transport(c);
    return test::check_lane_reduction(transport, patient(), {.lanes = lanes});
  }));
}

// Twelve buckets, of which the receive staging has places for four at once.
TEST_P(LaneReductionBits, AreTheSameWithFewPlacesForWhatArrives) {
  const auto [ranks, lanes] = GetParam();
  HF_EXPECT_OK(run_local_ranks(ranks, [lanes = lanes](Communicator& c) {
    LateTransport transport(c);
    return test::check_lane_reduction(transport, patient(), {.lanes = lanes, .staging_bytes = 1},
                                      test::many_buckets());
  }));
}

// A rank alone sums where its gradients lie.
class SharedBucketMemoryBits : public LaneReductionBits {};

// Five buckets of other sizes in two and in three places.
TEST_P(SharedBucketMemoryBits, AreTheSame) {
  const auto [ranks, lanes] = GetParam();
  for (const int places : {2, 3}) {
    HF_EXPECT_OK(run_local_ranks(ranks, [lanes = lanes, places](Communicator& c) {
      HostTransport transport(c);
      return test::check_lane_reduction(transport, patient(), {.lanes = lanes, .gradient_slots = places});
    }));
  }
}

// Every block of so many lanes, on every number of ranks: blocks inside waves, over two and over many waves.
class LaneBlockBits : public testing::TestWithParam<int> {};

TEST_P(LaneBlockBits, AreThoseOfSumsOfBlocks) {
  const int lanes = GetParam();
  for (int block = 1; block <= lanes; ++block) {
    if (lanes % block != 0) continue;
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      for (const int slots : {0, 3}) {
        if (ranks == 1 && slots > 0) continue;
        HF_EXPECT_OK(run_local_ranks(ranks, [&](Communicator& c) {
          HostTransport transport(c);
          return test::check_lane_reduction(transport, patient(),
                                            {.lanes = lanes, .block = block, .gradient_slots = slots});
        }));
      }
    }
  }
}

// Sums of blocks travel where hosts allow it, which is another way to the same bits.
TEST(LaneBlocks, HaveTheSameBitsOnEveryHost) {
  constexpr int lanes = 8;
  for (const int block : {2, 4}) {
    for (int ranks = 2; ranks <= lanes; ++ranks) {
      for (const int on_host : {2, 3, 4}) {
        std::vector<int> hosts;
        for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / on_host);
        for (const int slots : {0, 2, 3}) {
          HF_EXPECT_OK(run_local_ranks(ranks, [&](Communicator& c) {
            HostTransport transport(c);
            return test::check_lane_reduction(
                transport, patient(),
                {.lanes = lanes, .block = block, .gradient_slots = slots, .hosts = hosts});
          }));
        }
        HF_EXPECT_OK(run_local_ranks(ranks, [&](Communicator& c) {
          HostTransport transport(c);
          return test::check_lane_reduction(
              transport, patient(), {.lanes = lanes, .block = block, .hosts = hosts, .staging_bytes = 1},
              test::many_buckets());
        }));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, LaneBlockBits, testing::Values(1, 4, 6, 9));

TEST(LaneBlocks, OfOneLaneOrOfAllAreTheFlatSum) {
  const BucketPlan plan(test::uneven_buckets(), 1);
  const auto differs = [&](int block) {
    const std::vector<float> flat = test::sequential_sum(plan, 0, test::lanes_in_order(8));
    return std::memcmp(flat.data(), test::block_sum(plan, 0, 8, block).data(), flat.size() * sizeof(float));
  };
  EXPECT_EQ(differs(1), 0);
  EXPECT_EQ(differs(8), 0);
  EXPECT_NE(differs(2), 0);
  EXPECT_NE(differs(4), 0);
}

// A second accumulator is there only where a block that is not the first one goes on in the next wave.
TEST(LaneBlocks, HaveAnAccumulatorWhereTheyStraddleWaves) {
  const auto carried = [](int lanes, int ranks, int block) {
    bool any = false;
    for (int end = ranks; end < lanes; end += ranks) any |= end % block != 0 && end / block > 0;
    HF_EXPECT_OK(run_local_ranks(ranks, [&](Communicator& c) -> Result<void> {
      MemoryPlan memory;
      const BucketPlan buckets(test::uneven_buckets(), ranks);
      const std::unique_ptr<Device> device = make_cpu_device({});
      HostTransport transport(c);
      const LaneReduction reduction(buckets,
                                    LaneExchange(buckets, LaneSchedule(lanes, ranks, block), c.rank()),
                                    transport, *device, patient(), memory);
      std::uint64_t bytes = 0;
      for (const MemoryPlan::Entry& entry : memory.entries())
        if (entry.name == "lane_reduction.block_accumulator") bytes = entry.slot.bytes;
      EXPECT_EQ(bytes > 0, any) << lanes << " lanes on " << ranks << " in blocks of " << block;
      EXPECT_GE(bytes, any ? buckets.accumulator_elements(c.rank()) * sizeof(float) : 0);
      return {};
    }));
    return any;
  };
  EXPECT_FALSE(carried(8, 8, 4));
  EXPECT_FALSE(carried(8, 4, 4));
  EXPECT_FALSE(carried(8, 4, 2));
  EXPECT_FALSE(carried(8, 3, 1));
  EXPECT_FALSE(carried(8, 1, 8));  // the first block is summed where all are
  EXPECT_TRUE(carried(8, 1, 2));
  EXPECT_TRUE(carried(8, 3, 2));
  EXPECT_TRUE(carried(8, 7, 2));
}

// Ten buckets of 1 GiB have a place each where as much is allowed, and else as many as fit, but never less than four.
// Nothing is allocated here.
TEST(LaneStaging, HasAsManyPlacesAsFit) {
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  std::vector<Bucket> buckets(10);
  for (Bucket& bucket : buckets) bucket.tensors = {{.name = "t", .shape = {gib / sizeof(float)}}};
  const BucketPlan two(buckets, 2), alone(buckets, 1), shared(buckets, 2, 2);
  HF_EXPECT_OK(run_local_ranks(2, [&](Communicator& c) -> Result<void> {
    const std::unique_ptr<Device> device = make_cpu_device({});
    HostTransport transport(c);
    for (const auto& [bytes, places] : {std::pair{10 * gib, 10U}, {9 * gib, 9U}, {gib, 4U}}) {
      MemoryPlan memory;
      const LaneReduction reduction(two, LaneExchange(two, LaneSchedule(2, 2), c.rank()), transport, *device,
                                    patient(), memory, /*digests_sums=*/false, bytes);
      EXPECT_EQ(reduction.shares_slots(), places < 10);
      for (const MemoryPlan::Entry& entry : memory.entries()) {
        if (entry.name == "lane_reduction.staging") {
          EXPECT_EQ(entry.slot.bytes, places * gib / 2);
        }
      }
    }
    return {};
  }));
  EXPECT_EQ(staging_places(two, staging_bytes_max), 4);
  EXPECT_EQ(staging_places(alone, gib), 10) << "nothing arrives";
  EXPECT_EQ(staging_places(shared, 10 * gib), 2) << "the slots of their gradients";
}

using Shape = std::tuple<int, int>;
INSTANTIATE_TEST_SUITE_P(All, LaneReductionBits,
                         testing::Values(Shape(1, 1), Shape(2, 2), Shape(3, 3), Shape(1, 5), Shape(2, 5),
                                         Shape(3, 5), Shape(4, 5), Shape(5, 5), Shape(1, 8), Shape(2, 8),
                                         Shape(3, 8), Shape(4, 8), Shape(5, 8), Shape(8, 8)));
INSTANTIATE_TEST_SUITE_P(All, SharedBucketMemoryBits,
                         testing::Values(Shape(2, 2), Shape(3, 3), Shape(2, 5), Shape(3, 5), Shape(4, 5),
                                         Shape(5, 5), Shape(2, 8), Shape(3, 8), Shape(4, 8), Shape(5, 8),
                                         Shape(8, 8)));

// A wave may become whole between any two looks at it.
TEST(LaneReductionTime, ThatIsExposedIsNeverNegativeNorLongerThanTheStep) {
  HF_EXPECT_OK(run_local_ranks(2, [](Communicator& c) -> Result<void> {
    LateTransport transport(c);
    ReducingRank rank(transport, patient(), {.lanes = 2}, test::uneven_buckets());
    const std::vector<float> lane = test::lane_gradients(rank.plan(), 0, c.rank());
    std::int64_t before_us = 0;
    for (int step = 0; step < 100; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      HF_TRY_VOID(rank.step({lane}));
      const auto step_us =
          std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
      const std::int64_t exposed_us = rank.reduction().counts().exposed_us - before_us;
      before_us += exposed_us;
      EXPECT_GE(exposed_us, 0) << "step " << step;
      EXPECT_LE(exposed_us, step_us.count()) << "step " << step;
    }
    return {};
  }));
}

// The gradients of these tests tell a sum in lane order from any other: what a reduction in order of arrival,
// or a library's tree, would give has other bits.
TEST(LaneReductionData, OtherOrdersGiveOtherBits) {
  const BucketPlan plan(test::uneven_buckets(), 1);
  const std::vector<float> in_order = test::sequential_sum(plan, 0, test::lanes_in_order(5));
  const std::vector<std::vector<int>> orders = {
      {4, 3, 2, 1, 0}, {0, 2, 1, 3, 4}, {0, 1, 2, 4, 3}, {1, 2, 3, 4, 0}};
  for (const std::vector<int>& order : orders) {
    const std::vector<float> other = test::sequential_sum(plan, 0, order);
    EXPECT_NE(std::memcmp(in_order.data(), other.data(), in_order.size() * sizeof(float)), 0);
  }
  std::vector<float> tree = test::sequential_sum(plan, 0, {0, 1});
  const std::vector<float> right = test::sequential_sum(plan, 0, {2, 3});
  for (std::size_t i = 0; i < tree.size(); ++i) tree[i] += right[i];
  const std::vector<float> four = test::sequential_sum(plan, 0, test::lanes_in_order(4));
  EXPECT_NE(std::memcmp(four.data(), tree.data(), tree.size() * sizeof(float)), 0);
  // Nor does it forgive 0 + x for the first lane: -0 would become +0.
  EXPECT_TRUE(std::any_of(in_order.begin(), in_order.end(),
                          [](float x) { return std::bit_cast<std::uint32_t>(x) == 0x80000000U; }));
}

// One lane on one rank: its gradients are the sum where backward wrote them, and only the shadow is added.
TEST(LaneReduction, OneLaneIsNeitherCopiedNorAdded) {
  HF_EXPECT_OK(run_local_ranks(1, [](Communicator& c) -> Result<void> {
    std::map<OpId, int> ops;
    CpuDeviceOptions options;
    options.observer = [&ops](OpId id) { ++ops[id]; };
    HostTransport transport(c);
    ReducingRank reducing(transport, patient(), {.lanes = 1}, test::uneven_buckets(), options);
    HF_TRY_VOID(reducing.step(reducing.my_lanes(0)));
    EXPECT_EQ(ops[OpId::accumulate], 1);
    EXPECT_EQ(ops[OpId::copy], 8);  // the made-up backward: one for each tensor
    EXPECT_EQ(reducing.gradient_bytes(), reducing.plan().gradient_elements() * sizeof(float));
    return {};
  }));
}

// Passes everything on, and counts the sends.
class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(Communicator& inner, std::atomic<int>& sends) : inner_(&inner), sends_(&sends) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Result<Request> send(std::span<const std::byte> source, int peer, int tag) override {
    Result<Request> request = inner_->send(source, peer, tag);
    sends_->fetch_add(1);
    return request;
  }
  Result<Request> receive(std::span<std::byte> target, int peer, int tag) override {
    return inner_->receive(target, peer, tag);
  }
  Result<bool> test(Request request) override { return inner_->test(request); }
  Result<void> check_peers() override { return inner_->check_peers(); }
  void abandon() override { inner_->abandon(); }
  bool abandoned() override { return inner_->abandoned(); }

 private:
  Communicator* inner_;
  std::atomic<int>* sends_;
};

// The last op of the backward does not run before all other buckets were sent (or ten seconds have passed).
TEST(LaneReduction, BucketsLeaveWhileTheBackwardRuns) {
  constexpr int bucket_count = 10;
  HF_EXPECT_OK(run_local_ranks(2, [](Communicator& inner) -> Result<void> {
    std::atomic<int> sends{0};
    CountingCommunicator communicator(inner, sends);
    std::vector<Bucket> buckets(bucket_count);
    for (Bucket& bucket : buckets) bucket.tensors = {{.name = "t", .shape = {3 * block_elements}}};
    CpuDeviceOptions options;
    options.observer = [&sends](OpId id) {
      for (int i = 0; id == OpId::fill_zero && i < 10'000 && sends.load() < bucket_count - 1; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    HostTransport transport(communicator);
    ReducingRank reducing(transport, patient(), {.lanes = 2}, buckets, options);
    const std::vector<float> lane = reducing.my_lanes(0).front();
    LaneReduction& reduction = reducing.reduction();
    std::vector<float> unused(1);
    reduction.begin_step();
    HF_TRY_VOID(reduction.begin_wave(0));
    for (int b = 0; b + 1 < bucket_count; ++b) reduction.bucket_launched(b, reducing.device().ticket());
    reducing.device().launch(FillZero{.target = unused.data(), .bytes = sizeof(float)});
    reduction.bucket_launched(bucket_count - 1, reducing.device().ticket());
    reduction.backward_launched();
    HF_TRY_VOID(reduction.finish_wave());
    reduction.finish_step();
    reducing.device().synchronize();
    EXPECT_EQ(reduction.counts().buckets_sent, static_cast<std::uint64_t>(bucket_count));
    EXPECT_GE(reduction.counts().buckets_sent_before_backward_ended,
              static_cast<std::uint64_t>(bucket_count * 8 / 10));
    const LaneReductionCounts counts = reduction.counts();
    EXPECT_GE(counts.bytes_sent_before_backward_ended, counts.bytes_sent / 10 * 8);
    EXPECT_LT(counts.bytes_sent_before_backward_ended, counts.bytes_sent);
    return {};
  }));
}

TEST(LaneReduction, TimeoutNamesWaveBucketAndPeer) {
  std::atomic<bool> done{false};
  HF_EXPECT_OK(run_local_ranks(2, [&done](Communicator& c) -> Result<void> {
    if (c.rank() == 1) {  // alive, but it never sends
      while (!done.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return {};
    }
    const Waiter impatient(posix_env(), 50);
    HostTransport transport(c);
    ReducingRank reducing(transport, impatient, {.lanes = 2}, test::uneven_buckets());
    const Result<void> outcome = reducing.step(reducing.my_lanes(0));
    done.store(true);
    EXPECT_FALSE(outcome.ok());
    if (outcome.ok()) return {};
    EXPECT_EQ(outcome.error().code, ExitCode::communication);
    EXPECT_NE(
        outcome.error().message.find("wave 0 of the lane reduction: bucket 0 did not arrive from rank 1"),
        std::string::npos)
        << outcome.error().message;
    return {};
  }));
}

TEST(LaneReduction, APeerThatLeavesIsAnErrorOnAllOthers) {
  HF_EXPECT_OK(run_local_ranks(3, [](Communicator& c) -> Result<void> {
    if (c.rank() == 1) return {};
    HostTransport transport(c);
    ReducingRank reducing(transport, patient(), {.lanes = 3}, test::uneven_buckets());
    const Result<void> outcome = reducing.step(reducing.my_lanes(0));
    EXPECT_FALSE(outcome.ok());
    if (outcome.ok()) return {};
    EXPECT_EQ(outcome.error().code, ExitCode::communication);
    return {};
  }));
}

class LaneReductionMemory : public testing::TestWithParam<test::LaneShape> {};

TEST_P(LaneReductionMemory, StepsAllocateNothing) {
  const int ranks = std::max(2, static_cast<int>(GetParam().hosts.size()));
  HF_EXPECT_OK(run_local_ranks(ranks, [ranks](Communicator& c) -> Result<void> {
    HostTransport transport(c);
    ReducingRank reducing(transport, patient(), GetParam(), test::uneven_buckets());
    const std::vector<std::vector<float>> lanes = reducing.my_lanes(0);
    std::vector<std::byte> parameters(reducing.plan().parameter_elements() * sizeof(float));
    const LaneExchange exchange(reducing.plan(), LaneSchedule(ranks, ranks, GetParam().block), c.rank(),
                                GetParam().hosts);
    ParameterGather gather(reducing.plan(), exchange, transport, reducing.device(), patient(), sizeof(float));
    gather.bind(parameters.data());
    std::uint64_t before = 0;
    for (int step = 0; step < 3; ++step) {
      HF_TRY_VOID(barrier(c, patient()));
      if (step == 1) before = test::allocation_count();
      HF_TRY_VOID(barrier(c, patient()));
      HF_TRY_VOID(reducing.step(lanes, /*digests_links=*/true));
      HF_TRY_VOID(gather.begin(ParameterGather::Which::trained));
      HF_TRY_VOID(gather.finish());
      HF_TRY_VOID(barrier(c, patient()));
    }
    EXPECT_EQ(test::allocation_count(), before);
    return barrier(c, patient());
  }));
}

INSTANTIATE_TEST_SUITE_P(Shapes, LaneReductionMemory,
                         testing::Values(test::LaneShape{.lanes = 5},
                                         test::LaneShape{.lanes = 8, .block = 2, .hosts = {0, 0, 1, 1}}));

class GatherParametersOf : public testing::TestWithParam<int> {};

TEST_P(GatherParametersOf, EveryRankGetsEveryRange) {
  HF_EXPECT_OK(run_local_ranks(GetParam(), [](Communicator& c) {
    HostTransport transport(c);
    return test::check_gather_parameters(transport, patient());
  }));
}

// A range reaches each block once, and from there the rest of it; more buckets than exchanges are open at once.
TEST(GatherParameters, GoesToHostsAndThenInsideThem) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 0, 1, 1}, {0, 0, 0, 0, 1, 1}, {0, 0, 1, 1, 2, 2, 0, 0}}) {
    HF_EXPECT_OK(run_local_ranks(static_cast<int>(hosts.size()), [&](Communicator& c) -> Result<void> {
      HostTransport transport(c, 3);
      std::vector<Bucket> many(40);
      for (std::size_t b = 0; b < many.size(); ++b)
        many[b].tensors = {{.name = "t", .shape = {b % 9 * block_elements + 5}}};
      HF_TRY_VOID(test::check_gather_parameters(transport, patient(), test::uneven_buckets(), 2, hosts));
      return test::check_gather_parameters(transport, patient(), std::move(many), 2, hosts);
    }));
  }
}

// More messages than are waited for together, in batches that end at other places on each rank.
TEST(GatherParameters, TakesSeveralBatches) {
  HF_EXPECT_OK(run_local_ranks(4, [](Communicator& c) {
    std::vector<Bucket> buckets(2500);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const std::uint64_t blocks = b % 7 == 0 ? 3 : 1;
      buckets[b].tensors = {{.name = "t", .shape = {(blocks - 1) * block_elements + 5}}};
    }
    HostTransport transport(c);
    return test::check_gather_parameters(transport, patient(), std::move(buckets));
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GatherParametersOf, testing::Values(1, 2, 3, 4, 5, 8));

}  // namespace
}  // namespace holdfast::test
