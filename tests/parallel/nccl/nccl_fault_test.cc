// What happens when peers die, calls hang and codes come back: each ends within its deadline, with the
// sentence that says so, and either everything is given back or the process kills itself.
#include <fmt/core.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "nccl_rig.h"
#include "parallel/nccl/nccl_transport.h"
#include "tests/parallel/lane_reduction_harness.h"

namespace holdfast::test {
namespace {

using std::chrono::milliseconds;
using test::exchange_words;
using test::message_of;
using test::NcclRank;
using test::quick_options;
using test::run_nccl_ranks;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::int64_t deadline_ms = 150;
constexpr std::int64_t margin_ms = 10'000;  // a machine with other work; far below quick_options()

class Stopwatch {
 public:
  std::int64_t elapsed_ms() const { return (posix_env().monotonic_ns() - start_ns_) / 1'000'000; }

 private:
  std::int64_t start_ns_ = posix_env().monotonic_ns();
};

NcclOptions short_abort() {
  NcclOptions options = quick_options();
  options.abort_timeout_ms = deadline_ms;
  return options;
}

// Three ranks, of which the last dies after so many exchanges, with its last words; what the others' next
// ones end with.
void expect_death_noticed(int exchanges, const std::function<void(NcclRank&)>& last_words) {
  run_nccl_ranks(3, [&](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    for (int i = 0; i < exchanges; ++i) HF_TRY_VOID(exchange_words(*rank.transport));
    if (rank.control->rank() == 2) {
      last_words(rank);
      rank.library.die();
      return barrier(*rank.control, Waiter(posix_env(), margin_ms));  // its double stays until they noticed
    }
    const Stopwatch watch;
    Result<void> outcome;
    while (outcome.ok()) outcome = exchange_words(*rank.transport, deadline_ms);
    EXPECT_EQ(outcome.error().code, ExitCode::communication);
    EXPECT_THAT(message_of(outcome),
                HasSubstr(fmt::format("rank {} waited {} ms for another rank in a test (exchange ",
                                      rank.control->rank(), deadline_ms)));
    EXPECT_LT(watch.elapsed_ms(), margin_ms);
    EXPECT_TRUE(rank.transport->abandoned());
    EXPECT_THAT(message_of(exchange_words(*rank.transport)),
                AllOf(HasSubstr("have ended"), HasSubstr("gave up in exchange")));
    rank.expect_clean_end();
    return barrier(*rank.control, Waiter(posix_env(), margin_ms));
  });
}

TEST(NcclFault, APeerDiesBeforeItsFirstOperation) {
  expect_death_noticed(0, [](NcclRank&) {});
}

TEST(NcclFault, APeerDiesInAnOperation) {
  std::int64_t mine = 2, theirs = 0;  // outlive the group, which stays on the stream of the dead
  expect_death_noticed(1, [&](NcclRank& rank) {
    const Transport::Incoming incoming{.target = std::as_writable_bytes(std::span(&theirs, 1)), .peer = 0};
    const Transport::Outgoing outgoing{.source = std::as_bytes(std::span(&mine, 1)), .peer = 0};
    const Result<Transport::Number> number = rank.transport->open(std::span(&incoming, 1));
    ASSERT_TRUE(number.ok());
    EXPECT_TRUE(rank.transport->send(*number, std::span(&outgoing, 1)).ok());
  });
}

TEST(NcclFault, APeerDiesAfterAnOperation) {
  expect_death_noticed(3, [](NcclRank&) {});
}

// A peer on another host: NCCL's network code notices, long before the deadline.
TEST(NcclFault, AnAsynchronousErrorNamesExchangeAndPeers) {
  run_nccl_ranks(3, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    HF_TRY_VOID(exchange_words(*rank.transport));
    if (rank.control->rank() != 2) {
      const Stopwatch watch;
      rank.library.set_state(NcclResult::remote_error,
                             "socketProgress: Connection closed by remote peer node7");
      const Result<void> outcome = exchange_words(*rank.transport);
      EXPECT_THAT(
          message_of(outcome),
          AllOf(HasSubstr(fmt::format("NCCL failed on rank {} of holdfast-e3-data", rank.control->rank())),
                HasSubstr("exchange 2, sending to ranks"), HasSubstr("receiving from ranks"),
                HasSubstr("remote process exited"), HasSubstr("closed by remote peer node7")));
      EXPECT_LT(watch.elapsed_ms(), margin_ms);
      rank.expect_clean_end();
    }
    return barrier(*rank.control, Waiter(posix_env(), margin_ms));
  });
}

// One rank of three hangs in it, or all do because one is missing.
TEST(NcclFault, TheStartNeverCompletes) {
  NcclOptions options = quick_options();
  options.connect_timeout_ms = 1000;
  for (const bool all : {false, true}) {
    run_nccl_ranks(
        3,
        [all](NcclRank& rank) -> Result<void> {
          if (all || rank.control->rank() == 1) rank.library.never_start();
          const Stopwatch watch;
          EXPECT_THAT(
              message_of(rank.connect()),
              HasSubstr(all ? "NCCL did not connect the 3 ranks of holdfast-e3-data within 1000 ms"
                            : "waited 1000 ms for another rank in NCCL's first exchange (exchange 0)"));
          EXPECT_LT(watch.elapsed_ms(), margin_ms);
          EXPECT_TRUE(rank.session->ended());
          rank.expect_clean_end();
          return {};
        },
        options);
  }
}

// A rank that never comes: the host communicator, over which the id travels, notices.
TEST(NcclFault, APeerIsGoneBeforeTheStart) {
  run_nccl_ranks(3, [](NcclRank& rank) -> Result<void> {
    if (rank.control->rank() == 1) return {};
    EXPECT_THAT(message_of(rank.connect()), AnyOf(HasSubstr("lost rank"), HasSubstr("left its group")));
    rank.expect_clean_end();
    return {};
  });
}

// A rank that dies after it took the id and before it calls NCCL: the others do not wait for their deadline.
TEST(NcclFault, APeerDiesInTheStart) {
  run_nccl_ranks(3, [](NcclRank& rank) -> Result<void> {
    const Stopwatch watch;
    if (rank.control->rank() == 1) {
      const Waiter waiter(posix_env(), margin_ms);
      std::array<std::byte, sizeof(std::uint64_t) + sizeof(NcclUniqueId)> invitation;
      HF_TRY_VOID(agree_on_outcome(*rank.control, waiter, {}, "here"));
      HF_TRY_VOID(broadcast(*rank.control, waiter, invitation));
      HF_TRY_VOID(agree_on_outcome(*rank.control, waiter, {}, "here"));
      return agree_on_outcome(*rank.control, waiter, {}, "here");
    }
    EXPECT_THAT(message_of(rank.connect()), HasSubstr("lost rank"));
    EXPECT_LT(watch.elapsed_ms(), margin_ms);
    rank.expect_clean_end();
    return {};
  });
}

// One failing rank: all get its sentence, none keeps a communicator.
TEST(NcclFault, AFailedStartIsEverybodys) {
  struct Case {
    const char* call;
    int code;
    const char* sentence;
  };
  const Case cases[] = {
      {"ncclGetUniqueId", 2, "ncclGetUniqueId: unhandled system error"},
      {"ncclCommInitRankConfig", 2,
       "NCCL failed in holdfast-e3-data: ncclCommInitRankConfig: unhandled system"},
      {"ncclCommGetAsyncError", 3, "ncclCommGetAsyncError: result 3"},
      {"cudaSetDevice", 101, "CUDA failed on device 0: cudaSetDevice: CUDA error 101"},
      {"cudaStreamCreate", 2, "cudaStreamCreate: CUDA error 2"},
      {"cudaEventCreate", 2, "cudaEventCreate: CUDA error 2"},
      {"cudaMalloc", 2, "cudaMalloc: CUDA error 2"},
  };
  NcclOptions options = quick_options();
  options.connect_timeout_ms = 1000;  // what the others wait for a rank that failed in NCCL's start
  for (const Case& broken : cases) {
    SCOPED_TRACE(broken.call);
    run_nccl_ranks(
        2,
        [&broken](NcclRank& rank) -> Result<void> {
          if (rank.control->rank() == 0) rank.library.fail_next(broken.call, broken.code);
          EXPECT_THAT(message_of(rank.connect()), HasSubstr(broken.sentence));
          rank.expect_clean_end();
          return {};
        },
        options);
  }
}

TEST(NcclFault, AnotherEpochIsASentence) {
  test::NcclWorld world;
  HF_EXPECT_OK(run_local_ranks(3, [&world](Communicator& control) -> Result<void> {
    NcclOptions options = quick_options();
    options.epoch = control.rank() == 2 ? 4 : 5;
    NcclRank rank(world, control, options);
    EXPECT_THAT(message_of(rank.connect()),
                AllOf(HasSubstr("rank 2 ("), HasSubstr("it is in epoch 4, and rank 0 in epoch 5")));
    rank.expect_clean_end();
    return {};
  }));
}

// Every call of an exchange: the error names the call, and the communicators end.
TEST(NcclFault, AnErrorCodeNamesTheCall) {
  const std::pair<const char*, int> calls[] = {
      {"ncclGroupStart", 3},        {"ncclSend", 4},          {"ncclRecv", 5},        {"ncclGroupEnd", 2},
      {"ncclCommGetAsyncError", 3}, {"cudaEventRecord", 400}, {"cudaEventQuery", 400}};
  for (const auto& [call, code] : calls) {
    SCOPED_TRACE(call);
    run_nccl_ranks(2, [call = call, code = code](NcclRank& rank) -> Result<void> {
      HF_TRY_VOID(rank.connect());
      rank.library.fail_next(call, code);
      EXPECT_THAT(message_of(exchange_words(*rank.transport)),
                  AllOf(HasSubstr("of holdfast-e3-data (exchange 1, sending to rank "), HasSubstr(call)));
      rank.expect_clean_end();
      return barrier(*rank.control, Waiter(posix_env(), margin_ms));
    });
  }
}

TEST(NcclFault, AStickyErrorKillsTheProcess) {
  run_nccl_ranks(2, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    if (rank.control->rank() == 0) {
      const Stopwatch watch;
      rank.library.set_cuda_error(700);
      EXPECT_THAT(message_of(exchange_words(*rank.transport)),
                  AllOf(HasSubstr("kills itself"), HasSubstr("CUDA error 700"), HasSubstr("exchange 1")));
      EXPECT_THAT(rank.deaths.sentences(), SizeIs(1));
      EXPECT_LT(watch.elapsed_ms(), margin_ms);
    }
    return barrier(*rank.control, Waiter(posix_env(), margin_ms));
  });
}

// NCCL may only say "unhandled cuda error": what CUDA says decides.
TEST(NcclFault, AStickyErrorBehindNcclsKillsTheProcess) {
  for (const auto& [cuda_error, deaths] : {std::pair{719, 1}, std::pair{2, 0}}) {
    run_nccl_ranks(2, [cuda_error = cuda_error, deaths = deaths](NcclRank& rank) -> Result<void> {
      HF_TRY_VOID(rank.connect());
      rank.library.fail_next("ncclGroupEnd", static_cast<int>(NcclResult::unhandled_cuda_error));
      rank.library.fail_next("cudaGetLastError", cuda_error);
      EXPECT_THAT(message_of(exchange_words(*rank.transport)), HasSubstr("unhandled cuda error"));
      EXPECT_THAT(rank.deaths.sentences(), SizeIs(deaths));
      return barrier(*rank.control, Waiter(posix_env(), margin_ms));
    });
  }
}

TEST(NcclFault, AStickyErrorFoundAfterTheAbortKillsTheProcess) {
  run_nccl_ranks(2, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    rank.library.fail_next("cudaGetLastError", 214);
    EXPECT_THAT(message_of(rank.session->abort_all("rank 5 died")),
                AllOf(HasSubstr("CUDA error 214"), HasSubstr("were to end because rank 5 died")));
    EXPECT_THAT(rank.deaths.sentences(), SizeIs(1));
    return {};
  });
}

// What other ranks of the host may still use is there until the abort.
TEST(NcclFault, AStopEndsAllKernelsAndFreesNothing) {
  test::NcclWorld world;
  HF_EXPECT_OK(run_local_ranks(2, [&world](Communicator& control) -> Result<void> {
    NcclRank rank(world, control, quick_options());
    HF_TRY_VOID(rank.connect());
    HF_TRY_VOID(exchange_words(*rank.transport));
    const int handles = rank.library.live_handles();
    HF_TRY_VOID(rank.session->stop_all("rank 5 died"));
    HF_TRY_VOID(rank.session->stop_all("it is stopped"));
    EXPECT_EQ(rank.library.live_handles(), handles);
    EXPECT_THAT(message_of(exchange_words(*rank.transport)),
                HasSubstr("the NCCL communicators of this process have ended: rank 5 died"));
    HF_TRY_VOID(barrier(control, Waiter(posix_env(), margin_ms)));
    HF_TRY_VOID(rank.session->abort_all("all have stopped"));
    rank.expect_clean_end();
    return {};
  }));
  const std::vector<std::string> ends = world.ends();
  ASSERT_THAT(ends, SizeIs(4));
  for (std::size_t i = 0; i < ends.size(); ++i)
    EXPECT_THAT(ends[i], testing::StartsWith(i < 2 ? "revoke " : "abort ")) << i;
  EXPECT_THAT(world.violations(), IsEmpty());
}

// An NCCL from before 2.28.7, one that fails in it, and a communicator whose start is not complete.
TEST(NcclFault, WhatCannotBeStoppedIsAbortedAtOnce) {
  const std::pair<int, bool> cases[] = {{NcclLibrary::version_revoke - 1, false}, {22809, true}};
  for (const auto& [version, fails] : cases) {
    SCOPED_TRACE(version);
    run_nccl_ranks(
        2,
        [fails = fails](NcclRank& rank) -> Result<void> {
          HF_TRY_VOID(rank.connect());
          if (fails) rank.library.fail_next("ncclCommRevoke", 3);
          HF_EXPECT_OK(rank.session->stop_all("rank 5 died"));
          EXPECT_EQ(rank.library.live_handles(), 0);
          rank.expect_clean_end();
          return {};
        },
        quick_options(), version);
  }
  test::NcclWorld world;
  test::NcclDouble library(world);
  NcclCommunicators communicators(library, posix_env(), {});
  NcclLink& link = communicators.add({.name = "late", .rank = 0, .size = 2});
  ASSERT_EQ(library.comm_init(link.comm, {.ranks = 2, .name = link.name}), NcclResult::in_progress);
  HF_EXPECT_OK(communicators.stop_all("rank 1 never came"));
  EXPECT_THAT(world.ends(), testing::ElementsAre("abort 0 late"));
  EXPECT_EQ(library.live_handles(), 0);
  EXPECT_THAT(world.violations(), IsEmpty());
}

TEST(NcclFault, AStopThatBlocksPastTheDeadlineKillsTheProcess) {
  run_nccl_ranks(
      2,
      [](NcclRank& rank) -> Result<void> {
        HF_TRY_VOID(rank.connect());
        rank.library.block("ncclCommRevoke");
        EXPECT_THAT(
            message_of(rank.session->stop_all("rank 5 died")),
            AllOf(HasSubstr("kills itself"), HasSubstr("did not stop its communicators within 150 ms"),
                  HasSubstr("rank 5 died")));
        EXPECT_THAT(rank.deaths.sentences(), SizeIs(1));
        rank.library.release();
        return barrier(*rank.control, Waiter(posix_env(), margin_ms));
      },
      short_abort());
}

TEST(NcclFault, AnAbortThatBlocksPastTheDeadlineKillsTheProcess) {
  for (const int version : {NcclLibrary::version_min, 22809}) {
    run_nccl_ranks(
        2,
        [](NcclRank& rank) -> Result<void> {
          HF_TRY_VOID(rank.connect());
          rank.library.block("ncclCommAbort");
          const Stopwatch watch;
          EXPECT_THAT(message_of(rank.session->abort_all("rank 5 died")),
                      AllOf(HasSubstr("kills itself"), HasSubstr("within 150 ms"), HasSubstr("rank 5 died")));
          EXPECT_THAT(rank.deaths.sentences(), SizeIs(1));
          EXPECT_GE(watch.elapsed_ms(), deadline_ms);
          EXPECT_LT(watch.elapsed_ms(), margin_ms);
          EXPECT_EQ(rank.library.blocked(), 1);
          rank.library.release();
          return {};
        },
        short_abort(), version);
  }
}

TEST(NcclFault, AnAbortThatIsLateButInTimeKillsNobody) {
  run_nccl_ranks(2, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    rank.library.block("ncclCommAbort");
    std::thread later([&rank] {
      while (rank.library.blocked() == 0) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(50));
      rank.library.release();
    });
    HF_EXPECT_OK(rank.session->abort_all("rank 5 died"));
    later.join();
    rank.expect_clean_end();
    return {};
  });
}

TEST(NcclFault, AnAbortThatFailsKillsTheProcess) {
  run_nccl_ranks(2, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    rank.library.fail_next("ncclCommAbort", 3);
    EXPECT_THAT(message_of(rank.session->abort_all("rank 5 died")),
                HasSubstr("ncclCommAbort failed: result 3"));
    EXPECT_THAT(rank.deaths.sentences(), SizeIs(1));
    return {};
  });
}

// A kernel that hangs behind the abort: the stream is never quiet.
TEST(NcclFault, AStreamThatStaysBusyKillsTheProcess) {
  run_nccl_ranks(
      2,
      [](NcclRank& rank) -> Result<void> {
        HF_TRY_VOID(rank.connect());
        rank.library.hold_completions(true);
        EXPECT_THAT(message_of(rank.session->abort_all("rank 5 died")), HasSubstr("within 150 ms"));
        EXPECT_THAT(rank.deaths.sentences(), SizeIs(1));
        return {};
      },
      short_abort());
}

// The operation ends after the caller's deadline: the communicators end all the same, and it is given up
// once.
TEST(NcclFault, ALateCompletionIsTooLate) {
  run_nccl_ranks(2, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    rank.library.hold_completions(true);
    std::thread later([&rank] {
      std::this_thread::sleep_for(milliseconds(10 * deadline_ms));
      rank.library.hold_completions(false);
    });
    const Result<void> outcome = exchange_words(*rank.transport, deadline_ms);
    later.join();
    EXPECT_THAT(message_of(outcome), HasSubstr("waited 150 ms for rank"));
    EXPECT_EQ(rank.transport->oldest(), 1U) << "never finished";
    rank.expect_clean_end();
    return barrier(*rank.control, Waiter(posix_env(), margin_ms));
  });
}

TEST(NcclFault, SlowIsNoError) {
  run_nccl_ranks(3, [](NcclRank& rank) -> Result<void> {
    rank.library.slow_launch(20);
    rank.library.slow_groups(milliseconds(10 * rank.control->rank()));
    HF_TRY_VOID(rank.connect());
    for (int i = 0; i < 5; ++i) HF_TRY_VOID(exchange_words(*rank.transport, margin_ms));
    rank.expect_clean_end();
    return {};
  });
}

// Exchanges in the device's queue with a peer that dies in the first of them: the stop ends it, and then, as the device
// gets there, those behind it, of which it has computed nothing yet. With an NCCL that cannot stop, so does the abort.
TEST(NcclFault, AnEndReachesWhatWaitsOnTheDevice) {
  for (const int version : {22203, 22809}) {
    run_nccl_ranks(
        2,
        [](NcclRank& rank) -> Result<void> {
          HF_TRY_VOID(rank.connect());
          const std::int64_t mine = 1;
          std::array<std::int64_t, 3> theirs = {};
          test::HeldQueue queue;
          if (rank.control->rank() == 1) {
            rank.library.die();
            return barrier(*rank.control, Waiter(posix_env(), margin_ms));
          }
          Transport::Number first = 0;
          for (std::size_t i = 0; i < theirs.size(); ++i) {
            HF_TRY(const Transport::Number number,
                   test::enqueue_words(*rank.transport, queue, mine, theirs[i]));
            if (i == 0) {
              queue.run();
              first = number;
            }
          }
          std::thread device([&queue] {
            while (!queue.may_go_on()) {
              std::this_thread::sleep_for(milliseconds(10));
              if (queue.first_may_go_on()) queue.run();
            }
          });
          EXPECT_THAT(message_of(finish_exchanges(*rank.transport, Waiter(posix_env(), deadline_ms),
                                                  first + 1, "a test")),
                      HasSubstr("rank 0 waited 150 ms for rank 1 in a test (exchange "));
          device.join();
          EXPECT_EQ(theirs[0] + theirs[1] + theirs[2], 0);
          rank.expect_clean_end();
          return barrier(*rank.control, Waiter(posix_env(), margin_ms));
        },
        quick_options(), version);
  }
}

// The watchdog's verdict comes from another thread, while the owner polls.
TEST(NcclFault, AnAbortFromAnotherThreadEndsTheWait) {
  run_nccl_ranks(2, [](NcclRank& rank) -> Result<void> {
    HF_TRY_VOID(rank.connect());
    if (rank.control->rank() == 0) {
      std::thread watchdog([&rank] {
        std::this_thread::sleep_for(milliseconds(30));
        HF_EXPECT_OK(rank.session->abort_all("rank 1 hangs"));
      });
      const Stopwatch watch;
      EXPECT_THAT(message_of(exchange_words(*rank.transport)),
                  HasSubstr("the NCCL communicators of this process have ended: rank 1 hangs"));
      EXPECT_LT(watch.elapsed_ms(), margin_ms);
      watchdog.join();
      rank.expect_clean_end();
    }
    return barrier(*rank.control, Waiter(posix_env(), margin_ms));
  });
}

// Nobody else may call NCCL then, so nobody can help: the deadline does.
TEST(NcclFault, AnOwnerStuckInACallIsKilledFromOutside) {
  run_nccl_ranks(
      2,
      [](NcclRank& rank) -> Result<void> {
        HF_TRY_VOID(rank.connect());
        if (rank.control->rank() == 0) {
          rank.library.block("ncclGroupEnd");
          std::thread watchdog([&rank] {
            while (rank.library.blocked() == 0) std::this_thread::sleep_for(milliseconds(1));
            EXPECT_THAT(message_of(rank.session->abort_all("rank 0 hangs")), HasSubstr("within 150 ms"));
            EXPECT_THAT(rank.deaths.sentences(), SizeIs(1));
            rank.library.release();
          });
          EXPECT_FALSE(exchange_words(*rank.transport).ok());
          watchdog.join();
        }
        return barrier(*rank.control, Waiter(posix_env(), margin_ms));
      },
      short_abort());
}

// What production does: the sentence, then SIGKILL.
TEST(NcclFaultDeathTest, TheProcessIsKilledAfterItsSentence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        test::NcclWorld world;
        test::NcclDouble library(world);
        const auto alone = make_local_communicators(1);
        NcclSession session(library, posix_env(), {.abort_timeout_ms = 50});
        HF_CHECK(session.connect(*alone[0], "data").ok());
        library.block("cudaSetDevice");
        static_cast<void>(session.abort_all("rank 5 died"));
      },
      testing::KilledBySignal(SIGKILL), "kills itself.*within 50 ms.*because rank 5 died");
}

// A death in a lane reduction, and the next epoch: the survivors' sums have the bits they would have had.
TEST(NcclFault, TheNextEpochHasTheSameBits) {
  constexpr int lanes = 6;
  const Waiter impatient(posix_env(), deadline_ms), patient(posix_env(), margin_ms);
  test::NcclWorld world;
  auto survivors = make_local_communicators(2);
  HF_EXPECT_OK(run_local_ranks(3, [&](Communicator& control) -> Result<void> {
    NcclRank rank(world, control, quick_options());
    HF_TRY_VOID(rank.connect());
    if (control.rank() == 2) rank.library.die();
    {
      test::ReducingRank reducing(*rank.transport, impatient, {.lanes = lanes}, test::uneven_buckets());
      EXPECT_THAT(message_of(reducing.step(reducing.my_lanes(0))),
                  AnyOf(HasSubstr("of the lane reduction: bucket"), HasSubstr("have ended")));
    }
    if (control.rank() == 2) return barrier(control, patient);
    rank.expect_clean_end();

    NcclOptions next = quick_options();
    next.epoch = 4;
    NcclRank again(world, *survivors[static_cast<std::size_t>(control.rank())], next);
    HF_TRY_VOID(again.connect());
    HF_TRY_VOID(test::check_lane_reduction(*again.transport, patient, {.lanes = lanes}));
    again.expect_clean_end();
    return barrier(control, patient);
  }));
  EXPECT_THAT(world.violations(), IsEmpty());
}

}  // namespace
}  // namespace holdfast::test
