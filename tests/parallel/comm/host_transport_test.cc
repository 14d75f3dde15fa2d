#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/comm/host_transport.h"
#include "parallel/comm/transport.h"
#include "parallel/local/local_communicator.h"
#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/patient.h"
#include "tests/parallel/transport_contract.h"

namespace holdfast::test {
namespace {

class HostTransportOf : public testing::TestWithParam<int> {};

TEST_P(HostTransportOf, MessagesArriveInTheirExchange) {
  HF_EXPECT_OK(run_local_ranks(GetParam(), [](Communicator& c) {
    HostTransport transport(c);
    return test::check_exchanges(transport, patient());
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostTransportOf, testing::Values(1, 2, 3, 4, 5, 8));

TEST(HostTransport, SlotsAreBoundedAndReused) {
  HF_EXPECT_OK(run_local_ranks(2, [](Communicator& c) -> Result<void> {
    HostTransport transport(c);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::uint64_t> received;
      received.reserve(HostTransport::open_max);
      std::uint64_t mine = 0;
      Transport::Number end = transport.oldest();
      while (transport.can_open()) {
        received.push_back(0);
        const Transport::Incoming incoming{.target = std::as_writable_bytes(std::span(&received.back(), 1)),
                                           .peer = 1 - c.rank()};
        HF_TRY(const Transport::Number number, transport.open(std::span(&incoming, 1)));
        end = number + 1;
      }
      EXPECT_EQ(received.size(), HostTransport::open_max / 2);
      for (Transport::Number number = end - received.size(); number < end; ++number) {
        mine = number;  // taken at once or not at all before the next is sent
        const Transport::Outgoing outgoing{.source = std::as_bytes(std::span(&mine, 1)),
                                           .peer = 1 - c.rank()};
        HF_TRY_VOID(transport.send(number, std::span(&outgoing, 1)));
        HF_TRY_VOID(finish_exchanges(transport, patient(), number + 1, "a test"));
      }
      EXPECT_EQ(received.front(), end - received.size());
      EXPECT_EQ(received.back(), end - 1);
    }
    return {};
  }));
}

TEST(HostTransport, TimeoutNamesOperationPeerAndExchange) {
  auto ends = make_local_communicators(3);
  HostTransport transport(*ends[0]);
  std::vector<std::byte> target(8);
  const Transport::Incoming incoming{.target = target, .peer = 2};
  ASSERT_TRUE(transport.open(std::span(&incoming, 1)).ok());
  ASSERT_TRUE(transport.send(0, {}).ok());
  const Result<void> outcome = finish_exchanges(transport, Waiter(posix_env(), 30), 1, "a test");
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ExitCode::communication);
  EXPECT_NE(outcome.error().message.find("rank 0 waited 30 ms for rank 2 in a test (exchange 0)"),
            std::string::npos)
      << outcome.error().message;
  EXPECT_TRUE(transport.abandoned());
  EXPECT_FALSE(transport.advance().ok()) << "unusable after an error";
}

// The exchange inside goes over communicators of its own, as NCCL's does.

using testing::HasSubstr;

struct Rank {
  explicit Rank(std::unique_ptr<Communicator> control_end, std::unique_ptr<Communicator> elsewhere_end)
      : control(std::move(control_end)),
        elsewhere(std::move(elsewhere_end)),
        transport(std::make_unique<HostTransport>(*elsewhere), *control, posix_env(), traffic) {}

  // Receives from the other rank, which sends nothing, until something ends that.
  Result<void> wait_for_peer() {
    std::byte target{};
    const Transport::Incoming incoming{.target = {&target, 1}, .peer = 1 - control->rank()};
    HF_TRY(const Transport::Number number, transport.open(std::span(&incoming, 1)));
    HF_TRY_VOID(transport.send(number, {}));
    return finish_exchanges(transport, patient(), number + 1, "a test");
  }

  std::unique_ptr<Communicator> control, elsewhere;
  Traffic traffic;
  GuardedTransport transport;
};

std::vector<std::unique_ptr<Rank>> make_ranks(int size) {
  auto controls = make_local_communicators(size), elsewhere = make_local_communicators(size);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::size_t i = 0; i < controls.size(); ++i) {
    ranks.push_back(std::make_unique<Rank>(std::move(controls[i]), std::move(elsewhere[i])));
  }
  return ranks;
}

TEST(GuardedTransport, KeepsTheContract) {
  auto controls = make_local_communicators(3);
  HF_EXPECT_OK(run_local_ranks(3, [&](Communicator& elsewhere) -> Result<void> {
    Communicator& control = *controls[static_cast<std::size_t>(elsewhere.rank())];
    Traffic traffic;
    GuardedTransport transport(std::make_unique<HostTransport>(elsewhere), control, posix_env(), traffic);
    HF_TRY_VOID(test::check_exchanges(transport, patient()));
    EXPECT_FALSE(transport.abandoned());
    return barrier(control, patient());
  }));
}

TEST(GuardedTransport, EndsWhenAPeerIsGone) {
  auto ranks = make_ranks(2);
  ranks[1]->control.reset();  // and nobody tells the exchange
  const Result<void> outcome = ranks[0]->wait_for_peer();
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ExitCode::communication);
  EXPECT_THAT(outcome.error().message, HasSubstr("rank 0 lost rank 1"));
  EXPECT_TRUE(ranks[0]->elsewhere->abandoned()) << "its targets may go";
}

TEST(GuardedTransport, ItsErrorEndsTheCommunicator) {
  auto ranks = make_ranks(2);
  ranks[1]->elsewhere.reset();
  EXPECT_FALSE(ranks[0]->wait_for_peer().ok());
  EXPECT_TRUE(ranks[0]->control->abandoned());
  const Result<void> peer = ranks[1]->control->check_peers();
  ASSERT_FALSE(peer.ok()) << "and so all ranks learn of it";
  EXPECT_THAT(peer.error().message, HasSubstr("lost rank 0"));
}

TEST(GuardedTransport, GivingUpEndsBoth) {
  auto ranks = make_ranks(2);
  ranks[0]->transport.abandon();
  EXPECT_TRUE(ranks[0]->control->abandoned());
  EXPECT_TRUE(ranks[0]->elsewhere->abandoned());
  EXPECT_FALSE(ranks[0]->transport.advance().ok());
}

}  // namespace

}  // namespace holdfast::test
