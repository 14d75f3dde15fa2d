// Tests how a guard begins and ends, and what it writes and tells of ranks that end by themselves, with real
// processes. What it decides: guard_mind_test.cc, guard_mind_events_test.cc.
#include "watchdog/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "runtime/os/sealed_network.h"
#include "tests/support/blind_processes.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/refused_pidfd.h"
#include "tests/support/test_secret.h"
#include "tests/watchdog/guard_fixture.h"
#include "tests/watchdog/watch_env.h"
#include "watchdog/board.h"
#include "watchdog/flight_record.h"
#include "watchdog/guard_message.h"
#include "watchdog/peer_host_table.h"

namespace holdfast::test {
namespace {

using testing::SizeIs;

TEST_F(GuardTest, NeedsABoard) {
  EXPECT_FALSE(run_guard(env, {.board = name + "-other"}).ok());
}

TEST_F(GuardTest, LeavesWithTheLastRankAndRemovesTheBoard) {
  add_ranks(2);
  const pid_t guard = start_guard();
  for (int each = 0; each < 2; ++each) {
    slot(each).left = 1;
    EXPECT_EQ(end_of(guard, 100), -1);
    ASSERT_TRUE(rank(each).signal(SIGKILL).ok());
  }
  EXPECT_EQ(end_of(guard), 0);
  EXPECT_FALSE(Board::open(env, name).ok());
  EXPECT_TRUE(board->closed());
  EXPECT_EQ(said(), "");
  EXPECT_THAT(flights(), SizeIs(0)) << "they said that they would go";
}

TEST_F(GuardTest, LeavesABoardThatAnotherOneHasClosed) {
  add_ranks(1);
  const pid_t guard = start_guard();
  board->header().magic = 0;
  EXPECT_TRUE(ticks(2)) << "the rank lives";
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  EXPECT_EQ(end_of(guard), 0);
}

TEST_F(GuardTest, WritesWhatAllWereAtWhenOneDies) {
  add_ranks(3);
  start_guard();
  ASSERT_TRUE(rank(1).signal(SIGSEGV).ok());
  ASSERT_TRUE(soon([&] { return flights().size() == 3; }));
  EXPECT_EQ(flights()[0].reason, "rank 1 (host " + env.host_name() + ") died: signal 11 (SIGSEGV)");
  EXPECT_EQ(flights()[0].state, 'S');
  EXPECT_EQ(flights()[1].state, 'X');
  EXPECT_EQ(flights()[1].slot.step, 9u);
  EXPECT_TRUE(alive(0) && alive(2));
  EXPECT_EQ(newest_notice(board->header().hangs).number, 0u);
}

TEST_F(GuardTest, SaysWhichSignalOrExitCodeEndedARank) {
  add_ranks(3);
  add_rank({"sh", "-c", "trap 'exit 3' USR1; while :; do sleep 0.01; done"});
  start_guard();
  std::string console, ends_expected;
  struct Case {
    int rank, signal;
    const char* cause;
  };
  for (const Case& each : {Case{1, SIGSEGV, "signal 11 (SIGSEGV)"}, Case{0, SIGKILL, "signal 9 (SIGKILL)"},
                           Case{3, SIGUSR1, "exit code 3"}}) {
    ASSERT_TRUE(rank(each.rank).signal(each.signal).ok());
    console +=
        fmt::format("holdfast guard: rank {} (host {}) died: {}\n", each.rank, env.host_name(), each.cause);
    ends_expected += fmt::format("{} {} {}\n", each.rank, rank(each.rank).id(), each.cause);
    ASSERT_TRUE(soon([&] { return ends() == ends_expected; })) << ends();
    EXPECT_EQ(said(), console);
  }
  EXPECT_TRUE(alive(2));
  EXPECT_EQ(reported(), "") << "nobody hangs";
}

TEST_F(GuardTest, ASecondOneLeavesAndADeadOneHasAnHeir) {
  add_ranks(2);
  const pid_t first = start_guard();
  EXPECT_EQ(end_of(start_guard(env)), 0);
  EXPECT_EQ(board->header().guard_process, first);
  ::kill(first, SIGKILL);
  EXPECT_EQ(end_of(first), 1'000 + SIGKILL);
  start_guard();
  computes(1, 50);
  EXPECT_TRUE(rank(1).wait_ended(soon_ms));
  EXPECT_TRUE(alive(0));
}

TEST_F(GuardTest, WritesWhatTheyAreAtWhenItIsAsked) {
  add_ranks(2);
  const pid_t guard = start_guard();
  ::kill(guard, SIGUSR1);
  ASSERT_TRUE(soon([&] { return flights().size() == 2; }));
  EXPECT_EQ(flights()[0].reason, "asked for by SIGUSR1");
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR2, SIGPIPE}) ::kill(guard, number);
  EXPECT_EQ(end_of(guard, 100), -1) << "it goes with the last rank";
  EXPECT_TRUE(alive(0) && alive(1));
}

// Whoever hears of a dead rank only as of a living one takes it for the one that hangs.
TEST_F(GuardTest, OtherHostsHearOfWhoEndedBeforeItListened) {
  constexpr std::int64_t patience_ms = 20'000;
  add_ranks(2);
  start_guard();
  const std::int64_t gone = rank(1).id();
  ASSERT_TRUE(rank(1).signal(SIGKILL).ok());
  ASSERT_TRUE(soon([&] { return flights().size() == 2; }));
  SealedNetwork network(posix_env(), secret_of(3), "guard");
  const std::unique_ptr<Listener> listener = network.listen("127.0.0.1").value();
  const PeerHostTableSetup setup{
      .start = 1,
      .own_host = 0,
      .hosts = {{.name = "here", .addresses = {"127.0.0.1"}},
                {.name = "there", .addresses = {"127.0.0.1"}, .port = listener->port()}}};
  ASSERT_TRUE(PeerHostTable::open_or_create(env, name, setup).ok());
  write_guard_network(board->header(), {.secret = secret_of(3), .listen_address = "127.0.0.1"});
  const std::unique_ptr<Connection> connection = listener->accept(patience_ms).value();
  ASSERT_NE(connection, nullptr);
  std::vector<std::byte> frame(frame_head_bytes);
  ASSERT_TRUE(connection->receive(frame, patience_ms).ok());
  frame.resize(frame_bytes(frame).value());
  ASSERT_TRUE(connection->receive(std::span(frame).subspan(frame_head_bytes), patience_ms).ok());
  const Result<GuardMessage> message = message_of(frame);
  ASSERT_TRUE(message.ok());
  ASSERT_THAT(message->ended, SizeIs(1));
  EXPECT_EQ(message->ended[0].process, gone);
  EXPECT_THAT(message->ranks, SizeIs(1)) << "only the one that lives";
  PeerHostTable::remove(env, name);
}

TEST_F(GuardTest, WatchesARankThatComesLater) {
  add_ranks(1);
  start_guard();
  add_ranks(1);
  computes(1, 50);
  EXPECT_TRUE(rank(1).wait_ended(soon_ms));
  EXPECT_TRUE(alive(0));
}

TEST_F(GuardTest, WithoutPidfdItWatchesAllTheSame) {
  in_guard = test::refuse_pidfd;
  add_ranks(3);
  const pid_t guard = start_guard();
  computes(1, 50);
  EXPECT_TRUE(rank(1).wait_ended(soon_ms));
  ASSERT_TRUE(soon([&] { return flights().size() == 3; }));
  EXPECT_EQ(flights()[2].state, 'S');
  EXPECT_TRUE(alive(0) && alive(2));
  slot(0).left = slot(2).left = 1;
  for (const int each : {0, 2}) {
    EXPECT_EQ(end_of(guard, 100), -1);
    ASSERT_TRUE(rank(each).signal(SIGKILL).ok());
  }
  EXPECT_EQ(end_of(guard), 0);
}

TEST_F(GuardTest, OneThatCannotBeWatchedIsSaidToBeNeitherAliveNorDead) {
  const std::string hidden = directory / "hidden";
  BlindEnv blind(env, hidden);
  add_ranks(2);
  hide(hidden, rank(1).id());
  const pid_t guard = start_guard(blind);
  ASSERT_TRUE(soon([&] { return board->header().guard_process == guard && ticks(3); }));
  const std::string sentence = fmt::format(
      "holdfast guard: rank 1 (host {}) is not watched: process {}: Too many open files; if it hangs or "
      "dies, "
      "this guard does not notice\n",
      env.host_name(), rank(1).id());
  EXPECT_EQ(said(), sentence) << "once";
  EXPECT_THAT(flights(), SizeIs(0)) << "nobody died";
  computes(1, 50);
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  ASSERT_TRUE(soon([&] { return flights().size() == 2; }));
  EXPECT_EQ(flights()[0].reason, "rank 0 (host " + env.host_name() + ") died: signal 9 (SIGKILL)");
  EXPECT_EQ(flights()[1].state, '?');
  EXPECT_EQ(end_of(guard, 200), -1) << "it may live";
  EXPECT_FALSE(board->closed());
  EXPECT_TRUE(alive(1));
  hide(hidden, 0);
  EXPECT_TRUE(rank(1).wait_ended(soon_ms)) << "now it is watched, and hangs";
  EXPECT_EQ(end_of(guard), 0);
}

// Only root could end it.
TEST_F(GuardTest, AProcessOfAnotherUserIsLeftAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "this user cannot start a process of another";
  add_ranks(1);
  ranks.push_back(env.processes()
                      .start({.arguments = {"setpriv", "--reuid=65534", "--clear-groups", "sleep", "1000"}})
                      .value());
  std::optional<ProcessFacts> facts;
  ASSERT_TRUE(soon([&] {
    facts = env.processes().facts(rank(1).id());
    return facts.has_value() && facts->of_other_user;
  }));
  slot(1).started_ticks = facts->started_ticks;
  slot(1).launched_rank = 1;
  computes(1, 1);
  slot(1).process = rank(1).id();
  const pid_t guard = start_guard();
  ASSERT_TRUE(ticks(10));
  EXPECT_EQ(reported(), "");
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  EXPECT_EQ(end_of(guard), 0) << "it waits for none but its own";
  EXPECT_TRUE(alive(1));
}

TEST_F(GuardTest, TellsOfASpareThatDied) {
  add_ranks(2);
  slot(1).phase = static_cast<std::uint32_t>(Phase::spare);
  start_guard();
  ASSERT_TRUE(rank(1).signal(SIGKILL).ok());
  ASSERT_TRUE(soon([&] { return newest_notice(board->header().lost_spares).number == 1; }));
  EXPECT_EQ(newest_notice(board->header().lost_spares).sentence, "rank 1 (host " + env.host_name() + ")");
}

TEST_F(GuardTest, WithoutARunDirectoryItWatchesAllTheSame) {
  board->header().run_directory_known = 0;
  add_ranks(2);
  computes(0, 50);
  start_guard();
  EXPECT_TRUE(rank(0).wait_ended(soon_ms));
  EXPECT_TRUE(soon([&] { return said().find("rank 0") != std::string::npos; }));
}

// A file system that does not respond until the test lets it. Files that the guard writes are all of the run.
class StalledEnv final : public ForwardingEnv {
 public:
  StalledEnv(Env& inner, std::string file) : ForwardingEnv(inner), file_(std::move(file)) {}
  Result<FileStatus> status(const std::string& path) override {
    wait();
    return ForwardingEnv::status(path);
  }
  Result<void> append_line(const std::string& path, std::string_view line) override {
    wait();
    return ForwardingEnv::append_line(path, line);
  }
  void wait() {
    while (!ForwardingEnv::status(file_)->exists) sleep_us(1'000);
  }

 private:
  std::string file_;  // exists once the file system responds
};

class StalledGuardTest : public GuardTest {
 protected:
  StalledGuardTest() {
    settings.on_end = [this](const RankDeath& death) {
      static_cast<void>(stalled.append_line(directory / "ends", fmt::format("{}", death.rank)).ok());
    };
  }
  pid_t start_stalled() {
    const pid_t guard = start_guard(stalled);
    EXPECT_TRUE(soon([&] { return board->header().guard_process == guard && ticks(2); }));
    return guard;
  }
  void let_go() { ASSERT_TRUE(env.replace_text(directory / "responds", "").ok()); }
  bool says(const std::string& what) {
    return soon([&] { return said().find(what) != std::string::npos; });
  }
  StalledEnv stalled{env, directory / "responds"};
};

TEST_F(StalledGuardTest, GoesOnWhileItsFilesCannotBeWritten) {
  add_ranks(4);
  start_stalled();
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  ASSERT_TRUE(says("rank 0"));
  EXPECT_TRUE(ticks(20)) << "it goes on, for the guards of other hosts, too";
  ASSERT_TRUE(rank(1).signal(SIGKILL).ok());
  EXPECT_TRUE(says("rank 1")) << "the next death is seen";
  computes(2, 50);
  EXPECT_TRUE(rank(2).wait_ended(soon_ms)) << "a rank that hangs is ended";
  EXPECT_EQ(ends(), "");
  EXPECT_THAT(flights(), SizeIs(0));
  let_go();
  EXPECT_TRUE(soon([&] { return ends() == "0\n1\n"; })) << ends();
  EXPECT_TRUE(soon([&] { return flights().size() == 4; }));
  EXPECT_TRUE(alive(3));
}

TEST_F(StalledGuardTest, WaitsAtItsEndUntilItHasWritten) {
  add_ranks(1);
  const pid_t guard = start_stalled();
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  ASSERT_TRUE(says("rank 0"));
  EXPECT_EQ(end_of(guard, 300), -1);
  let_go();
  EXPECT_EQ(end_of(guard), 0);
  EXPECT_EQ(ends(), "0\n");
  EXPECT_THAT(flights(), SizeIs(1));
}

TEST_F(StalledGuardTest, DoesNotWaitForEverAtItsEnd) {
  settings.write_patience_ms = 300;
  add_ranks(1);
  const pid_t guard = start_stalled();
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  ASSERT_TRUE(says("rank 0"));
  EXPECT_EQ(end_of(guard), 0);
  EXPECT_TRUE(says("2 of the reports and flight records about ranks that ended or hung are not written"))
      << said();
  EXPECT_TRUE(board->closed());
}

TEST_F(GuardTest, ARunDirectoryThatCannotBeWrittenIsTold) {
  ASSERT_TRUE(env.replace_text(directory.path() + "/flight", "a file").ok());
  add_ranks(2);
  computes(0, 50);
  start_guard();
  EXPECT_TRUE(rank(0).wait_ended(soon_ms));
  EXPECT_TRUE(soon([&] { return said().find("/flight") != std::string::npos; }));
  ASSERT_TRUE(ticks(5));
  EXPECT_TRUE(alive(1));
}

}  // namespace
}  // namespace holdfast::test
