// NcclTransport where all goes well: the contract of every Transport, and the bits of the lane reduction over
// it.
#include "parallel/nccl/nccl_transport.h"

#include "nccl_rig.h"
#include "tests/parallel/lane_reduction_harness.h"
#include "tests/parallel/patient.h"
#include "tests/parallel/transport_contract.h"

namespace holdfast::test {
namespace {

using test::NcclRank;
using test::quick_options;
using test::run_nccl_ranks;
using testing::ElementsAre;
using testing::HasSubstr;

class NcclTransportOf : public testing::TestWithParam<std::tuple<int, int>> {};  // ranks, version

TEST_P(NcclTransportOf, MessagesArriveInTheirExchange) {
  run_nccl_ranks(
      std::get<0>(GetParam()),
      [](NcclRank& rank) -> Result<void> {
        HF_TRY_VOID(rank.connect());
        HF_TRY_VOID(test::check_exchanges(*rank.transport, patient()));
        rank.expect_clean_end();
        return {};
      },
      quick_options(), std::get<1>(GetParam()));
}

TEST_P(NcclTransportOf, GroupsThatNcclLaunchesLater) {
  run_nccl_ranks(
      std::get<0>(GetParam()),
      [](NcclRank& rank) -> Result<void> {
        rank.library.slow_launch(rank.control->rank() + 1);
        HF_TRY_VOID(rank.connect());
        HF_TRY_VOID(test::check_exchanges(*rank.transport, patient(), 10));
        rank.expect_clean_end();
        return {};
      },
      quick_options(), std::get<1>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclTransportOf,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5),
                                          testing::Values(NcclLibrary::version_min, 22809)));

class LaneReductionOverNccl : public testing::TestWithParam<std::tuple<int, int>> {};  // ranks, lanes

TEST_P(LaneReductionOverNccl, BitsAreThoseOfASequentialSum) {
  const int lanes = std::get<1>(GetParam());
  run_nccl_ranks(std::get<0>(GetParam()), [lanes](NcclRank& rank) -> Result<void> {
    rank.library.slow_launch(rank.control->rank() % 2);
    HF_TRY_VOID(rank.connect());
    HF_TRY_VOID(test::check_lane_reduction(*rank.transport, patient(), {.lanes = lanes}));
    HF_TRY_VOID(test::check_gather_parameters(*rank.transport, patient()));
    rank.expect_clean_end();
    return {};
  });
}

using Shape = std::tuple<int, int>;
INSTANTIATE_TEST_SUITE_P(All, LaneReductionOverNccl,
                         testing::Values(Shape(1, 5), Shape(2, 2), Shape(2, 5), Shape(3, 8), Shape(4, 4),
                                         Shape(4, 5)));

// Both stages of neighbouring buckets in one exchange, and apart (LaneExchange), in shared places.
TEST(NcclTransport, CarriesSumsOfLaneBlocks) {
  for (const int ranks : {4, 5}) {
    run_nccl_ranks(ranks, [ranks](NcclRank& rank) -> Result<void> {
      rank.library.slow_launch(rank.control->rank() % 2);
      HF_TRY_VOID(rank.connect());
      std::vector<int> hosts = {0, 0, 0, 1, 1};
      if (ranks == 4) hosts = {0, 0, 1, 1};
      HF_TRY_VOID(test::check_lane_reduction(*rank.transport, patient(),
                                             {.lanes = 10, .block = 2, .gradient_slots = 2, .hosts = hosts}));
      HF_TRY_VOID(
          test::check_gather_parameters(*rank.transport, patient(), test::uneven_buckets(), 2, hosts));
      rank.expect_clean_end();
      return {};
    });
  }
}

// More buckets than exchanges are open at once.
TEST(NcclTransport, GatherTakesMoreExchangesThanSlots) {
  run_nccl_ranks(3, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    std::vector<Bucket> buckets(3 * NcclTransport::slot_count + 7);
    for (Bucket& bucket : buckets)
      bucket.tensors = {{.name = "t", .shape = {block_elements + 5}, .global_shape = {}}};
    HF_TRY_VOID(test::check_gather_parameters(*rank.transport, patient(), std::move(buckets)));
    rank.expect_clean_end();
    return {};
  });
}

// Two ranks begin their exchanges in opposite orders and wait for the later one first, while NCCL takes its
// time to launch: neither order nor launch of one holds up the other, and groups start one after the other.
TEST(NcclTransport, ExchangesBesideEachOtherGoInAnyOrder) {
  for (const int version : {NcclLibrary::version_min, 22809}) {
    run_nccl_ranks(
        2,
        [](NcclRank& rank) -> Result<void> {
          rank.library.slow_launch(3);
          HF_TRY_VOID(rank.connect());
          HF_TRY(const std::unique_ptr<Transport> tensor, rank.session->connect(*rank.control, "tensor"));
          std::array<Transport*, 2> order = {rank.transport.get(), tensor.get()};
          if (rank.control->rank() == 1) std::swap(order[0], order[1]);
          const std::int64_t mine = rank.control->rank();
          const int peer = 1 - rank.control->rank();
          for (int round = 0; round < 10; ++round) {
            std::array<std::int64_t, 2> theirs = {-1, -1};
            std::array<Transport::Number, 2> numbers = {};
            for (std::size_t i = 0; i < order.size(); ++i) {
              const Transport::Incoming incoming{.target = std::as_writable_bytes(std::span(&theirs[i], 1)),
                                                 .peer = peer};
              const Transport::Outgoing outgoing{.source = std::as_bytes(std::span(&mine, 1)), .peer = peer};
              HF_TRY(numbers[i], order[i]->open(std::span(&incoming, 1)));
              HF_TRY_VOID(order[i]->send(numbers[i], std::span(&outgoing, 1)));
            }
            for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
              HF_TRY_VOID(finish_exchanges(*order[i], patient(), numbers[i] + 1, "a test"));
              EXPECT_EQ(theirs[i], peer);
            }
          }
          rank.expect_clean_end();
          return {};
        },
        quick_options(), version);
  }
}

// As a step with data and tensor lanes has them; both are aborted in one group at the end.
TEST(NcclTransport, TwoCommunicatorsOfOneSession) {
  for (const int version : {NcclLibrary::version_min, 22809}) {
    run_nccl_ranks(
        3,
        [](NcclRank& rank) -> Result<void> {
          HF_TRY_VOID(rank.connect("data"));
          HF_TRY(const std::unique_ptr<Transport> tensor, rank.session->connect(*rank.control, "tensor"));
          EXPECT_THAT(rank.library.names(), ElementsAre("holdfast-e3-data", "holdfast-e3-tensor"));
          for (int i = 0; i < 10; ++i) {
            HF_TRY_VOID(test::exchange_words(*rank.transport));
            HF_TRY_VOID(test::exchange_words(*tensor));
          }
          rank.expect_clean_end();
          return {};
        },
        quick_options(), version);
  }
}

// An exchange begins behind the work that writes its bytes, and the work behind it begins when they are there; the
// host waits for neither.
TEST(NcclTransport, IsOrderedByTheDevice) {
  for (const int version : {NcclLibrary::version_min, 22809}) {
    run_nccl_ranks(
        2,
        [](NcclRank& rank) -> Result<void> {
          rank.library.slow_launch(2);
          HF_TRY_VOID(rank.connect());
          EXPECT_TRUE(rank.transport->is_on_device());
          constexpr std::size_t exchanges = 5;
          std::array<std::int64_t, exchanges> mine = {}, theirs = {};
          test::HeldQueue queue;
          Transport::Number last = 0;
          for (std::size_t i = 0; i < exchanges; ++i) {
            HF_TRY(last, test::enqueue_words(*rank.transport, queue, mine[i], theirs[i]));
          }
          HF_TRY_VOID(barrier(*rank.control, patient()));
          for (int i = 0; i < 20; ++i) HF_TRY_VOID(outcome_of(rank.transport->advance()));
          EXPECT_EQ(queue.waits(), exchanges);
          EXPECT_FALSE(queue.may_go_on());
          EXPECT_EQ(rank.transport->oldest(), last + 1 - exchanges);
          HF_TRY_VOID(barrier(*rank.control, patient()));
          const std::int64_t own = 10 * rank.control->rank(), other = 10 - own;
          for (std::size_t i = 0; i < exchanges; ++i) mine[i] = own + static_cast<std::int64_t>(i);
          queue.run();
          HF_TRY_VOID(finish_exchanges(*rank.transport, patient(), last + 1, "a test"));
          EXPECT_TRUE(queue.may_go_on());
          for (std::size_t i = 0; i < exchanges; ++i)
            EXPECT_EQ(theirs[i], other + static_cast<std::int64_t>(i));
          rank.expect_clean_end();
          return {};
        },
        quick_options(), version);
  }
}

// The double is strict enough to tell: groups issued in another order on one rank never end.
TEST(NcclDouble, AnotherOrderOfGroupsDeadlocks) {
  test::NcclWorld world;
  test::NcclDouble ends[2] = {test::NcclDouble(world), test::NcclDouble(world)};
  NcclUniqueId id;
  ASSERT_EQ(ends[0].unique_id(id), NcclResult::success);
  NcclComm comms[2] = {};
  CudaStream streams[2] = {};
  CudaEvent events[2] = {};
  std::int64_t word = 7, received[2] = {};
  for (int r : {0, 1}) {
    ASSERT_EQ(ends[r].comm_init(comms[r], {.ranks = 2, .id = id, .rank = r, .name = "c"}),
              NcclResult::in_progress);
    ASSERT_EQ(ends[r].stream_create(streams[r]), 0);
    ASSERT_EQ(ends[r].event_create(events[r]), 0);
  }
  for (int r : {0, 1}) {  // both send first
    ends[r].group_start();
    ends[r].send(&word, sizeof(word), 1 - r, comms[r], streams[r]);
    ends[r].group_end();
  }
  for (int r : {0, 1}) {
    ends[r].group_start();
    ends[r].receive(&received[r], sizeof(word), 1 - r, comms[r], streams[r]);
    ends[r].group_end();
    ends[r].event_record(events[r], streams[r]);
  }
  EXPECT_EQ(ends[0].event_query(events[0]), 600);
  EXPECT_EQ(ends[1].event_query(events[1]), 600);
  EXPECT_EQ(received[0], 0);
}

}  // namespace
}  // namespace holdfast::test
