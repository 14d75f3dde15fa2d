#include "parallel/local/local_communicator.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/patient.h"
#include "tests/support/arrivals_communicator.h"
#include "tests/support/simulated_env.h"

namespace holdfast::test {
namespace {

class LocalRanks : public testing::TestWithParam<int> {};

TEST_P(LocalRanks, Messages) {
  HF_EXPECT_OK(
      run_local_ranks(GetParam(), [](Communicator& c) { return test::check_messages(c, patient()); }));
}

TEST_P(LocalRanks, Collectives) {
  HF_EXPECT_OK(
      run_local_ranks(GetParam(), [](Communicator& c) { return test::check_collectives(c, patient()); }));
}

TEST_P(LocalRanks, Agreement) {
  HF_EXPECT_OK(
      run_local_ranks(GetParam(), [](Communicator& c) { return test::check_agreement(c, patient()); }));
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalRanks, testing::Range(1, 10));

TEST(LocalCommunicator, SlotsAreReused) {
  HF_EXPECT_OK(
      run_local_ranks(2, [](Communicator& c) { return test::check_slots_are_reused(c, patient()); }));
}

// Returns the error that each rank but the dead one ends with.
std::vector<std::string> errors_of(int ranks, const std::function<Result<void>(Communicator&)>& body,
                                   Env& env) {
  std::mutex mutex;
  std::vector<std::string> errors;
  HF_EXPECT_OK(run_local_ranks(
      ranks,
      [&](Communicator& communicator) -> Result<void> {
        const Result<void> outcome = body(communicator);
        const std::lock_guard guard(mutex);
        if (!outcome.ok()) errors.push_back(outcome.error().message);
        return {};
      },
      env));
  return errors;
}

TEST(LocalCommunicator, ADeathIsMissedByThoseWhoMissIt) {
  const auto body = [](Communicator& c) { return test::check_death(c, patient(), [] {}); };
  EXPECT_EQ(errors_of(4, body, posix_env()).size(), 3U);
}

TEST(LocalCommunicator, WhoGivesUpEndsItForAll) {
  const auto body = [](Communicator& c) { return test::check_revocation(c, patient()); };
  for (const int ranks : {3, 5}) EXPECT_EQ(errors_of(ranks, body, posix_env()).size(), std::size_t(ranks));
}

// The same on a clock of their own.
TEST(LocalCommunicator, FailuresAreTheSameInASimulation) {
  SimulatedEnv env(posix_env());
  const Waiter waiter(env, 60'000);
  const auto with_death = [&](Communicator& c) { return test::check_death(c, waiter, [] {}); };
  EXPECT_EQ(errors_of(4, with_death, env).size(), 3U);
  const auto without = [&](Communicator& c) { return test::check_revocation(c, waiter); };
  EXPECT_EQ(errors_of(4, without, env).size(), 4U);
  EXPECT_LT(env.now_s(), 5);
}

// Fit ranks go on without the unfit one, and revoke the group, while others are slow to pass their verdict on.
void expect_verdicts(int ranks, int unfit, const std::function<Result<void>(Communicator&, bool)>& agree) {
  HF_EXPECT_OK(run_local_ranks(ranks, [&](Communicator& communicator) -> Result<void> {
    const auto be_slow = [](const auto& arrival) {
      if (arrival.target % 2 == 0) posix_env().sleep_us(500);
    };
    ArrivalsCommunicator slow(communicator, be_slow, /*as_mpi=*/true);
    const bool is_unfit = communicator.rank() == unfit;
    const Result<void> verdict = agree(slow, is_unfit);
    EXPECT_FALSE(verdict.ok());
    if (!verdict.ok()) {
      EXPECT_EQ(verdict.error().reach, is_unfit ? Reach::host : Reach::peers) << verdict.error().message;
    }
    communicator.abandon();
    return {};
  }));
}

TEST(LocalCommunicator, NoRankGoesOnBeforeAllHaveTheirVerdict) {
  for (int ranks = 3; ranks <= 9; ++ranks) {
    for (int unfit = 0; unfit < ranks; ++unfit) {
      expect_verdicts(ranks, unfit, [](Communicator& c, bool is_unfit) {
        const Result<void> mine = is_unfit ? Result<void>(fail(ExitCode::data, "no data")) : Result<void>();
        return agree_on_fitness(c, patient(), mine, "h", Examined::same);
      });
      expect_verdicts(ranks, unfit, [](Communicator& c, bool is_unfit) {
        return agree_on_facts(c, patient(), {{"data", is_unfit ? "d2" : "d1"}}, Difference::most_go_on);
      });
    }
  }
}

TEST(LocalCommunicator, PendingRequestsFailWhenThePeerLeaves) {
  auto ends = make_local_communicators(2);
  std::vector<std::byte> buffer(8);
  const auto receiving = ends[0]->receive(buffer, 1, 3);
  ASSERT_TRUE(receiving.ok());
  EXPECT_FALSE(*ends[0]->test(*receiving));
  ends[1].reset();
  const Result<bool> outcome = ends[0]->test(*receiving);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ExitCode::communication);
  EXPECT_NE(outcome.error().message.find("rank 0 lost rank 1"), std::string::npos) << outcome.error().message;
  EXPECT_FALSE(ends[0]->send(buffer, 1, 3).ok()) << "unusable after an error";
}

TEST(LocalCommunicator, WhoLooksSeesThatAPeerLeft) {
  auto ends = make_local_communicators(3);
  HF_EXPECT_OK(ends[0]->check_peers());
  ends[2].reset();
  const Result<void> outcome = ends[0]->check_peers();
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ExitCode::communication);
  EXPECT_NE(outcome.error().message.find("rank 0 lost rank 2"), std::string::npos) << outcome.error().message;
  EXPECT_TRUE(ends[0]->abandoned());
  EXPECT_FALSE(ends[1]->check_peers().ok()) << "rank 0 has left, too";
}

TEST(LocalCommunicator, SendToAPeerThatLeftFails) {
  auto ends = make_local_communicators(3);
  ends[2].reset();
  const std::vector<std::byte> buffer(8);
  const auto sending = ends[0]->send(buffer, 2, 3);
  ASSERT_TRUE(sending.ok());
  const Result<bool> outcome = ends[0]->test(*sending);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("rank 2"), std::string::npos);
}

TEST(LocalCommunicator, AbandonedBuffersAreNotTouched) {
  auto ends = make_local_communicators(2);
  std::vector<std::byte> target(8, std::byte{1});
  ASSERT_TRUE(ends[0]->receive(target, 1, 3).ok());
  ends[0]->abandon();
  const std::vector<std::byte> source(8, std::byte{2});
  const auto sending = ends[1]->send(source, 0, 3);
  ASSERT_TRUE(sending.ok());
  EXPECT_FALSE(ends[1]->test(*sending).ok());
  EXPECT_EQ(target, std::vector<std::byte>(8, std::byte{1}));
}

TEST(LocalCommunicator, DifferentLengthsAreAnErrorOnBothEnds) {
  auto ends = make_local_communicators(2);
  const std::vector<std::byte> source(8);
  std::vector<std::byte> target(9);
  const auto sending = ends[0]->send(source, 1, 3);
  const auto receiving = ends[1]->receive(target, 0, 3);
  for (const Result<bool>& outcome : {ends[0]->test(*sending), ends[1]->test(*receiving)}) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_NE(outcome.error().message.find("length"), std::string::npos);
  }
}

TEST(RunLocalRanks, ReturnsTheErrorOfTheLowestRank) {
  const Result<void> outcome = run_local_ranks(4, [](Communicator& c) -> Result<void> {
    if (c.rank() == 0) return {};
    return fail(ExitCode::data, "rank {} failed", c.rank());
  });
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().message, "rank 1 failed");
}

TEST(Collectives, TimeoutNamesOperationAndPeer) {
  auto ends = make_local_communicators(4);
  const Waiter impatient(posix_env(), 30);
  const Result<void> outcome = barrier(*ends[1], impatient);  // rank 1 of four first waits for rank 0
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ExitCode::communication);
  EXPECT_NE(outcome.error().message.find("rank 1 waited 30 ms for rank 0 in a barrier"), std::string::npos)
      << outcome.error().message;
}

TEST(Collectives, ADeadPeerIsNoticedBehindASlowOne) {
  auto ends = make_local_communicators(3);
  std::vector<std::byte> slow(8), dead(8);
  const std::vector<Communicator::Request> requests = {*ends[0]->receive(slow, 1, 3),
                                                       *ends[0]->receive(dead, 2, 3)};
  ends[2].reset();
  const std::vector<int> peers = {1, 2};
  const Result<void> outcome = patient().wait(*ends[0], requests, "a test", peers);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("lost rank 2"), std::string::npos) << outcome.error().message;
}

TEST(Agreement, NamesAllRanksThatDiffer) {
  const Result<void> outcome = run_local_ranks(5, [](Communicator& c) {
    return agree_on_facts(c, patient(), {{"binary", c.rank() % 2 == 0 ? "1.0" : "1.1"}, {"config", "c"}});
  });
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("ranks 1, 3 (host "), std::string::npos) << outcome.error().message;
  EXPECT_NE(outcome.error().message.find("1.1 instead of 1.0"), std::string::npos) << outcome.error().message;
}

TEST(Agreement, OtherFactNamesAreADifference) {
  const Result<void> outcome = run_local_ranks(2, [](Communicator& c) {
    std::vector<Fact> facts = {{"binary", "1"}};
    if (c.rank() == 1) facts.push_back({"more", "x"});
    return agree_on_facts(c, patient(), facts);
  });
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("rank 1"), std::string::npos);
}

TEST(Agreement, LowestFailingRankWins) {
  const Result<void> outcome = run_local_ranks(4, [](Communicator& c) {
    Result<void> mine;
    if (c.rank() >= 2) mine = fail(ExitCode::checkpoint, "disk {} is full: 100 %", c.rank());
    return agree_on_outcome(c, patient(), mine, fmt::format("node{}", c.rank()));
  });
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ExitCode::checkpoint);
  EXPECT_EQ(outcome.error().message, "rank 2 (node2): disk 2 is full: 100 %");
}

}  // namespace
}  // namespace holdfast::test
