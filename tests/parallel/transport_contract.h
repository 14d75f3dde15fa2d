// What every Transport must do, for the tests of each implementation: all ranks of a group call the same
// check.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "parallel/comm/transport.h"

namespace holdfast::test {

// What `source` sends `target` in an exchange; empty for some pairs, and for some exchanges altogether.
inline std::vector<std::uint32_t> exchanged_words(Transport::Number number, int source, int target) {
  const auto mixed =
      static_cast<std::uint32_t>(number * 7919 + static_cast<std::uint64_t>(source * 101 + target * 13));
  const std::size_t length = number % 5 == 3 || mixed % 4 == 1 ? 0 : mixed % 1000 + 1;
  std::vector<std::uint32_t> words(length);
  for (std::size_t i = 0; i < length; ++i) words[i] = mixed * 2654435761U + static_cast<std::uint32_t>(i);
  return words;
}

// The words of one rank in one exchange.
struct ExchangedWords {
  ExchangedWords(Transport::Number number, int rank, int size) {
    for (int peer = 0; peer < size; ++peer) {
      sent.push_back(peer == rank ? std::vector<std::uint32_t>() : exchanged_words(number, rank, peer));
      expected.push_back(peer == rank ? std::vector<std::uint32_t>() : exchanged_words(number, peer, rank));
      received.emplace_back(expected.back().size());
    }
    for (int peer = 0; peer < size; ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      if (!sent[at].empty()) outgoing.push_back({.source = std::as_bytes(std::span(sent[at])), .peer = peer});
      if (received[at].empty()) continue;
      incoming.push_back({.target = std::as_writable_bytes(std::span(received[at])), .peer = peer});
    }
  }

  std::vector<std::vector<std::uint32_t>> sent, received, expected;  // by peer
  std::vector<Transport::Incoming> incoming;
  std::vector<Transport::Outgoing> outgoing;
};

// More exchanges than are open at once, several opened before any is sent, and sent in another order than
// opened on odd ranks: everything arrives where it belongs, and is there when the exchange says so.
inline Result<void> check_exchanges(Transport& transport, const Waiter& waiter, int rounds = 40,
                                    std::size_t together = 4) {
  const int rank = transport.rank(), size = transport.size();
  for (int round = 0; round < rounds; ++round) {
    std::vector<ExchangedWords> words;
    const Transport::Number first = transport.oldest();
    for (std::size_t i = 0; i < together; ++i) words.emplace_back(first + i, rank, size);
    for (std::size_t i = 0; i < together; ++i) {
      if (!transport.can_open()) return fail(ExitCode::data, "{} exchanges cannot be open at once", together);
      HF_TRY(const Transport::Number number, transport.open(words[i].incoming));
      EXPECT_EQ(number, first + i);
    }
    for (std::size_t i = 0; i < together; ++i) {
      const std::size_t next = rank % 2 == 0 ? i : together - 1 - i;
      HF_TRY_VOID(transport.send(first + next, words[next].outgoing));
      HF_TRY_VOID(outcome_of(transport.advance()));
    }
    for (std::size_t i = 0; i < together; ++i) {
      HF_TRY_VOID(finish_exchanges(transport, waiter, first + i + 1, "the test of exchanges"));
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        EXPECT_TRUE(transport.received(first + i, peer)) << "exchange " << first + i << " from " << peer;
      }
      EXPECT_EQ(words[i].received, words[i].expected) << "exchange " << first + i << " on rank " << rank;
    }
  }
  return {};
}

}  // namespace holdfast::test
