// What every Communicator must do, for the tests of each implementation: all ranks of a group call the same
// check. Failures are reported by EXPECT on the rank that sees them.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"

namespace holdfast::test {

inline std::span<const std::byte> bytes_of_values(const std::vector<std::int64_t>& values) {
  return std::as_bytes(std::span(values));
}
inline std::span<std::byte> writable_bytes_of_values(std::vector<std::int64_t>& values) {
  return std::as_writable_bytes(std::span(values));
}

#define HF_EXPECT_OK(...)                                       \
  do {                                                          \
    const auto hf_outcome = (__VA_ARGS__);                      \
    EXPECT_TRUE(hf_outcome.ok()) << hf_outcome.error().message; \
  } while (false)

// Every rank sends to every other, several messages of several tags and lengths (0 too), receives posted late
// and in another order of tags: each arrives where it belongs, in order.
inline Result<void> check_messages(Communicator& communicator, const Waiter& waiter) {
  constexpr int tags = 3, messages = 4;
  const int rank = communicator.rank(), size = communicator.size();
  const auto content = [](int source, int target, int tag, int message) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(message * 700),  // 0, 5.6 kB ... 16.8 kB
                                     source * 1000 + target * 100 + tag * 10 + message);
  };
  std::vector<std::vector<std::int64_t>> sent, received, expected;
  std::vector<Communicator::Request> requests;
  std::vector<int> peers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    for (int message = 0; message < messages; ++message) {
      for (int tag = 0; tag < tags; ++tag) sent.push_back(content(rank, peer, tag, message));
    }
  }
  std::size_t next = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    for (int message = 0; message < messages; ++message) {
      for (int tag = 0; tag < tags; ++tag) {
        HF_TRY(const auto request, communicator.send(bytes_of_values(sent[next++]), peer, 50 + tag));
        requests.push_back(request);
        peers.push_back(peer);
      }
    }
  }
  for (int peer = size; peer-- > 0;) {
    if (peer == rank) continue;
    for (int tag = tags; tag-- > 0;) {
      for (int message = 0; message < messages; ++message) {
        expected.push_back(content(peer, rank, tag, message));
        received.emplace_back(expected.back().size());
      }
    }
  }
  next = 0;
  for (int peer = size; peer-- > 0;) {
    if (peer == rank) continue;
    for (int tag = tags; tag-- > 0;) {
      for (int message = 0; message < messages; ++message) {
        HF_TRY(const auto request,
               communicator.receive(writable_bytes_of_values(received[next++]), peer, 50 + tag));
        requests.push_back(request);
        peers.push_back(peer);
      }
    }
  }
  HF_TRY_VOID(waiter.wait(communicator, requests, "the test of messages", peers));
  EXPECT_EQ(received, expected) << "rank " << rank;
  return {};
}

// More requests in all than a pool has slots: slots are released.
inline Result<void> check_slots_are_reused(Communicator& communicator, const Waiter& waiter) {
  const int size = communicator.size();
  if (size == 1) return {};
  const int next = (communicator.rank() + 1) % size, previous = (communicator.rank() + size - 1) % size;
  for (std::int64_t i = 0; i < 2 * Communicator::request_count_max(size); ++i) {
    std::int64_t mine = i * size + communicator.rank(), theirs = -1;
    HF_TRY(const auto receiving,
           communicator.receive(std::as_writable_bytes(std::span(&theirs, 1)), previous, 60));
    HF_TRY(const auto sending, communicator.send(std::as_bytes(std::span(&mine, 1)), next, 60));
    HF_TRY_VOID(waiter.wait(communicator, receiving, "the test of slots", previous));
    HF_TRY_VOID(waiter.wait(communicator, sending, "the test of slots", next));
    if (theirs != i * size + previous) return fail(ExitCode::data, "message {} held {}", i, theirs);
  }
  return {};
}

inline Result<void> check_collectives(Communicator& communicator, const Waiter& waiter) {
  const int rank = communicator.rank(), size = communicator.size();
  HF_TRY_VOID(barrier(communicator, waiter));
  std::vector<std::int64_t> reported(7, rank);
  HF_TRY_VOID(broadcast(communicator, waiter, writable_bytes_of_values(reported)));
  EXPECT_EQ(reported, std::vector<std::int64_t>(7, 0)) << "rank " << rank;
  for (const std::size_t count : {0U, 1U, 1024U, 2500U}) {
    std::vector<std::int64_t> words(count), expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      words[i] = (rank + 1) * static_cast<std::int64_t>(i);
      expected[i] = static_cast<std::int64_t>(i) * size * (size + 1) / 2;
    }
    HF_TRY_VOID(all_reduce_sum(communicator, waiter, words));
    EXPECT_EQ(words, expected) << "rank " << rank;
  }
  std::vector<std::int64_t> wrapping = {std::numeric_limits<std::int64_t>::max()};
  HF_TRY_VOID(all_reduce_sum(communicator, waiter, wrapping));
  const std::uint64_t modulo = static_cast<std::uint64_t>(size) * 0x7fffffffffffffffU;
  EXPECT_EQ(static_cast<std::uint64_t>(wrapping[0]), modulo);

  const std::vector<std::int64_t> mine(3, rank);
  std::vector<std::int64_t> all(3 * static_cast<std::size_t>(size)), expected;
  for (int r = 0; r < size; ++r) expected.insert(expected.end(), 3, r);
  HF_TRY_VOID(all_gather(communicator, waiter, bytes_of_values(mine), writable_bytes_of_values(all)));
  EXPECT_EQ(all, expected) << "rank " << rank;

  const auto text = [](int r) {
    return r == 1 ? std::string() : std::string(static_cast<std::size_t>(r) * 999 + 1, 'x');
  };
  HF_TRY(const std::vector<std::string> texts, all_gather_text(communicator, waiter, text(rank)));
  EXPECT_EQ(texts.size(), static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) EXPECT_EQ(texts[static_cast<std::size_t>(r)], text(r)) << "on rank " << rank;
  return {};
}

// The last rank has another fact than all others, which are most of all ranks where there are three.
inline Result<void> agree_on_facts_of_most(Communicator& communicator, const Waiter& waiter) {
  const bool is_last = communicator.rank() == communicator.size() - 1;
  const Result<void> facts =
      agree_on_facts(communicator, waiter, {{"data", is_last ? "d2" : "d1"}}, Difference::most_go_on);
  if (communicator.size() == 1) return facts;
  EXPECT_FALSE(facts.ok());
  const Reach of_most = is_last ? Reach::host : Reach::peers;
  EXPECT_EQ(facts.error().reach, communicator.size() == 2 ? Reach::run : of_most);
  return {};
}

// The last rank fails in all of these agreements, the others in some.
inline Result<void> agree_on_reaches(Communicator& communicator, const Waiter& waiter) {
  const bool is_last = communicator.rank() == communicator.size() - 1;
  using Mine = std::optional<Reach>;
  const auto reach_of = [&](auto agree, const Mine& mine) {
    const Result<void> outcome =
        agree(communicator, waiter,
              mine.has_value() ? with_reach(*mine, fail(ExitCode::data, "unfit")) : Result<void>(),
              std::string("h"));
    return outcome.ok() ? Mine() : Mine(outcome.error().reach);
  };
  const auto of_last = [&](Reach reach, Mine others = {}) { return is_last ? Mine(reach) : others; };
  const auto fitness_of = [](Examined examined) {
    return [examined](Communicator& c, const Waiter& w, const Result<void>& mine, const std::string& host) {
      return agree_on_fitness(c, w, mine, host, examined);
    };
  };
  const auto same = fitness_of(Examined::same), own = fitness_of(Examined::own);
  for (const Reach reach : {Reach::run, Reach::host, Reach::minute}) {
    EXPECT_EQ(reach_of(same, of_last(reach)), is_last ? Reach::host : Reach::peers);
    if (reach == Reach::run) continue;
    EXPECT_EQ(reach_of(own, of_last(reach)), is_last ? Reach::host : Reach::peers);
  }
  EXPECT_EQ(reach_of(own, of_last(Reach::run)), Reach::run);
  EXPECT_EQ(reach_of(agree_on_outcome, of_last(Reach::host)), Reach::everywhere);
  EXPECT_EQ(reach_of(agree_on_outcome, of_last(Reach::minute)), Reach::minute);
  EXPECT_EQ(reach_of(agree_on_outcome, of_last(Reach::run)), Reach::run);
  EXPECT_EQ(reach_of(same, Mine(Reach::host)), Reach::everywhere);
  EXPECT_EQ(reach_of(same, of_last(Reach::minute, Reach::host)), Reach::minute);
  EXPECT_EQ(reach_of(same, of_last(Reach::run, Reach::host)), Reach::run);
  return {};
}

inline Result<void> check_agreement(Communicator& communicator, const Waiter& waiter) {
  const int rank = communicator.rank(), last = communicator.size() - 1;
  HF_TRY_VOID(agree_on_facts(communicator, waiter, {{"binary", "b1"}, {"config", "c1"}}));
  HF_TRY_VOID(agree_on_outcome(communicator, waiter, {}, "h"));
  const Result<void> alike = agree_on_outcome(communicator, waiter, fail(ExitCode::data, "no data"), "h");
  EXPECT_FALSE(alike.ok());
  if (!alike.ok()) {
    EXPECT_EQ(alike.error().message, "no data");
  }
  if (last == 0) return {};
  const Result<void> facts =
      agree_on_facts(communicator, waiter, {{"binary", "b1"}, {"config", rank == last ? "c2" : "c1"}});
  EXPECT_FALSE(facts.ok());
  if (!facts.ok()) {
    EXPECT_EQ(facts.error().code, ExitCode::config);
    EXPECT_NE(facts.error().message.find(fmt::format("rank {} (host ", last)), std::string::npos)
        << facts.error().message;
    EXPECT_NE(facts.error().message.find("has another config than rank 0"), std::string::npos)
        << facts.error().message;
    EXPECT_NE(facts.error().message.find("c2 instead of c1"), std::string::npos) << facts.error().message;
  }
  Result<void> mine;
  if (rank == last) mine = fail(ExitCode::data, "train.bin: not found");
  const Result<void> outcome = agree_on_outcome(communicator, waiter, mine, fmt::format("node{}", rank));
  EXPECT_FALSE(outcome.ok());
  if (!outcome.ok()) {
    EXPECT_EQ(outcome.error().code, ExitCode::data);
    EXPECT_EQ(outcome.error().message, fmt::format("rank {} (node{}): train.bin: not found", last, last));
    EXPECT_EQ(outcome.error().reach, Reach::run);
  }
  HF_TRY_VOID(agree_on_facts_of_most(communicator, waiter));
  return agree_on_reaches(communicator, waiter);
}

// Everything that a communicator does from its end on, as seen by the rank that has got the error.
inline void expect_unusable(Communicator& communicator, int peer) {
  std::vector<std::int64_t> words(1);
  EXPECT_TRUE(communicator.abandoned());
  EXPECT_FALSE(communicator.send(bytes_of_values(words), peer, 86).ok());
  EXPECT_FALSE(communicator.receive(writable_bytes_of_values(words), peer, 86).ok());
  EXPECT_FALSE(communicator.check_peers().ok());
  EXPECT_FALSE(communicator.check_peers_among(std::span(&peer, 1)).ok());
}

// Polls a request that nobody answers, and its peer, until one of them is an error.
inline Result<void> error_of_unanswered(Communicator& communicator, const Waiter& waiter, int peer) {
  std::vector<std::int64_t> words(1, 5);
  HF_TRY(const auto request, communicator.receive(writable_bytes_of_values(words), peer, 83));
  PollBackoff backoff(waiter);
  Result<bool> outcome = communicator.test(request);
  while (outcome.ok() && !*outcome && backoff.pause()) {
    outcome = communicator.test(request);
    if (!outcome.ok()) break;
    if (Result<void> peers = communicator.check_peers_among(std::span(&peer, 1)); !peers.ok())
      outcome = peers.error();
  }
  EXPECT_FALSE(outcome.ok()) << "rank " << communicator.rank() << " waits for ever for rank " << peer;
  communicator.abandon();
  EXPECT_EQ(words, std::vector<std::int64_t>(1, 5));
  return outcome_of(outcome);
}

// Four ranks, of which the last dies: by `die`, or as its thread ends here. Ranks 0 and 1 go on until rank 2, which
// waits for what the dead rank has sent last, misses it. Returns the error with which each rank's part ends.
inline Result<void> check_death(Communicator& communicator, const Waiter& waiter,
                                const std::function<void()>& die) {
  constexpr int misses = 2, dies = 3, rounds = 100;
  const std::vector<int> others = {0, 1};
  const int rank = communicator.rank();
  HF_TRY_VOID(barrier(communicator, waiter));
  static const std::vector<std::int64_t> last_words(100'000, 7);  // outlives the rank that sends it
  std::vector<std::int64_t> heard(last_words.size()), go(1);
  if (rank == dies) {
    HF_TRY_VOID(outcome_of(communicator.send(bytes_of_values(last_words), misses, 80)));
    die();
    return {};
  }
  if (rank == misses) {
    HF_TRY(const auto told, communicator.receive(writable_bytes_of_values(go), 0, 81));
    HF_TRY_VOID(waiter.wait(communicator, told, "the word to go on", 0));
    HF_TRY(const auto hearing, communicator.receive(writable_bytes_of_values(heard), dies, 80));
    Result<void> outcome = waiter.wait(communicator, hearing, "the last words", dies);
    if (outcome.ok()) {
      EXPECT_EQ(heard, last_words) << "it arrives whole or not at all";
      outcome = error_of_unanswered(communicator, waiter, dies);
    }
    EXPECT_FALSE(outcome.ok());
    if (outcome.ok()) return {};
    EXPECT_EQ(outcome.error().code, ExitCode::communication);
    EXPECT_NE(outcome.error().message.find("lost rank 3"), std::string::npos) << outcome.error().message;
    expect_unusable(communicator, 0);
    return outcome;
  }
  const int other = 1 - rank;
  for (std::int64_t round = 0; round < rounds; ++round) {
    std::vector<std::int64_t> mine(1, round), theirs(1);
    HF_TRY(const auto receiving, communicator.receive(writable_bytes_of_values(theirs), other, 82));
    HF_TRY(const auto sending, communicator.send(bytes_of_values(mine), other, 82));
    HF_TRY_VOID(waiter.wait(communicator, receiving, "the others' messages", other));
    HF_TRY_VOID(waiter.wait(communicator, sending, "the others' messages", other));
    EXPECT_EQ(theirs, mine);
    HF_EXPECT_OK(communicator.check_peers_among(others));
    waiter.env().sleep_us(1'000);
  }
  if (rank == 1) {
    HF_TRY(const auto telling, communicator.send(bytes_of_values(go), 0, 85));
    HF_TRY_VOID(waiter.wait(communicator, telling, "the end of the rounds", 0));
  } else {
    HF_TRY(const auto hearing, communicator.receive(writable_bytes_of_values(go), 1, 85));
    HF_TRY_VOID(waiter.wait(communicator, hearing, "the end of the rounds", 1));
    HF_TRY(const auto telling, communicator.send(bytes_of_values(go), misses, 81));
    HF_TRY_VOID(waiter.wait(communicator, telling, "the word to go on", misses));
  }
  Result<void> outcome = error_of_unanswered(communicator, waiter, other);
  expect_unusable(communicator, other);
  return outcome;
}

// Three ranks or more, all alive, of which the first gives up; the others wait for each other. Returns their error.
inline Result<void> check_revocation(Communicator& communicator, const Waiter& waiter) {
  const int rank = communicator.rank();
  HF_TRY_VOID(barrier(communicator, waiter));
  if (rank == 0) {
    std::vector<std::int64_t> words(1, 5);
    HF_TRY_VOID(outcome_of(communicator.receive(writable_bytes_of_values(words), 1, 84)));
    communicator.abandon();
    expect_unusable(communicator, 1);
    EXPECT_EQ(words, std::vector<std::int64_t>(1, 5));
    return fail(ExitCode::communication, "it gave up");
  }
  const int other = rank == 1 ? 2 : 1;
  Result<void> outcome = error_of_unanswered(communicator, waiter, other);
  expect_unusable(communicator, other);
  return outcome;
}

}  // namespace holdfast::test
