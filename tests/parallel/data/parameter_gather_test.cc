// The gathering of parameters while something else goes on; the bytes it brings are checked for all kinds of
// exchanges by lane_reduction_harness.h.
#include "parallel/data/parameter_gather.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "parallel/comm/host_transport.h"
#include "parallel/local/local_communicator.h"
#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/lane_reduction_harness.h"
#include "tests/parallel/patient.h"

namespace holdfast::test {
namespace {

void wait_for(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

// A rank whose parameters are its owned ranges alone, each element filled with its owner.
class GatheringRank {
 public:
  explicit GatheringRank(Transport& transport, Waiter waiter = patient())
      : plan_(test::uneven_buckets(), transport.size()),
        parameters_(plan_.parameter_elements(), absent),
        device_(make_cpu_device({})),
        lanes_(plan_, LaneSchedule(transport.size(), transport.size()), transport.rank()),
        gather_(plan_, lanes_, transport, *device_, waiter, sizeof(std::uint16_t)) {
    gather_.bind(std::as_writable_bytes(std::span(parameters_)).data());
    for (int bucket = 0; bucket < last_of_forward + 4; ++bucket) {
      const ElementRange range = plan_.parameter_range(bucket, transport.rank());
      for (std::uint64_t i = range.begin; i < range.end; ++i)
        parameters_[i] = static_cast<std::uint16_t>(transport.rank());
    }
  }
  // Of uneven_buckets(), the last of which is a shadow.
  static constexpr int first_of_forward = 3, last_of_forward = 0;
  static constexpr std::uint16_t absent = 0xffff;

  ParameterGather& gather() { return gather_; }
  bool has(int bucket, int owner) const {
    const ElementRange range = plan_.parameter_range(bucket, owner);
    return std::all_of(parameters_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                       parameters_.begin() + static_cast<std::ptrdiff_t>(range.end),
                       [owner](std::uint16_t value) { return value == owner; });
  }

 private:
  BucketPlan plan_;
  std::vector<std::uint16_t> parameters_;
  std::unique_ptr<Device> device_;
  LaneExchange lanes_;
  ParameterGather gather_;
};

// With one exchange at a time a rank that does not move its messages on has sent its first bucket alone.
TEST(ParameterGather, WaitsForTheBucketThatIsAskedForAlone) {
  std::atomic<bool> passed = false;
  HF_EXPECT_OK(run_local_ranks(2, [&](Communicator& c) -> Result<void> {
    HostTransport transport(c, 1);
    GatheringRank rank(transport);
    HF_TRY_VOID(rank.gather().begin(ParameterGather::Which::trained));
    if (c.rank() == 0) {
      EXPECT_FALSE(rank.has(GatheringRank::last_of_forward, 1));
      const Result<void> first = rank.gather().wait_for(GatheringRank::first_of_forward);
      EXPECT_TRUE(rank.has(GatheringRank::first_of_forward, 1));
      EXPECT_FALSE(rank.has(GatheringRank::last_of_forward, 1));
      passed = true;
      HF_TRY_VOID(first);
      HF_TRY_VOID(rank.gather().wait_for(GatheringRank::last_of_forward));
      EXPECT_TRUE(rank.has(GatheringRank::last_of_forward, 1));
    } else {
      wait_for(passed);
    }
    return rank.gather().finish();
  }));
}

// The peer does not begin before this rank has moved something else on.
TEST(ParameterGather, MovesOtherThingsOnWhileItWaits) {
  std::atomic<bool> moved_on = false;
  HF_EXPECT_OK(run_local_ranks(2, [&](Communicator& c) -> Result<void> {
    HostTransport transport(c);
    GatheringRank rank(transport);
    if (c.rank() == 1) wait_for(moved_on);
    rank.gather().set_background([&]() -> Result<bool> {
      moved_on = true;
      posix_env().sleep_us(2000);  // which is no part of the gather, if it is over by then
      return false;
    });
    HF_TRY_VOID(rank.gather().begin(ParameterGather::Which::trained));
    HF_TRY_VOID(rank.gather().wait_for(GatheringRank::last_of_forward));
    EXPECT_TRUE(rank.has(GatheringRank::last_of_forward, 1 - c.rank()));
    HF_TRY_VOID(rank.gather().finish());
    EXPECT_GE(rank.gather().counts().buckets_awaited, c.rank() == 0 ? 1U : 0U);
    EXPECT_EQ(rank.gather().counts().buckets, 4U);
    EXPECT_GE(rank.gather().counts().gather_us, rank.gather().counts().exposed_us);
    return {};
  }));
}

// With one exchange at a time the rank that waits needs the other one to move its messages on in the vote.
TEST(ParameterGather, GoesOnWhileAPeerWaitsInACollective) {
  HF_EXPECT_OK(run_local_ranks(2, [&](Communicator& c) -> Result<void> {
    HostTransport transport(c, 1);
    GatheringRank rank(transport);
    const Waiter::Background gathering = [&] { return rank.gather().advance(); };
    const Waiter waiter = patient().with_background(gathering);
    HF_TRY_VOID(rank.gather().begin(ParameterGather::Which::trained));
    if (c.rank() == 1) HF_TRY_VOID(rank.gather().finish());
    std::array<std::int64_t, 1> ranks = {1};
    HF_TRY_VOID(all_reduce_sum(c, waiter, ranks));
    EXPECT_EQ(ranks[0], 2);
    HF_TRY_VOID(rank.gather().finish());
    EXPECT_TRUE(rank.has(GatheringRank::last_of_forward, 1 - c.rank()));
    return {};
  }));
}

TEST(ParameterGather, APeerThatLeavesOrHangsIsAnError) {
  for (const bool leaves : {true, false}) {
    std::atomic<bool> given_up = false;
    HF_EXPECT_OK(run_local_ranks(2, [&](Communicator& c) -> Result<void> {
      HostTransport transport(c);
      if (c.rank() == 1) {
        if (!leaves) wait_for(given_up);
        return {};
      }
      GatheringRank rank(transport, {posix_env(), leaves ? 20'000 : 50});
      Result<void> outcome = rank.gather().begin(
          ParameterGather::Which::trained);  // which may see already that the peer has left
      if (outcome.ok()) outcome = rank.gather().wait_for(GatheringRank::first_of_forward);
      given_up = true;
      EXPECT_FALSE(outcome.ok());
      if (outcome.ok()) return {};
      EXPECT_EQ(outcome.error().code, ExitCode::communication);
      EXPECT_TRUE(leaves || outcome.error().message.find("the gathering of parameters") != std::string::npos);
      return {};
    }));
  }
}

TEST(ParameterGather, ARankAloneWaitsForNothing) {
  HF_EXPECT_OK(run_local_ranks(1, [](Communicator& c) -> Result<void> {
    HostTransport transport(c);
    GatheringRank rank(transport);
    HF_TRY_VOID(rank.gather().begin(ParameterGather::Which::trained));
    HF_TRY_VOID(rank.gather().wait_for(GatheringRank::last_of_forward));
    HF_TRY_VOID(rank.gather().begin(ParameterGather::Which::trained));  // the one before is over
    EXPECT_EQ(rank.gather().counts().buckets, 0U);
    return {};
  }));
}

}  // namespace
}  // namespace holdfast::test
