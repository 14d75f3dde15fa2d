#include "parallel/data/pinned_transport.h"

#include <gtest/gtest.h>

#include "parallel/comm/host_transport.h"
#include "parallel/local/local_communicator.h"
#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/lane_reduction_harness.h"
#include "tests/parallel/patient.h"
#include "tests/parallel/transport_contract.h"

namespace holdfast::test {
namespace {

// A rank's exchange on a device of its own; the device comes last, so that its queue ends first.
struct Pinned {
  Pinned(Communicator& communicator, std::uint64_t largest_bytes)
      : host(communicator), device(make_cpu_device({})), transport(host, *device, largest_bytes, plan) {
    arena = allocate_memory(*device, plan).value();
    transport.bind(arena);
  }
  MemoryPlan plan;
  MemoryArena arena;
  HostTransport host;
  std::unique_ptr<Device> device;
  PinnedTransport transport;
};

// Returns the exchange of a run with a lane for each rank.
LaneExchange exchange_of(const BucketPlan& plan, int rank) {
  return {plan, LaneSchedule(plan.ranks(), plan.ranks()), rank};
}

class PinnedTransportOf : public testing::TestWithParam<int> {};

TEST_P(PinnedTransportOf, MessagesArriveInTheirExchange) {
  HF_EXPECT_OK(run_local_ranks(GetParam(), [](Communicator& c) {
    Pinned pinned(c, 1 << 20);
    return test::check_exchanges(pinned.transport, patient(), 40, 2);
  }));
}

TEST_P(PinnedTransportOf, EveryRankGetsEveryParameterThroughTheSmallestBuffers) {
  HF_EXPECT_OK(run_local_ranks(GetParam(), [](Communicator& c) {
    const BucketPlan plan(test::uneven_buckets(), c.size());
    Pinned pinned(c, largest_exchange_bytes(plan, exchange_of(plan, c.rank()), sizeof(std::uint16_t)));
    return test::check_gather_parameters(pinned.transport, patient());
  }));
}

TEST(PinnedTransport, PassesParametersOnThroughTheSmallestBuffers) {
  HF_EXPECT_OK(run_local_ranks(4, [](Communicator& c) {
    const std::vector<int> hosts = {0, 0, 1, 1};
    const BucketPlan plan(test::uneven_buckets(), 4, 0, 2);
    const LaneExchange exchange(plan, LaneSchedule(4, 4, 2), c.rank(), hosts);
    Pinned pinned(c, largest_exchange_bytes(plan, exchange, sizeof(std::uint16_t)));
    return test::check_gather_parameters(pinned.transport, patient(), test::uneven_buckets(), 2, hosts);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, PinnedTransportOf, testing::Values(1, 2, 3, 5));

// The bytes of the messages themselves, without the alignment of their buffers.
TEST(PinnedTransport, LargestExchangeHoldsAllMessagesOfABucket) {
  const BucketPlan plan(test::uneven_buckets(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    const std::uint64_t largest = largest_exchange_bytes(plan, exchange_of(plan, rank), sizeof(float));
    for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
      std::uint64_t bytes = plan.gradient_range(bucket, rank).size() * sizeof(float);  // received twice
      for (int owner = 0; owner < 3; ++owner)
        bytes += plan.gradient_range(bucket, owner).size() * sizeof(float);
      EXPECT_GE(largest, bytes) << "bucket " << bucket << " on rank " << rank;
    }
  }
}

TEST(PinnedTransport, LargestExchangeHoldsThoseOfBlocks) {
  const std::vector<int> hosts = {0, 0, 0, 1, 1, 1, 1};
  for (const int ranks : {6, 7}) {  // both stages of neighbouring buckets in one exchange, and apart
    const BucketPlan plan(test::uneven_buckets(), ranks, 0, 3);
    for (int rank = 0; rank < ranks; ++rank) {
      const LaneExchange exchange(plan, LaneSchedule(12, ranks, 3), rank,
                                  {hosts.begin(), hosts.begin() + ranks});
      EXPECT_TRUE(exchange.sums_blocks());
      const std::uint64_t largest = largest_exchange_bytes(plan, exchange, sizeof(float));
      for (int wave = 0; wave < exchange.schedule().waves(); ++wave) {
        for (int position = 0; position < exchange.count(wave); ++position) {
          std::vector<LaneExchange::Message> messages;
          exchange.incoming(wave, exchange.at(wave, position), messages);
          exchange.outgoing(wave, exchange.at(wave, position), messages);
          std::uint64_t bytes = 0;
          for (const LaneExchange::Message& message : messages) bytes += message.range.size() * sizeof(float);
          EXPECT_GE(largest, bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::test
