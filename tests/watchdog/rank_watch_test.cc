#include "watchdog/rank_watch.h"

#include <gtest/gtest.h>

#include <csignal>

#include "runtime/os/processes.h"
#include "tests/support/blind_processes.h"
#include "tests/support/temporary_directory.h"
#include "tests/watchdog/milliseconds.h"
#include "tests/watchdog/watch_env.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t soon_ms = 10'000;

class RankWatchTest : public testing::Test {
 protected:
  ~RankWatchTest() override { end_guard(); }
  std::unique_ptr<RankWatch> begin(int rank = 0) { return begin(rank, env); }
  std::unique_ptr<RankWatch> begin(int rank, Env& own) {
    return RankWatch::begin(own, {.board = env.board,
                                  .slots = 4,
                                  .launched_rank = rank,
                                  .guard = guard,
                                  .limits = {.factor = 3, .floor_ns = 50 * ms, .ceiling_ns = 1'000 * ms}})
        .value();
  }
  SlotView view(std::uint32_t slot = 0) { return read_slot(Board::open(env, env.board).value()->slot(slot)); }
  BoardHeader& header() {
    if (board == nullptr) board = Board::open(env, env.board).value();
    return board->header();
  }
  std::unique_ptr<Process> guard_process() {
    const std::int64_t id = header().guard_process;
    return id > 0 ? env.processes().find(id).value() : nullptr;
  }
  void end_guard() {
    if (guard.empty()) return;
    const std::unique_ptr<Process> process = guard_process();
    if (process == nullptr) return;
    EXPECT_TRUE(process->signal(SIGKILL).ok());
    EXPECT_TRUE(process->wait_ended(soon_ms));
  }
  // The training thread goes on for so long, in phases that are short.
  void train(RankWatch& watch, std::int64_t duration_ms, std::uint64_t step = 1) {
    for (std::int64_t passed_ms = 0; passed_ms < duration_ms; passed_ms += 10) {
      env.now_ns += 10 * ms;
      watch.enter(Phase::step, step);
    }
  }

  WatchEnv env;
  std::vector<std::string> guard;
  std::unique_ptr<Board> board;
};

TEST_F(RankWatchTest, SaysWhatItIsAt) {
  const auto watch = begin(6);
  EXPECT_EQ(view().launched_rank, 6);
  EXPECT_EQ(view().process, getpid());
  EXPECT_TRUE(lives(env, view()));
  EXPECT_EQ(view().phase, Phase::start_up);
  EXPECT_EQ(view().begun_ns, env.now_ns);
  EXPECT_EQ(view().deadline_ns, 1'000 * ms);
  env.now_ns += 7 * ms;
  watch->enter(Phase::step, 12);
  EXPECT_EQ(view().phase, Phase::step);
  EXPECT_EQ(view().step, 12u);
  EXPECT_EQ(view().begun_ns, env.now_ns);
  EXPECT_EQ(view().heartbeat_ns, env.now_ns);
  EXPECT_EQ(watch->board().slot(0).version % 2, 0u);
}

TEST_F(RankWatchTest, LearnsHowLongPhasesTake) {
  const auto watch = begin();
  watch->enter(Phase::step, 1);
  EXPECT_EQ(view().kind, WorkKind::first);
  for (std::uint64_t step = 2; step <= 7; ++step) {
    EXPECT_EQ(view().deadline_ns, 600 * ms) << "twelve floors";
    EXPECT_EQ(view().ceiling_ns, 1'000 * ms);
    EXPECT_EQ(view().median_ns, 0);
    env.now_ns += 40 * ms;
    watch->enter(Phase::step, step);
    EXPECT_EQ(view().kind, WorkKind::usual);
  }
  EXPECT_EQ(view().deadline_ns, 120 * ms);
  EXPECT_EQ(view().ceiling_ns, 1'000 * ms);
  EXPECT_EQ(view().median_ns, 40 * ms);
  watch->begin_epoch({.number = 3, .work_times = 2.0, .members = 5});
  EXPECT_EQ(view().epoch, 3u);
  EXPECT_EQ(view().members, 5u);
  watch->enter(Phase::step, 8);
  EXPECT_EQ(view().kind, WorkKind::first) << "its pages may be new";
  EXPECT_EQ(view().deadline_ns, 960 * ms) << "four times the usual";
  watch->enter(Phase::step, 9);
  EXPECT_EQ(view().kind, WorkKind::usual);
  EXPECT_EQ(view().deadline_ns, 240 * ms);
}

TEST_F(RankWatchTest, AStepBesideASaveIsAnother) {
  const auto watch = begin();
  for (std::uint64_t step = 1; step <= 7; ++step) {
    watch->enter(Phase::step, step);
    if (step == 1) {
      watch->beside_save();
      EXPECT_EQ(view().kind, WorkKind::first) << "it is slower for that";
    }
    env.now_ns += 40 * ms;
  }
  watch->enter(Phase::step, 8);
  const std::int64_t begun_ns = env.now_ns;
  EXPECT_EQ(view().deadline_ns, 120 * ms);
  env.now_ns += 30 * ms;
  watch->beside_save();
  EXPECT_EQ(view().kind, WorkKind::beside_save);
  EXPECT_EQ(view().deadline_ns, 240 * ms) << "twice the usual";
  EXPECT_EQ(view().begun_ns, begun_ns) << "from the same time on";
  for (std::uint64_t step = 9; step <= 13; ++step) {
    env.now_ns += 70 * ms;
    watch->enter(Phase::step, step);
    EXPECT_EQ(view().deadline_ns, 120 * ms) << "what that took says nothing of this";
    watch->beside_save();
  }
  EXPECT_EQ(view().median_ns, 70 * ms);
  EXPECT_EQ(view().deadline_ns, 210 * ms);
}

TEST_F(RankWatchTest, CountsForWhomItWaits) {
  const auto watch = begin();
  const auto wait = [&](int peer, std::int64_t waited_ms) {
    const std::int64_t since_ns = env.now_ns;
    env.now_ns += waited_ms * ms;
    watch->on_wait(since_ns, env.now_ns, {.operation = "a vote", .peer = peer});
    watch->on_resume();
  };
  wait(3, 10);
  watch->count_waits(true);
  wait(3, 10);
  wait(5, 30);
  wait(-1, 50);
  const std::int64_t since_ns = env.now_ns;  // of one wait, for one and then for the other
  env.now_ns += 10 * ms;
  watch->on_wait(since_ns, env.now_ns, {.operation = "a sum", .peer = 3});
  env.now_ns += 5 * ms;
  watch->on_wait(since_ns, env.now_ns, {.operation = "a sum", .peer = 5});
  watch->on_resume();
  const PeerWaits waits = watch->take_waits();
  EXPECT_EQ(waits[0].peer, 5);
  EXPECT_FLOAT_EQ(waits[0].waited_ms, 35.0F);
  EXPECT_EQ(waits[1].peer, 3);
  EXPECT_FLOAT_EQ(waits[1].waited_ms, 20.0F);
  EXPECT_EQ(waits[2].peer, -1);
  for (int peer = 0; peer < 100; ++peer) wait(peer, peer + 1);
  EXPECT_EQ(watch->take_waits()[7].peer, 92) << "of more peers than are counted the longest";
  EXPECT_EQ(watch->take_waits()[0].peer, -1);
}

TEST_F(RankWatchTest, APhaseMayHaveLimitsOfItsOwn) {
  const auto watch = begin();
  watch->enter(Phase::recovery, 4, 250, 400);
  EXPECT_EQ(view().deadline_ns, 250 * ms);
  EXPECT_EQ(view().ceiling_ns, 400 * ms);
  watch->mark();
  EXPECT_EQ(view().ceiling_ns, 400 * ms);
  watch->enter(Phase::recovery, 4, 250, 200);
  EXPECT_EQ(view().ceiling_ns, 250 * ms) << "it is never sooner than the deadline";
  watch->enter(Phase::step, 5);
  EXPECT_EQ(view().ceiling_ns, 1'000 * ms);
}

TEST_F(RankWatchTest, SaysThatItWaitsForStorage) {
  const auto watch = begin();
  watch->enter(Phase::recovery, 4, 250);
  EXPECT_EQ(view().ceiling_ns, 250 * ms);
  env.now_ns += 10 * ms;
  watch->waits_for_storage("training data");
  EXPECT_EQ(view().storage_begun_ns, env.now_ns);
  EXPECT_EQ(view().storage_what, "training data");
  EXPECT_EQ(view().ceiling_ns, 1'000 * ms) << "whatever limit the phase has";
  env.now_ns += 90 * ms;
  watch->storage_answers();
  EXPECT_EQ(view().storage_begun_ns, 0);
  EXPECT_EQ(view().heartbeat_ns, env.now_ns) << "its time counts from here";
  EXPECT_EQ(view().ceiling_ns, 250 * ms);
  watch->waits_for_storage("training data");
  watch->enter(Phase::step, 4);
  EXPECT_EQ(view().storage_begun_ns, 0) << "a phase ends it";
}

TEST_F(RankWatchTest, CountsWhatItMoves) {
  const auto watch = begin();
  watch->moved(100);
  watch->moved(20);
  watch->device_ops() = 7;
  EXPECT_EQ(view().moved_bytes, 120u);
  EXPECT_EQ(view().device_ops, 7u);
  watch->drains(8, 4'000);
  EXPECT_GT(view().moved_bytes, 120u) << "a drain is a sign of life, too";
}

TEST_F(RankWatchTest, APartCountsAnew) {
  const auto watch = begin();
  watch->enter(Phase::evaluation, 9);
  for (int batch = 0; batch < 7; ++batch) {
    EXPECT_EQ(view().kind, batch == 0 ? WorkKind::first : WorkKind::usual);
    env.now_ns += 30 * ms;
    watch->mark();
    EXPECT_EQ(view().begun_ns, env.now_ns);
    EXPECT_EQ(view().step, 9u);
  }
  EXPECT_EQ(view().deadline_ns, 90 * ms);
}

TEST_F(RankWatchTest, ALimitOfItsOwnStays) {
  const auto watch = begin();
  watch->enter(Phase::recovery, 4, 250);
  EXPECT_EQ(view().deadline_ns, 250 * ms);
  env.now_ns += 10 * ms;
  watch->mark();
  EXPECT_EQ(view().deadline_ns, 250 * ms);
  EXPECT_EQ(view().ceiling_ns, 250 * ms) << "also for one that shows signs of life";
  watch->enter(Phase::recovery, 4);
  EXPECT_EQ(view().deadline_ns, 1'000 * ms);
}

TEST_F(RankWatchTest, ASpareMayWaitButNotBeSilent) {
  const auto watch = begin();
  for (int each = 0; each < 9; ++each) {
    watch->enter(Phase::spare, 0);
    env.now_ns += 100'000 * ms;
  }
  watch->on_wait(env.now_ns, env.now_ns, {.operation = "the end"});
  EXPECT_EQ(view().deadline_ns, 50 * ms);
  EXPECT_EQ(view().median_ns, 0);
  EXPECT_EQ(view().heartbeat_ns, env.now_ns);
}

TEST_F(RankWatchTest, SaysWhatItWaitsForAndThatItLooks) {
  const auto watch = begin();
  watch->enter(Phase::step, 3);
  const std::int64_t since_ns = env.now_ns;
  const Awaited awaited = {.operation = "an all-reduce", .peer = 2, .number = 77};
  watch->on_wait(since_ns, env.now_ns, awaited);
  env.now_ns += 5 * ms;
  watch->on_wait(since_ns, env.now_ns, awaited);
  EXPECT_EQ(view().wait_begun_ns, since_ns);
  EXPECT_EQ(view().heartbeat_ns, env.now_ns);
  EXPECT_EQ(view().wait_peer, 2);
  EXPECT_EQ(view().wait_number, 77u);
  EXPECT_EQ(view().wait_operation, "an all-reduce");
  watch->on_wait(since_ns, env.now_ns, {.operation = "a vote", .peer = -1, .number = 78});
  EXPECT_EQ(view().wait_operation, "a vote");
  env.now_ns += 5 * ms;
  watch->on_resume();
  EXPECT_EQ(view().wait_begun_ns, 0);
  EXPECT_EQ(view().heartbeat_ns, env.now_ns);
  watch->on_wait(env.now_ns, env.now_ns, awaited);
  watch->enter(Phase::save, 3);
  EXPECT_EQ(view().wait_begun_ns, 0) << "a phase ends what was waited for";
  EXPECT_EQ(view().floor_ns, 50 * ms);
}

TEST_F(RankWatchTest, SaysWhatDrains) {
  const auto watch = begin();
  watch->drains(8, 100);
  const std::int64_t begun_ns = env.now_ns;
  env.now_ns += 5 * ms;
  watch->drains(8, 200);
  EXPECT_EQ(view().drain_begun_ns, begun_ns);
  EXPECT_EQ(view().drain_step, 8u);
  EXPECT_EQ(view().drain_bytes, 200u);
  watch->drained();
  EXPECT_EQ(view().drain_begun_ns, 0);
}

TEST_F(RankWatchTest, LeavesItsSlot) {
  auto watch = begin(1);
  EXPECT_FALSE(view().left);
  watch.reset();
  EXPECT_TRUE(view().left);
  watch = begin(2);
  EXPECT_FALSE(view().left);
  EXPECT_EQ(view().launched_rank, 2);
}

TEST_F(RankWatchTest, TakesAHangOnce) {
  const auto early = begin(0);
  write_notice(early->board().header().hangs, 1, "rank 1 hangs");
  const auto late = begin(1);
  EXPECT_EQ(early->take_hang(), "rank 1 hangs");
  EXPECT_EQ(early->take_hang(), "");
  EXPECT_EQ(late->take_hang(), "") << "from before its time";
  write_notice(early->board().header().hangs, 2, "rank 2 hangs");
  EXPECT_EQ(late->take_hang(), "rank 2 hangs");
}

TEST_F(RankWatchTest, HearsOfALostSpareOnce) {
  const auto watch = begin(0);
  EXPECT_EQ(watch->take_lost_spares(), "");
  write_notice(watch->board().header().lost_spares, 3, "rank 3 (host a)");
  EXPECT_EQ(watch->take_lost_spares(), "rank 3 (host a)");
  EXPECT_EQ(watch->take_lost_spares(), "");
  EXPECT_EQ(watch->take_hang(), "");
}

TEST_F(RankWatchTest, HearsOfAllThatWasSaidMeanwhile) {
  const auto watch = begin(0);
  BoardHeader& header = watch->board().header();
  write_notice(header.lost_spares, 3, "rank 3 (host a)");
  write_notice(header.lost_spares, 4, "rank 4 (host b), rank 5 (host b)");
  EXPECT_EQ(watch->take_lost_spares(), "rank 3 (host a), rank 4 (host b), rank 5 (host b)");
  write_notice(header.hangs, 1, "rank 1 hangs");
  write_notice(header.hangs, 2, "rank 2 hangs");
  EXPECT_EQ(watch->take_hang(), "rank 1 hangs; rank 2 hangs");
  EXPECT_EQ(watch->take_hang(), "");
}

TEST_F(RankWatchTest, HearsWhyAnotherRankHasLeft) {
  const auto one = begin(0), other = begin(1);
  EXPECT_EQ(one->take_why_left(), "");
  other->leaves("gpu-failed");
  EXPECT_EQ(begin(2)->take_why_left(), "") << "from before its time";
  EXPECT_EQ(one->take_why_left(), "gpu-failed");
  EXPECT_EQ(one->take_why_left(), "");
}

TEST_F(RankWatchTest, HearsInWhichKernelsTheOthersHaveEnded) {
  const auto watch = begin(0), crashed = begin(1), killed = begin(2), unjudged = begin(3);
  const KernelName name = {.op = "add", .implementation = "mine", .digest = "01", .library = "mine.so"};
  for (RankWatch* each : {crashed.get(), killed.get(), unjudged.get()}) {
    each->enter(Phase::step, 9);
    each->runs_plugin(line_of(name));
  }
  EXPECT_EQ(view(1).plugin, name);
  board = Board::open(env, env.board).value();
  board->slot(1).kernel_end = static_cast<std::uint32_t>(KernelEnd::crash);
  board->slot(2).kernel_end = static_cast<std::uint32_t>(KernelEnd::other);
  const std::vector<int> lost = {1, 2, 7};
  const KernelFault fault = {
      .kernel = name, .how = KernelEnd::crash, .rank = 1, .host = env.host_name(), .step = 8};
  EXPECT_EQ(watch->kernel_faults_of(lost, /*patience_ms=*/10'000), KernelFaults{fault});
  EXPECT_TRUE(watch->kernel_faults_of(std::vector{3}, /*patience_ms=*/20).empty()) << "nobody says anything";
  crashed->runs_plugin({});
  EXPECT_TRUE(view(1).plugin.empty());
  EXPECT_TRUE(watch->kernel_faults_of(lost, /*patience_ms=*/10'000).empty()) << "it ran none";
}

TEST_F(RankWatchTest, ItsRingIsReadFromOutside) {
  const auto watch = begin();
  SpanRecorder recorder(env);
  recorder.record_into(watch->ring());
  recorder.begin_step(4);
  recorder.begin({.kind = SpanKind::wait_vote});
  watch->ring_count() = recorder.opened();
  header();
  EXPECT_EQ(board->slot(0).spans_opened, 1u);
  EXPECT_EQ(board->slot(0).ring_spans, board->ring(0).size());
  EXPECT_EQ(board->ring(0)[0].kind, SpanKind::wait_vote);
  EXPECT_EQ(board->ring(0)[0].step, 4u);
}

TEST_F(RankWatchTest, StartsAGuardThatIsNobodysChild) {
  guard = {"sleep", "1000"};
  const auto watch = begin();
  const std::optional<ProcessFacts> facts = env.processes().facts(header().guard_process);
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->started_ticks, header().guard_started_ticks);
  EXPECT_NE(facts->parent, getpid());
  EXPECT_EQ(getsid(static_cast<pid_t>(header().guard_process)), header().guard_process);
  EXPECT_EQ(header().guard_generation, 1u);
  const auto second = begin(1);
  train(*watch, 1'000);
  train(*second, 1'000);
  EXPECT_EQ(header().guard_generation, 1u);
}

TEST_F(RankWatchTest, StartsAnotherWhenItIsGone) {
  guard = {"sleep", "1000"};
  const auto watch = begin(0), second = begin(1);
  end_guard();
  const std::int64_t dead = header().guard_process;
  for (int each = 0; each < 50; ++each) {
    train(*watch, 20);
    train(*second, 20);
  }
  EXPECT_EQ(header().guard_generation, 2u) << "one of both";
  EXPECT_NE(header().guard_process, dead);
  ASSERT_NE(guard_process(), nullptr);
  end_guard();
  const std::int64_t since_ns = env.now_ns;
  for (int look = 0; look < 100; ++look) {
    env.now_ns += 10 * ms;
    watch->on_wait(since_ns, env.now_ns, {.operation = "an all-reduce"});
  }
  EXPECT_EQ(header().guard_generation, 3u) << "also while it waits";
  ASSERT_NE(guard_process(), nullptr);
}

TEST_F(RankWatchTest, StartsNoOtherWhileNobodyKnowsWhetherItLives) {
  const TemporaryDirectory directory;
  const std::string hidden = directory / "hidden";
  BlindEnv blind(env, hidden);
  guard = {"sleep", "1000"};
  const auto watch = begin(0, blind);
  hide(hidden, header().guard_process);
  train(*watch, 1'000);
  EXPECT_EQ(header().guard_generation, 1u);
  hide(hidden, 0);
  end_guard();
  train(*watch, 1'000);
  EXPECT_EQ(header().guard_generation, 2u);
}

TEST_F(RankWatchTest, WakesAGuardThatIsStopped) {
  guard = {"sleep", "1000"};
  const auto watch = begin();
  const std::unique_ptr<Process> process = guard_process();
  ASSERT_TRUE(process->signal(SIGSTOP).ok());
  for (int look = 0; look < 1'000 && env.processes().facts(process->id())->state != 'T'; ++look) {
    posix_env().sleep_us(1'000);
  }
  ASSERT_EQ(env.processes().facts(process->id())->state, 'T');
  train(*watch, 200);
  for (int look = 0; look < 1'000 && env.processes().facts(process->id())->state == 'T'; ++look) {
    posix_env().sleep_us(1'000);
  }
  EXPECT_NE(env.processes().facts(process->id())->state, 'T');
  EXPECT_EQ(header().guard_generation, 1u);
}

TEST_F(RankWatchTest, EndsAGuardThatHangsAndStartsAnother) {
  guard = {"sleep", "1000"};
  const auto watch = begin();
  const std::unique_ptr<Process> hung = guard_process();
  ASSERT_NE(hung, nullptr);
  train(*watch, 9'900);
  EXPECT_FALSE(hung->wait_ended(0)) << "it may be late";
  train(*watch, 200);
  ASSERT_TRUE(hung->wait_ended(soon_ms));
  train(*watch, 500);
  EXPECT_EQ(header().guard_generation, 2u);
  const std::unique_ptr<Process> second = guard_process();
  ASSERT_NE(second, nullptr);
  for (int each = 0; each < 30; ++each) {
    train(*watch, 1'000);
    header().guard_tick_ns = env.now_ns;
  }
  EXPECT_FALSE(second->wait_ended(0)) << "it looks";
  EXPECT_EQ(header().guard_generation, 2u);
}

TEST_F(RankWatchTest, AfterAPauseOfItsOwnItSuspectsNoGuard) {
  guard = {"sleep", "1000"};
  const auto watch = begin();
  const std::unique_ptr<Process> paused = guard_process();
  ASSERT_NE(paused, nullptr);
  train(*watch, 500);
  env.now_ns += 100'000 * ms;
  train(*watch, 10);
  header().guard_tick_ns = env.now_ns;  // it was as fast
  train(*watch, 1'000);
  EXPECT_FALSE(paused->wait_ended(100));
  EXPECT_EQ(header().guard_generation, 1u);
}

TEST_F(RankWatchTest, OneThatDoesNotStayIsStartedEverLessOften) {
  guard = {"true"};
  const auto watch = begin();
  for (int each = 0; each < 600; ++each) {  // a minute, in which its processes take no time
    const ProcessIdentity started = {.id = header().guard_process,
                                     .started_ticks = header().guard_started_ticks};
    for (int look = 0; look < soon_ms && !started.has_ended(env.processes()); ++look)
      posix_env().sleep_us(1'000);
    train(*watch, 100);
  }
  EXPECT_GE(header().guard_generation, 6u);
  EXPECT_LE(header().guard_generation, 20u);
}

TEST_F(RankWatchTest, GoesOnWithoutOne) {
  guard = {"/no/such/program"};
  const auto watch = begin();
  train(*watch, 1'000);
  EXPECT_EQ(header().guard_process, 0);
  EXPECT_EQ(view().phase, Phase::step);
}

TEST_F(RankWatchTest, ComesToANewBoardWhenTheOldOneIsClosed) {
  {
    const std::unique_ptr<Board> old =
        Board::open_or_create(env, env.board, {.slots = 1, .ring_spans = 4}).value();
    EXPECT_TRUE(old->close(env, env.board));
  }
  const auto watch = begin(3);
  EXPECT_EQ(view().launched_rank, 3);
}

}  // namespace
}  // namespace holdfast::test
