// Run under mpirun, on any number of ranks: the Communicator contract over MPI.
//
//   contract_main              every check of tests/parallel, and messages longer than one MPI call carries
//   contract_main kill         the last rank dies by SIGKILL in a lane reduction: all others get an error
//                              that says so
//   contract_main watch        the same while the others exchange nothing and only look
//   contract_main acknowledged the same while the others wait for it, and MPI looks for its messages no more
//   contract_main silent       on three ranks: the same while rank 0 waits for it, and first for a silent one
//   contract_main death        on four ranks: two that exchange messages go on behind the death of the last rank,
//                              until a third one misses it
//   contract_main revoke       rank 0 gives up while nobody has died: all others get an error
//   contract_main absent       rank 1 ends before it joins: all others end at the deadline, with a sentence
//   contract_main leave        the last rank dies, the others end with exit code 76, rank 0 first
//   contract_main recover      one after another dies while large messages are under way, the others go on in
//                              the next epoch; the last one leaves MPI
//   contract_main unread       the same; who dies has read nothing for a while, and its connections stay
//   contract_main recover_wrong  as recover, and the first that dies has found something wrong before: only
//                              its output says so (tests/system/harness_test.py)
//   contract_main memory N BYTES...   on one rank: what MPI keeps of a growth and a death (growth_memory.h)
//
// Exit code 0: as expected on this rank.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <mpi-ext.h>  // does not include mpi.h, which it needs

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "growth_memory.h"
#include "parallel/comm/host_transport.h"
#include "parallel/comm/launcher.h"
#include "parallel/group/membership.h"
#include "parallel/mpi/mpi_communicator.h"
#include "parallel/mpi/mpi_session.h"
#include "tests/parallel/communicator_contract.h"
#include "tests/parallel/lane_reduction_harness.h"
#include "tests/parallel/transport_contract.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t mpi_timeout_ms = 30'000;

Waiter waiter() {
  return {posix_env(), mpi_timeout_ms};
}

// Rank 0 to rank 1, in two parts of which the second is short.
Result<void> check_long_message(Communicator& communicator) {
  constexpr std::size_t bytes = MpiCommunicator::part_bytes_max + 12345;
  const auto content = [](std::size_t i) { return static_cast<std::byte>((i * 2654435761U) >> 13); };
  if (communicator.size() < 2 || communicator.rank() > 1) return {};
  std::vector<std::byte> message(bytes), next(3, std::byte{7});
  if (communicator.rank() == 0) {
    for (std::size_t i = 0; i < bytes; ++i) message[i] = content(i);
  }
  const int peer = 1 - communicator.rank();
  const auto start = [&](std::vector<std::byte>& buffer) {
    return peer == 1 ? communicator.send(buffer, peer, 70) : communicator.receive(buffer, peer, 70);
  };
  HF_TRY(const auto first, start(message));
  HF_TRY(const auto second, start(next));  // of the same tag: stays behind both parts
  HF_TRY_VOID(waiter().wait(communicator, first, "the long message", peer));
  HF_TRY_VOID(waiter().wait(communicator, second, "the short message", peer));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < bytes; ++i) wrong += message[i] == content(i) ? 0 : 1;
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(next, std::vector<std::byte>(3, std::byte{7}));
  return {};
}

Result<void> check_contract(MpiSession& session) {
  Communicator& world = session.world();
  EXPECT_EQ(world.size(), launched_ranks(posix_env()));
  EXPECT_EQ(world.size(), launched_ranks_on_host(posix_env()));
  EXPECT_EQ(session.facts().library.rfind("Open MPI ", 0), 0U) << session.facts().library;
  EXPECT_TRUE(session.facts().fault_tolerant);
  HF_TRY_VOID(test::check_messages(world, waiter()));
  HF_TRY_VOID(test::check_slots_are_reused(world, waiter()));
  HF_TRY_VOID(test::check_collectives(world, waiter()));
  HF_TRY_VOID(test::check_agreement(world, waiter()));
  HF_TRY_VOID(world.check_peers());
  HostTransport transport(world);
  HF_TRY_VOID(test::check_exchanges(transport, waiter()));
  for (const int lanes : {5, 8})
    HF_TRY_VOID(test::check_lane_reduction(transport, waiter(), {.lanes = lanes}));
  HF_TRY_VOID(test::check_gather_parameters(transport, waiter()));
  HF_TRY_VOID(check_long_message(world));
  Result<void> mine;
  if (testing::UnitTest::GetInstance()->Failed()) mine = fail(ExitCode::data, "a check failed");
  return agree_on_outcome(world, waiter(), mine, "here");
}

// The last rank dies when its first backward ran; what the others' lane reduction ends with.
Result<void> reduce_until_a_death(Communicator& world) {
  HostTransport transport(world);
  test::ReducingRank reducing(transport, waiter(), {.lanes = world.size()}, test::uneven_buckets());
  for (int step = 0; step < 1000; ++step) {
    if (step == 3 && world.rank() == world.size() - 1) posix_env().kill_self();
    HF_TRY_VOID(reducing.step(reducing.my_lanes(step)));
  }
  return {};
}

// The last rank dies; what the others see who only look.
Result<void> watch_until_a_death(Communicator& world) {
  HF_TRY_VOID(barrier(world, waiter()));
  if (world.rank() == world.size() - 1) posix_env().kill_self();
  PollBackoff backoff(posix_env(), mpi_timeout_ms);
  while (backoff.pause()) HF_TRY_VOID(world.check_peers());
  return {};
}

// The last rank dies, and MPI holds its death for acknowledged, as it does in a group that was being made
// when the death became known: looks at any source find no fault.
Result<void> wait_behind_an_acknowledged_death(Communicator& world) {
  constexpr std::int64_t patience_ms = 5'000;
  const int victim = world.size() - 1;
  HF_TRY_VOID(barrier(world, waiter()));
  if (world.rank() == victim) posix_env().kill_self();
  PollBackoff backoff(posix_env(), mpi_timeout_ms);
  int acknowledged = 0;
  while (acknowledged == 0 && backoff.pause()) {
    int found = 0;  // moves MPI on
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
    MPIX_Comm_ack_failed(MPI_COMM_WORLD, world.size(), &acknowledged);
  }
  std::vector<std::byte> from_dead(8);
  HF_TRY(const auto receiving, world.receive(from_dead, victim, 5));
  return Waiter(posix_env(), patience_ms).wait(world, receiving, "a message", victim);
}

// The last rank dies while rank 1 is silent: rank 0 waits for both, for rank 1 first, and learns of the death
// before it has waited too long. Rank 1 misses only the one that died, not rank 0, which has left by then.
Result<void> wait_behind_a_silent_rank(Communicator& world) {
  constexpr std::int64_t patience_ms = 5'000;
  const int victim = world.size() - 1;
  HF_TRY_VOID(barrier(world, waiter()));
  if (world.rank() == victim) posix_env().kill_self();
  if (world.rank() == 1) {
    posix_env().sleep_us((patience_ms + 1'000) * 1'000);
    PollBackoff backoff(posix_env(), mpi_timeout_ms);
    while (backoff.pause()) HF_TRY_VOID(world.check_peers_among({&victim, 1}));
    return {};
  }
  std::vector<std::byte> from_silent(8), from_dead(8);
  HF_TRY(const auto first, world.receive(from_silent, 1, 5));
  HF_TRY(const auto second, world.receive(from_dead, victim, 5));
  return Waiter(posix_env(), patience_ms)
      .wait(world, std::vector{first, second}, "a message", std::vector{1, victim});
}

// 1 MiB from everyone to everyone, again and again, until somebody is missed. What arrives is what was sent
// in this epoch.
Result<void> talk_until_a_death(Membership& membership, int victim, int rounds, bool finds_wrong) {
  constexpr std::size_t words = (1 << 20) / sizeof(std::uint64_t);
  Communicator& group = membership.communicator();
  const auto peers = static_cast<std::size_t>(group.size());
  const auto value = [&](int round, int sender) {
    return (membership.view().epoch << 40) + (static_cast<std::uint64_t>(round) << 8) +
           static_cast<std::uint64_t>(sender);
  };
  std::vector<std::vector<std::uint64_t>> received(peers);
  for (int round = 0;; ++round) {
    const bool dies = round == rounds && group.global_rank(group.rank()) == victim;
    std::vector<std::uint64_t> mine(words, value(round, group.rank()));
    std::vector<Communicator::Request> requests;
    std::vector<int> of;
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      std::vector<std::uint64_t>& target = received[static_cast<std::size_t>(peer)];
      target.assign(words, 0);
      HF_TRY(const auto receiving, group.receive(std::as_writable_bytes(std::span(target)), peer, 5));
      HF_TRY(const auto sending, group.send(std::as_bytes(std::span(mine)), peer, 5));
      requests.insert(requests.end(), {receiving, sending});
      of.insert(of.end(), {peer, peer});
    }
    if (dies) posix_env().kill_self();
    HF_TRY_VOID(waiter().wait(group, requests, "a large message", of));
    for (const int peer : of) {
      const std::vector<std::uint64_t>& target = received[static_cast<std::size_t>(peer)];
      const std::uint64_t expected = value(round, peer) + (finds_wrong ? 1 : 0);
      EXPECT_TRUE(target == std::vector<std::uint64_t>(words, expected)) << "from " << peer;
    }
  }
}

constexpr std::int64_t connections_outlive_us = 1'000'000;

// Everyone sends to the victim, which reads nothing and dies. A copy of its process holds its connections for
// a while longer, as a dying process does that the machine lets do nothing: so its death is known before what
// is under way to it fails.
Result<void> write_until_a_death(Membership& membership, int victim) {
  constexpr std::size_t messages = 2048, bytes = 60'000;  // more than a connection takes; sent at once, each
  Communicator& group = membership.communicator();
  HF_TRY_VOID(barrier(group, waiter()));
  if (group.global_rank(group.rank()) == victim) {
    posix_env().sleep_us(300'000);
    if (fork() == 0) {
      posix_env().sleep_us(connections_outlive_us);
      _exit(0);
    }
    posix_env().kill_self();
  }
  const std::vector<std::byte> message(bytes);
  const std::vector<int> of(messages, victim);  // the last one of its group, so that this is its rank, too
  std::vector<Communicator::Request> requests;
  for (std::size_t each = 0; each < messages; ++each) {
    HF_TRY(const auto sending, group.send(message, victim, 5));
    requests.push_back(sending);
  }
  HF_TRY_VOID(waiter().wait(group, requests, "messages that nobody reads", of));
  PollBackoff backoff(posix_env(), mpi_timeout_ms);
  while (backoff.pause()) HF_TRY_VOID(group.check_peers());
  return {};
}

// Ranks die until one is left; every epoch works as the first did.
Result<void> recover_until_alone(MpiSession& session, std::string_view mode) {
  HF_TRY(const std::unique_ptr<Membership> membership,
         Membership::begin(posix_env(), *session.shrinking_world(), mpi_timeout_ms));
  const int launched = session.world().size();
  for (int victim = launched - 1; victim > 0; --victim) {
    const int rounds = 2 + victim;
    const bool finds_wrong = mode == "recover_wrong" && launched - 1 == session.world().rank();
    const Result<void> outcome = mode == "unread"
                                     ? write_until_a_death(*membership, victim)
                                     : talk_until_a_death(*membership, victim, rounds, finds_wrong);
    EXPECT_FALSE(outcome.ok());
    HF_TRY_VOID(membership->recover(mpi_timeout_ms, "somebody is gone"));
    EXPECT_EQ(membership->view().members.size(), static_cast<std::size_t>(victim));
    EXPECT_EQ(membership->communicator().size(), victim);
    HF_TRY_VOID(test::check_collectives(membership->communicator(), waiter()));
    if (mode == "unread") {  // till what was under way has failed
      const std::int64_t end_ns = posix_env().monotonic_ns() + 2 * connections_outlive_us * 1000;
      while (posix_env().monotonic_ns() < end_ns) HF_TRY_VOID(membership->communicator().check_peers());
    }
  }
  std::printf("survived: alone in epoch %d\n", static_cast<int>(membership->view().epoch));
  return session.finish(mpi_timeout_ms);
}

// A rank sees the death itself, or that another one saw it first.
int survive(Communicator& world, Result<void> (*until_a_death)(Communicator&) = reduce_until_a_death) {
  const Result<void> outcome = until_a_death(world);
  const std::string message = outcome.ok() ? "no error" : outcome.error().message;
  const bool expected = !outcome.ok() && outcome.error().code == ExitCode::communication &&
                        (message.find(fmt::format("lost rank {}", world.size() - 1)) != std::string::npos ||
                         message.find("another rank ended the group") != std::string::npos);
  std::printf("%s: %s\n", expected ? "survived" : "FAILED", message.c_str());
  std::fflush(stdout);
  return expected && !testing::UnitTest::GetInstance()->Failed() ? 0 : 1;
}

int give_up(Communicator& world) {
  const Result<void> outcome = test::check_revocation(world, waiter());
  const bool expected = !outcome.ok() && outcome.error().code == ExitCode::communication;
  std::printf("%s: %s\n", expected ? "survived" : "FAILED",
              outcome.ok() ? "no error" : outcome.error().message.c_str());
  std::fflush(stdout);
  return expected && !testing::UnitTest::GetInstance()->Failed() ? 0 : 1;
}

int run(std::string_view mode) {
  Env& env = posix_env();
  std::signal(SIGPIPE, SIG_IGN);  // as the program does: a write to the connection of a dead rank is an error
  if (!env.die_with_parent().ok()) return 1;
  if (mode == "absent" && env.variable("OMPI_COMM_WORLD_RANK") == "1") return 3;
  Result<std::unique_ptr<MpiSession>> session =
      start_mpi_session(env, mode == "absent" ? 2000 : mpi_timeout_ms, nullptr);
  if (!session.ok()) {
    std::fprintf(stderr, "FAILED: %s\n", session.error().message.c_str());
    return 1;
  }
  Communicator& world = (*session)->world();
  if (mode == "kill") _exit(survive(world));
  if (mode == "watch") _exit(survive(world, watch_until_a_death));
  if (mode == "acknowledged") _exit(survive(world, wait_behind_an_acknowledged_death));
  if (mode == "silent") _exit(survive(world, wait_behind_a_silent_rank));
  if (mode == "death") {
    _exit(survive(world, [](Communicator& group) {
      return test::check_death(group, waiter(), [] { posix_env().kill_self(); });
    }));
  }
  if (mode == "revoke") _exit(give_up(world));
  if (mode == "leave") {
    if (world.rank() == 0)
      env.sleep_us(300'000);  // slower than the others, and still the one whose words are heard
    survive(world);
    (*session)->leave_after_error(ExitCode::communication);
  }
  const int rank = world.rank(), ranks = world.size();
  Result<void> outcome;
  if (mode == "recover" || mode == "recover_wrong" || mode == "unread") {
    outcome = recover_until_alone(**session, mode);
  } else {
    outcome = check_contract(**session);
    if (outcome.ok()) outcome = (*session)->finish(mpi_timeout_ms);
  }
  if (!outcome.ok()) {
    std::fprintf(stderr, "FAILED: %s\n", outcome.error().message.c_str());
    _exit(1);
  }
  if (testing::UnitTest::GetInstance()->Failed()) return 1;
  // mpirun ends with 0 also where every rank was killed, so it is this line that counts.
  if (mode.empty() && rank == 0) std::printf("the contract holds on %d ranks\n", ranks);
  return 0;
}

}  // namespace
}  // namespace holdfast::test

int main(int argc, char** argv) {
  if (argc > 3 && std::string_view(argv[1]) == "memory") {
    std::vector<int> message_bytes;
    for (int i = 3; i < argc; ++i) message_bytes.push_back(std::atoi(argv[i]));
    holdfast::test::measure_growth_memory(argv[0], std::atoi(argv[2]), message_bytes);
  }
  testing::InitGoogleTest(&argc,
                          argv);  // for EXPECT; there is no TEST, because all ranks must go the same way
  return holdfast::test::run(argc > 1 ? argv[1] : "");
}
