// Collectives for small control data, built on send/receive with binomial trees. They use integer and byte
// operations only. Every rank calls the same function in the same order. They wait by polling with short
// sleeps and give up after the timeout with an error that names the operation and the peer waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/core/result.h"
#include "runtime/core/wait_listener.h"
#include "runtime/os/env.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::parallel {

class Waiter;

// PollBackoff: pauses between two polls of something that peers do. It does not pause for the first
// microseconds, then yields the processor, then sleeps for a sixteenth of the time since the last progress,
// at most 1 ms. Ranks share processors with other ranks' kernels. The listener is notified from the first
// sleep on.
class PollBackoff {
 public:
  PollBackoff(Env& env, std::int64_t timeout_ms, WaitListener* listener = nullptr);
  explicit PollBackoff(const Waiter& waiter);
  ~PollBackoff() { notify_resume(); }
  PollBackoff(const PollBackoff&) = delete;
  PollBackoff& operator=(const PollBackoff&) = delete;
  void reset();  // starts over: there was progress, or this rank's own device is at work
  // Returns false when there was no progress for timeout_ms. `awaited` returns what is waited for (Awaited);
  // it is called only where there is a listener.
  template <typename WhatFor>
  bool pause(const WhatFor& awaited) {
    const std::int64_t now_ns = env_->monotonic_ns();
    if (listener_ != nullptr && now_ns - last_move_ns_ >= quiet_ns) {
      reported_ = true;
      listener_->on_wait(last_move_ns_, now_ns, awaited());
    }
    return pause_at(now_ns);
  }
  bool pause() {
    return pause([] { return Awaited{}; });
  }

 private:
  static constexpr std::int64_t quiet_ns = 200'000;  // no sleep before this time without progress
  bool pause_at(std::int64_t now_ns);
  void notify_resume() {
    if (std::exchange(reported_, false)) listener_->on_resume();
  }

  Env* env_;
  WaitListener* listener_;
  std::int64_t timeout_ns_;
  std::int64_t last_move_ns_;
  bool reported_ = false;
};

// Waiter: waits for requests by testing them, and pauses in between (PollBackoff).
class Waiter {
 public:
  // `listener` is notified of waits; null: there is none. It outlives all copies.
  Waiter(Env& env, std::int64_t timeout_ms, WaitListener* listener = nullptr)
      : env_(&env), timeout_ms_(timeout_ms), listener_(listener) {}
  // Returns when test() of every request is true; after an error or a timeout the communicator is abandoned.
  // `peers`: the peer of each request, for the error message. `number`: the number of the collective that the
  // requests belong to, for the listener.
  Result<void> wait(Communicator& communicator, std::span<const Communicator::Request> requests,
                    const char* operation, std::span<const int> peers, std::uint32_t number = 0) const;
  Result<void> wait(Communicator& communicator, Communicator::Request request, const char* operation,
                    int peer, std::uint32_t number = 0) const;
  Env& env() const { return *env_; }
  std::int64_t timeout_ms() const { return timeout_ms_; }
  WaitListener* listener() const { return listener_; }
  SpanRecorder* spans() const { return spans_; }  // null: none
  // Advances other communication of this rank, without waiting. Returns whether there was progress.
  using Background = std::function<Result<bool>()>;
  // Returns a copy with another timeout, for waits in which a peer is known to work alone for longer.
  Waiter with_timeout(std::int64_t timeout_ms) const {
    Waiter other = *this;
    other.timeout_ms_ = timeout_ms;
    return other;
  }
  // Returns a copy whose collectives record their spans in `spans` while that is the flight ring; `spans`
  // outlives all copies.
  Waiter with_flight(SpanRecorder& spans) const {
    Waiter other = *this;
    other.spans_ = &spans;
    return other;
  }
  // Returns a copy whose wait() calls `background` between its polls, on the waiting thread: a peer may be able to go on
  // only with that. `background` outlives all copies.
  Waiter with_background(const Background& background) const {
    Waiter other = *this;
    other.background_ = &background;
    return other;
  }

 private:
  Env* env_;
  std::int64_t timeout_ms_;
  WaitListener* listener_;
  SpanRecorder* spans_ = nullptr;
  const Background* background_ = nullptr;  // null: none
};

Result<void> barrier(Communicator& communicator, const Waiter& waiter);
// Broadcasts `bytes` from rank 0 to all ranks; the length is the same on every rank.
Result<void> broadcast(Communicator& communicator, const Waiter& waiter, std::span<std::byte> bytes);
// Sums signed 64-bit words element-wise (modulo 2^64), with the same result on every rank.
Result<void> all_reduce_sum(Communicator& communicator, const Waiter& waiter, std::span<std::int64_t> words);
// Gathers `mine` from every rank, in rank order; the length is the same on every rank. `all` holds size() *
// mine.size() bytes.
Result<void> all_gather(Communicator& communicator, const Waiter& waiter, std::span<const std::byte> mine,
                        std::span<std::byte> all);
// Gathers `mine` on rank 0, likewise; on other ranks `all` is memory for what passes through them.
Result<void> gather_on_first(Communicator& communicator, const Waiter& waiter,
                             std::span<const std::byte> mine, std::span<std::byte> all);
// Gathers texts of any length from every rank, in rank order.
Result<std::vector<std::string>> all_gather_text(Communicator& communicator, const Waiter& waiter,
                                                 const std::string& mine);

}  // namespace holdfast::parallel
