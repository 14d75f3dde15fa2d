// Collectives for small control data, built on send/receive with binomial trees. Integer and byte operations
// only. Every rank calls the same function in the same order. They wait by polling with short sleeps and give
// up after the timeout with an error that names the operation and the peer waited for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

// How to rest between two looks at something: not at all for some microseconds, then giving the processor
// away, then asleep for a sixteenth of the time that nothing moved, at most 1 ms. Ranks share processors with
// other ranks' kernels.
class Rest {
 public:
  Rest(Env& env, std::int64_t timeout_ms);
  void moved();  // something happened: starts over
  bool rest();   // false: nothing moved for timeout_ms

 private:
  Env* env_;
  std::int64_t timeout_ns_;
  std::int64_t last_move_ns_;
};

// How to wait for requests: tests them, and rests in between.
class Waiter {
 public:
  Waiter(Env& env, std::int64_t timeout_ms) : env_(&env), timeout_ms_(timeout_ms) {}
  // Until test() of every request is true; after an error or a timeout the communicator is abandoned.
  // `peers`: of each request, for the sentence.
  Result<void> wait(Communicator& communicator, std::span<const Communicator::Request> requests,
                    const char* operation, std::span<const int> peers) const;
  Result<void> wait(Communicator& communicator, Communicator::Request request, const char* operation,
                    int peer) const;
  Env& env() const { return *env_; }
  std::int64_t timeout_ms() const { return timeout_ms_; }
  // For waits in which a peer is known to work alone for longer.
  Waiter with_timeout(std::int64_t timeout_ms) const { return {*env_, timeout_ms}; }

 private:
  Env* env_;
  std::int64_t timeout_ms_;
};

Result<void> barrier(Communicator& communicator, const Waiter& waiter);
// From rank 0 to all; everywhere of the same length.
Result<void> broadcast(Communicator& communicator, const Waiter& waiter, std::span<std::byte> bytes);
// Element-wise sum of signed 64-bit words (modulo 2^64), the same result on every rank.
Result<void> all_reduce_sum(Communicator& communicator, const Waiter& waiter, std::span<std::int64_t> words);
// `mine` from every rank, in rank order; all of the same length. `all` holds size() * mine.size() bytes.
Result<void> all_gather(Communicator& communicator, const Waiter& waiter, std::span<const std::byte> mine,
                        std::span<std::byte> all);
// Texts of any length from every rank.
Result<std::vector<std::string>> all_gather_text(Communicator& communicator, const Waiter& waiter,
                                                 const std::string& mine);

}  // namespace holdfast
