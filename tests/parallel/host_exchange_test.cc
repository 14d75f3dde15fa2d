#include "parallel/comm/host_exchange.h"

#include <gtest/gtest.h>

#include "communicator_contract.h"
#include "exchange_contract.h"
#include "parallel/local/local_communicator.h"
#include "tests/parallel/patient.h"

namespace holdfast {
namespace {

class HostExchangeOf : public testing::TestWithParam<int> {};

TEST_P(HostExchangeOf, MessagesArriveInTheirExchange) {
  HF_EXPECT_OK(run_local_ranks(GetParam(), [](Communicator& c) {
    HostExchange exchange(c);
    return test::check_exchanges(exchange, patient());
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostExchangeOf, testing::Values(1, 2, 3, 4, 5, 8));

TEST(HostExchange, SlotsAreBoundedAndReused) {
  HF_EXPECT_OK(run_local_ranks(2, [](Communicator& c) -> Result<void> {
    HostExchange exchange(c);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::uint64_t> received;
      received.reserve(Exchange::ranks_max);
      std::uint64_t mine = 0;
      Exchange::Number end = exchange.oldest();
      while (exchange.can_open()) {
        received.push_back(0);
        const Exchange::Incoming incoming{.target = std::as_writable_bytes(std::span(&received.back(), 1)),
                                          .peer = 1 - c.rank()};
        HF_TRY(const Exchange::Number number, exchange.open(std::span(&incoming, 1)));
        end = number + 1;
      }
      EXPECT_EQ(received.size(), std::size_t{Exchange::ranks_max / 2});
      for (Exchange::Number number = end - received.size(); number < end; ++number) {
        mine = number;  // taken at once or not at all before the next is sent
        const Exchange::Outgoing outgoing{.source = std::as_bytes(std::span(&mine, 1)), .peer = 1 - c.rank()};
        HF_TRY_VOID(exchange.send(number, std::span(&outgoing, 1)));
        HF_TRY_VOID(finish_exchanges(exchange, patient(), number + 1, "a test"));
      }
      EXPECT_EQ(received.front(), end - received.size());
      EXPECT_EQ(received.back(), end - 1);
    }
    return {};
  }));
}

TEST(HostExchange, TimeoutNamesOperationPeerAndExchange) {
  auto ends = make_local_communicators(3);
  HostExchange exchange(*ends[0]);
  std::vector<std::byte> target(8);
  const Exchange::Incoming incoming{.target = target, .peer = 2};
  ASSERT_TRUE(exchange.open(std::span(&incoming, 1)).ok());
  ASSERT_TRUE(exchange.send(0, {}).ok());
  const Result<void> outcome = finish_exchanges(exchange, Waiter(posix_env(), 30), 1, "a test");
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ExitCode::communication);
  EXPECT_NE(outcome.error().message.find("rank 0 waited 30 ms for rank 2 in a test (exchange 0)"),
            std::string::npos)
      << outcome.error().message;
  EXPECT_TRUE(exchange.abandoned());
  EXPECT_FALSE(exchange.advance().ok()) << "unusable after an error";
}

}  // namespace
}  // namespace holdfast
