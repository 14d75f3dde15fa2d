// What a listener of waits hears: whom a rank waits for, and nothing where nobody waits.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "parallel/comm/collectives.h"
#include "parallel/local/local_communicator.h"
#include "runtime/core/wait_listener.h"
#include "tests/parallel/communicator_contract.h"

namespace holdfast::test {
namespace {

class Heard final : public WaitListener {
 public:
  void on_wait(std::int64_t since_ns, std::int64_t now_ns, const Awaited& awaited) override {
    EXPECT_LE(since_ns, now_ns);
    last = awaited;
    operation = awaited.operation;
    waiting = true;
    ++looks;
  }
  void on_resume() override {
    EXPECT_TRUE(waiting) << "only after it waited";
    waiting = false;
    ++ends;
  }
  Awaited last;
  std::string operation;
  bool waiting = false;
  std::atomic<int> looks = 0;
  int ends = 0;
};

TEST(WaitListener, HearsWhomACollectiveWaitsFor) {
  Heard heard;
  auto ends = make_local_communicators(2);
  std::thread late([&] {
    while (heard.looks < 3) std::this_thread::yield();
    const Waiter waiter(posix_env(), 60'000);
    std::array<std::int64_t, 1> word = {1};
    HF_EXPECT_OK(barrier(*ends[1], waiter));
    HF_EXPECT_OK(all_reduce_sum(*ends[1], waiter, word));
  });
  const Waiter waiter(posix_env(), 60'000, &heard);
  HF_EXPECT_OK(barrier(*ends[0], waiter.with_timeout(59'000)));
  EXPECT_EQ(heard.operation, "a barrier");
  EXPECT_EQ(heard.last.peer, 1);
  EXPECT_EQ(heard.last.number, 1u);
  EXPECT_FALSE(heard.waiting);
  EXPECT_GE(heard.ends, 1);
  std::array<std::int64_t, 1> word = {1};
  HF_EXPECT_OK(all_reduce_sum(*ends[0], waiter, word));
  EXPECT_EQ(word[0], 2);
  EXPECT_FALSE(heard.waiting);
  late.join();
}

TEST(WaitListener, HearsNothingOfAShortRest) {
  Heard heard;
  PollBackoff backoff(posix_env(), 60'000, &heard);
  for (int i = 0; i < 100; ++i) {
    backoff.reset();
    EXPECT_TRUE(backoff.pause());
  }
  backoff.reset();
  EXPECT_EQ(heard.ends, heard.looks.load()) << "at most where this thread lost its processor";
}

TEST(WaitListener, HearsTheEndOfARestThatIsGivenUp) {
  Heard heard;
  {
    PollBackoff backoff(posix_env(), 20, &heard);
    while (backoff.pause([] { return Awaited{.operation = "a test", .peer = 3, .number = 7}; })) {
    }
    EXPECT_TRUE(heard.waiting);
    EXPECT_EQ(heard.last.peer, 3);
  }
  EXPECT_FALSE(heard.waiting);
  EXPECT_EQ(heard.ends, 1);
}

// Equal numbers on all ranks: by them flight records are compared.
TEST(WaitListener, CollectivesLeaveTheirNumbersInTheFlight) {
  constexpr int ranks = 3;
  std::array<std::array<Span, 8>, ranks> rings;
  HF_EXPECT_OK(run_local_ranks(ranks, [&](Communicator& communicator) -> Result<void> {
    auto& ring = rings[static_cast<std::size_t>(communicator.rank())];
    std::atomic<std::uint64_t> opened = 0;
    SpanRecorder recorder(posix_env());
    recorder.keep_flight(ring, opened, true);
    const Waiter waiter = Waiter(posix_env(), 60'000).with_flight(recorder);
    std::array<std::int64_t, 1> word = {1};
    HF_TRY_VOID(barrier(communicator, waiter));
    HF_TRY_VOID(all_reduce_sum(communicator, waiter, word));
    HF_TRY_VOID(outcome_of(all_gather_text(communicator, waiter, "word")));
    EXPECT_EQ(opened, 4u);
    return {};
  }));
  for (const auto& ring : rings) {
    constexpr std::array kinds = {SpanKind::barrier, SpanKind::all_reduce, SpanKind::all_gather,
                                  SpanKind::all_gather};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      EXPECT_EQ(ring[i].kind, kinds[i]);
      EXPECT_EQ(ring[i].bucket, static_cast<std::int32_t>(i + 1));
      EXPECT_GT(ring[i].end.time_ns, 0);
      EXPECT_GE(ring[i].peer, 0);
    }
  }
}

}  // namespace
}  // namespace holdfast::test
