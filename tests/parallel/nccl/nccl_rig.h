// Ranks as threads, each with its double of NCCL, a session and an exchange over it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "nccl_double.h"
#include "parallel/local/local_communicator.h"
#include "parallel/nccl/nccl_session.h"
#include "tests/parallel/communicator_contract.h"

namespace holdfast::test {

// The death of a process in a test: what it said.
class Deaths {
 public:
  std::function<void(const std::string&)> die() {
    return [this](const std::string& sentence) {
      const std::lock_guard guard(mutex_);
      sentences_.push_back(sentence);
    };
  }
  std::vector<std::string> sentences() {
    const std::lock_guard guard(mutex_);
    return sentences_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> sentences_;
};

// What one rank has; destroyed in the order session, double.
struct NcclRank {
  NcclRank(NcclWorld& world, Communicator& group, NcclOptions options, int version = 22809)
      : control(&group), library(world, version) {
    if (!options.die) options.die = deaths.die();
    session = std::make_unique<NcclSession>(library, posix_env(), options);
  }

  Result<void> connect(const std::string& name = "data") {
    HF_TRY(transport, session->connect(*control, name));
    return {};
  }
  // Ends the session: everything is given back, and nobody died.
  void expect_clean_end() {
    session.reset();
    EXPECT_EQ(library.live_handles(), 0);
    EXPECT_THAT(deaths.sentences(), testing::IsEmpty());
  }

  Communicator* control;
  Deaths deaths;
  NcclDouble library;
  std::unique_ptr<NcclSession> session;
  std::unique_ptr<Transport> transport;
};

inline NcclOptions quick_options() {
  return {.device = 0, .epoch = 3, .connect_timeout_ms = 20'000, .abort_timeout_ms = 20'000, .die = {}};
}

// body(rank) on every rank of a world; no rule of NCCL is broken.
inline void run_nccl_ranks(int size, const std::function<Result<void>(NcclRank&)>& body,
                           const NcclOptions& options = quick_options(), int version = 22809) {
  NcclWorld world;
  HF_EXPECT_OK(run_local_ranks(size, [&](Communicator& control) -> Result<void> {
    NcclRank rank(world, control, options, version);
    return body(rank);
  }));
  EXPECT_THAT(world.violations(), testing::IsEmpty());
}

// One word to and one from every other rank, under a deadline.
inline Result<void> exchange_words(Transport& transport, std::int64_t timeout_ms = 20'000) {
  const int rank = transport.rank(), size = transport.size();
  std::vector<std::int64_t> mine(static_cast<std::size_t>(size), rank), theirs(mine);
  std::vector<Transport::Incoming> incoming;
  std::vector<Transport::Outgoing> outgoing;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto at = static_cast<std::size_t>(peer);
    incoming.push_back({.target = std::as_writable_bytes(std::span(&theirs[at], 1)), .peer = peer});
    outgoing.push_back({.source = std::as_bytes(std::span(&mine[at], 1)), .peer = peer});
  }
  HF_TRY(const Transport::Number number, transport.open(incoming));
  HF_TRY_VOID(transport.send(number, outgoing));
  HF_TRY_VOID(finish_exchanges(transport, Waiter(posix_env(), timeout_ms), number + 1, "a test"));
  for (int peer = 0; peer < size; ++peer) EXPECT_EQ(theirs[static_cast<std::size_t>(peer)], peer);
  return {};
}

// A device's queue that gets on only when a test says so.
class HeldQueue final : public DeviceQueue {
 public:
  void record(DeviceEvent event) override {
    auto* const recorded = reinterpret_cast<EmulatedEvent*>(event);
    recorded_.push_back({recorded, recorded->record()});
  }
  void wait_for(DeviceEvent event) override {
    auto* const awaited = reinterpret_cast<EmulatedEvent*>(event);
    awaited_.push_back({awaited, awaited->last_recorded()});
  }
  // Has all that was put into it until now run.
  void run() {
    for (const Point& point : recorded_) point.event->reach(point.count);
    recorded_.clear();
  }
  // Returns whether what follows the exchanges may run.
  bool may_go_on() const {
    return std::ranges::all_of(awaited_,
                               [](const Point& point) { return point.event->has_reached(point.count); });
  }
  bool first_may_go_on() const { return awaited_.front().event->has_reached(awaited_.front().count); }
  std::size_t waits() const { return awaited_.size(); }

 private:
  struct Point {
    EmulatedEvent* event;
    std::uint64_t count;
  };
  std::vector<Point> recorded_, awaited_;
};

// One word to and one from the other rank of two, behind what is in the queue; what follows waits for it.
inline Result<Transport::Number> enqueue_words(Transport& transport, HeldQueue& queue,
                                               const std::int64_t& mine, std::int64_t& theirs) {
  const int peer = 1 - transport.rank();
  const Transport::Incoming incoming{.target = std::as_writable_bytes(std::span(&theirs, 1)), .peer = peer};
  const Transport::Outgoing outgoing{.source = std::as_bytes(std::span(&mine, 1)), .peer = peer};
  HF_TRY(const Transport::Number number, transport.open(std::span(&incoming, 1)));
  HF_TRY_VOID(transport.send_behind(number, std::span(&outgoing, 1), queue));
  while (true) {
    HF_TRY(const bool follows, transport.follow(number, queue));
    if (follows) return number;
    HF_TRY_VOID(outcome_of(transport.advance()));
  }
}

inline std::string message_of(const Result<void>& outcome) {
  return outcome.ok() ? "no error" : outcome.error().message;
}

}  // namespace holdfast::test
