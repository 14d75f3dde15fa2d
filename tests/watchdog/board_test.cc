#include "watchdog/board.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/os/processes.h"
#include "tests/support/blind_processes.h"
#include "tests/support/temporary_directory.h"
#include "tests/watchdog/watch_env.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class BoardTest : public testing::Test {
 protected:
  std::unique_ptr<Board> made(std::uint32_t slots = 3) {
    return Board::open_or_create(env, env.board, {.slots = slots, .ring_spans = 16}).value();
  }
  WatchEnv env;
};

TEST_F(BoardTest, IsMadeByTheFirstAndFoundByOthers) {
  EXPECT_FALSE(Board::open(env, env.board).ok());
  const std::unique_ptr<Board> first = made(3);
  const std::unique_ptr<Board> second = made(7);
  EXPECT_EQ(first->slots(), 3u);
  EXPECT_EQ(second->slots(), 3u);
  first->slot(2).step = 41;
  EXPECT_EQ(second->slot(2).step, 41u);
  first->ring(1)[15].bytes = 9;
  EXPECT_EQ(second->ring(1)[15].bytes, 9u);
  EXPECT_EQ(first->ring(0).size(), 16u);
  EXPECT_EQ(first->slot(0).launched_rank, -1);
}

TEST_F(BoardTest, ManyAtOnceMakeOne) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> found{0};
    {
      std::vector<std::jthread> all;
      for (int each = 0; each < 4; ++each) {
        all.emplace_back([&] {
          WatchEnv own;
          const auto board = Board::open_or_create(own, env.board, {.slots = 4, .ring_spans = 4});
          if (board.ok()) found += static_cast<int>((*board)->slot(0).step.fetch_add(1) + 1);
        });
      }
    }
    EXPECT_EQ(found, 1 + 2 + 3 + 4);
    ASSERT_TRUE(env.remove_shared_memory(env.board).ok());
  }
}

TEST_F(BoardTest, OneThatWasNeverFinishedIsReplaced) {
  const auto torn = env.create_shared_memory(env.board, 100'000).value();  // no magic: its maker died
  const std::unique_ptr<Board> board = made();
  EXPECT_EQ(board->slots(), 3u);
  EXPECT_TRUE(Board::open(env, env.board).ok());
}

// Host on which another rank makes its board at some moment of this one's look for it.
class InterruptedEnv final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;
  void sleep_us(std::int64_t microseconds) override { now_ns_ += 1'000 * microseconds; }
  std::int64_t monotonic_ns() override { return now_ns_; }

  std::function<void()> after_looks = {};
  int looks_left = 0;

  Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) override {
    Result<std::unique_ptr<SharedMemory>> memory = inner().open_shared_memory(name);
    if (--looks_left == 0) after_looks();
    return memory;
  }

 private:
  std::int64_t now_ns_ = 1;
};

TEST_F(BoardTest, TwoThatHaveWaitedForTheSameUnfinishedOneFindEachOther) {
  const BoardSize size = {.slots = 2, .ring_spans = 4};
  for (int looks = 4'990;; ++looks) {  // about the end of the patience
    static_cast<void>(env.remove_shared_memory(env.board).ok());
    const auto torn = env.create_shared_memory(env.board, 100'000).value();
    InterruptedEnv other_host(env), interrupted(env);
    std::optional<Result<std::unique_ptr<Board>>> other;
    interrupted.looks_left = looks;
    interrupted.after_looks = [&] { other.emplace(Board::open_or_create(other_host, env.board, size)); };
    const std::unique_ptr<Board> board = Board::open_or_create(interrupted, env.board, size).value();
    if (!other.has_value()) break;  // it was never interrupted
    if (!other->ok()) continue;     // while the first one removed it: that rank is not watched, and says so
    (**other)->slot(1).step = 41;
    EXPECT_EQ(board->slot(1).step, 41U) << looks << " looks";
  }
}

// It holds what it makes.
TEST_F(BoardTest, OneWhoseMakerLivesIsNotRemoved) {
  const auto slow = env.create_shared_memory(env.board, 100'000).value();
  ASSERT_TRUE(slow->hold(SharedMemory::Hold::shared));
  const BoardSize size = {.slots = 2, .ring_spans = 4};
  EXPECT_THAT(Board::open_or_create(env, env.board, size).error().message, HasSubstr("is not made yet"));
  EXPECT_TRUE(env.open_shared_memory(env.board).ok());
}

TEST_F(BoardTest, WhatIsNoBoardIsRefused) {
  const std::unique_ptr<Board> board = made();
  BoardHeader& header = board->header();
  const std::uint32_t layout = std::exchange(header.layout, 99);
  EXPECT_THAT(Board::open(env, env.board).error().message, HasSubstr("has layout 99"));
  header.layout = layout;
  for (const std::uint32_t slots : {0u, 4u, 1'000'000u, ~0u}) {
    header.slots = slots;
    EXPECT_FALSE(Board::open(env, env.board).ok()) << slots;
  }
  header.slots = 3;
  header.ring_spans = ~0u;
  EXPECT_THAT(Board::open(env, env.board).error().message, HasSubstr("damaged"));
  header.ring_spans = 16;
  EXPECT_TRUE(Board::open(env, env.board).ok());
  ASSERT_TRUE(env.remove_shared_memory(env.board).ok());
  const auto small = env.create_shared_memory(env.board, 8).value();
  EXPECT_THAT(Board::open(env, env.board).error().message, HasSubstr("too short"));
}

TEST_F(BoardTest, ItsSizesAreReadOnce) {
  const std::unique_ptr<Board> made_here = made(), opened = Board::open(env, env.board).value();
  made_here->header().slots = 1'000;
  made_here->header().ring_spans = 1'000'000;
  for (Board* const board : {made_here.get(), opened.get()}) {
    EXPECT_EQ(board->slots(), 3u);
    EXPECT_EQ(board->ring(2).size(), 16u);
    EXPECT_EQ(
        reinterpret_cast<std::byte*>(board->ring(2).data()) - reinterpret_cast<std::byte*>(&board->slot(0)),
        static_cast<std::ptrdiff_t>(3 * sizeof(BoardSlot) + 2 * 16 * sizeof(Span)));
  }
}

// Only root can start one, and only root could end it.
TEST_F(BoardTest, AProcessOfAnotherUserHasNoSlot) {
  if (geteuid() != 0) GTEST_SKIP() << "this user cannot start a process of another";
  const std::unique_ptr<Board> board = made(1);
  const std::unique_ptr<Process> other =
      env.processes()
          .start({.arguments = {"setpriv", "--reuid=65534", "--clear-groups", "sleep", "1000"},
                  .die_with_parent = true})
          .value();
  std::optional<ProcessFacts> facts;
  for (int look = 0; look < 10'000 && !(facts.has_value() && facts->of_other_user); ++look) {
    posix_env().sleep_us(1'000);
    facts = env.processes().facts(other->id());
  }
  ASSERT_TRUE(facts.has_value() && facts->of_other_user);
  EXPECT_FALSE(env.processes().facts(getpid())->of_other_user);
  board->slot(0).process = other->id();
  board->slot(0).started_ticks = facts->started_ticks;
  EXPECT_FALSE(lives(env, read_slot(board->slot(0))));
  EXPECT_EQ(board->take_slot(env, 0).value(), 0u);
  EXPECT_TRUE(other->signal(SIGKILL).ok());
  EXPECT_TRUE(other->wait_ended(10'000));
}

TEST_F(BoardTest, ASlotIsFreeAgainWhenItsProcessHasEnded) {
  const std::unique_ptr<Board> board = made(2);
  const std::unique_ptr<Process> sleeper = env.processes().start({.arguments = {"sleep", "1000"}}).value();
  env.own_id = sleeper->id();
  EXPECT_EQ(board->take_slot(env, 5).value(), 0u);
  env.own_id = getpid();
  EXPECT_EQ(board->take_slot(env, 6).value(), 1u);
  EXPECT_THAT(board->take_slot(env, 7).error().message, HasSubstr("all 2 places of the board are taken"));
  board->slot(0).step = 9;
  ASSERT_TRUE(sleeper->signal(SIGKILL).ok());
  ASSERT_TRUE(sleeper->wait_ended(10'000));
  EXPECT_EQ(board->take_slot(env, 8).value(), 0u) << "also before it is reaped";
  EXPECT_EQ(read_slot(board->slot(0)).step, 0u);
  EXPECT_EQ(read_slot(board->slot(0)).launched_rank, 8);
  EXPECT_TRUE(sleeper->end().has_value());
}

TEST_F(BoardTest, ASlotIsKeptWhileNobodyKnowsWhetherItsProcessLives) {
  const TemporaryDirectory directory;
  const std::string hidden = directory / "hidden";
  BlindEnv blind(env, hidden);
  const std::unique_ptr<Board> board = made(2);
  hide(hidden, 1);
  board->slot(0).process = 1;
  board->slot(0).started_ticks = 123'456'789'000;  // another process than the one that lives
  EXPECT_EQ(board->take_slot(blind, 0).value(), 1u);
  EXPECT_FALSE(board->close(blind, env.board));
  EXPECT_FALSE(lives(blind, read_slot(board->slot(0)))) << "nor does it count as alive";
  hide(hidden, 0);
  EXPECT_TRUE(board->close(blind, env.board));
}

TEST_F(BoardTest, WhoDoesNotKnowItsOwnStartTakesNoSlot) {
  const TemporaryDirectory directory;
  const std::string hidden = directory / "hidden";
  BlindEnv blind(env, hidden);
  const std::unique_ptr<Board> board = made(1);
  hide(hidden, getpid());
  EXPECT_THAT(board->take_slot(blind, 0).error().message, HasSubstr("Too many open files"));
  EXPECT_EQ(board->slot(0).process, 0);
}

TEST_F(BoardTest, ANumberThatIsAnotherProcessNowIsNoOwner) {
  const std::unique_ptr<Board> board = made(1);
  board->slot(0).process = 1;  // lives, but did not begin then
  board->slot(0).started_ticks = 123'456'789'000;
  EXPECT_FALSE(lives(env, read_slot(board->slot(0))));
  EXPECT_TRUE(board->take_slot(env, 0).ok());
  EXPECT_TRUE(lives(env, read_slot(board->slot(0))));
}

TEST_F(BoardTest, ASlotThatIsBeingTakenIsLeftToWhoTakesIt) {
  const std::unique_ptr<Board> board = made(1);
  board->slot(0).process = -getpid();
  EXPECT_EQ(read_slot(board->slot(0)).process, 0);
  EXPECT_FALSE(board->take_slot(env, 0).ok());
  const std::unique_ptr<Process> dead = env.processes().start({.arguments = {"true"}}).value();
  ASSERT_TRUE(dead->wait_ended(10'000));
  ASSERT_TRUE(dead->end().has_value());
  board->slot(0).process = -dead->id();
  EXPECT_TRUE(board->take_slot(env, 0).ok());
}

TEST_F(BoardTest, ClosesWhenNobodyIsLeft) {
  const std::unique_ptr<Board> board = made(2);
  const std::unique_ptr<Process> sleeper = env.processes().start({.arguments = {"sleep", "1000"}}).value();
  env.own_id = sleeper->id();
  ASSERT_TRUE(board->take_slot(env, 0).ok());
  env.own_id = getpid();
  EXPECT_FALSE(board->close(env, env.board));
  EXPECT_FALSE(board->closed());
  ASSERT_TRUE(sleeper->signal(SIGKILL).ok());
  ASSERT_TRUE(sleeper->wait_ended(10'000));
  EXPECT_TRUE(sleeper->end().has_value());
  const std::unique_ptr<Board> seen_before = made();
  EXPECT_TRUE(board->close(env, env.board));
  EXPECT_FALSE(seen_before->close(env, env.board)) << "once";
  EXPECT_THAT(seen_before->take_slot(env, 1).error().message, HasSubstr("closed"));
  EXPECT_EQ(read_slot(seen_before->slot(0)).process, 0);
  const std::unique_ptr<Board> next = made();
  EXPECT_TRUE(next->take_slot(env, 1).ok());
}

// In use is what a process has open, be its number one that says nothing here: of another process namespace.
TEST_F(BoardTest, OneThatEverybodyWasKilledOnIsRemoved) {
  const std::string living = board_name(env.board + "living"), dead = board_name(env.board + "dead");
  const auto make = [&](const std::string& name) {
    return Board::open_or_create(env, name, {.slots = 1, .ring_spans = 4}).value();
  };
  const std::unique_ptr<Process> ended = env.processes().start({.arguments = {"true"}}).value();
  ASSERT_TRUE(ended->wait_ended(10'000));
  env.own_id = ended->id();
  std::unique_ptr<Board> held = make(living);
  ASSERT_TRUE(held->take_slot(env, 0).ok());
  ASSERT_TRUE(make(dead)->take_slot(env, 0).ok());
  env.own_id = getpid();
  EXPECT_TRUE(ended->end().has_value());
  const std::string orphan = board_name(env.board + "orphan") + "-hosts";
  for (const std::string& table : {living + "-hosts", dead + "-hosts", orphan}) {
    ASSERT_TRUE(env.create_shared_memory(table, 8).ok());
  }
  EXPECT_GE(remove_dead_boards(env), 1u);
  EXPECT_TRUE(Board::open(env, living).ok());
  EXPECT_FALSE(Board::open(env, dead).ok());
  EXPECT_TRUE(env.open_shared_memory(living + "-hosts").ok());
  EXPECT_FALSE(env.open_shared_memory(dead + "-hosts").ok());
  EXPECT_FALSE(env.open_shared_memory(orphan).ok());
  held.reset();
  remove_dead_boards(env);
  EXPECT_FALSE(Board::open(env, living).ok());
}

// Or a rank that comes would write on a board whose name another one just removes.
TEST_F(BoardTest, WhatOneHasAloneNobodyElseOpens) {
  made(1);
  std::unique_ptr<Board> alone = Board::open_alone(env, env.board).value();
  EXPECT_THAT(Board::open(env, env.board).error().message, HasSubstr("is just being removed"));
  EXPECT_FALSE(Board::open_alone(env, env.board).ok());
  alone.reset();
  const std::unique_ptr<Board> board = made(1);
  EXPECT_THAT(Board::open_alone(env, env.board).error().message, HasSubstr("is in use"));
}

TEST_F(BoardTest, AReaderSeesWordsOfOneMoment) {
  const std::unique_ptr<Board> board = made(1);
  BoardSlot& slot = board->slot(0);
  const std::jthread writer([&](const std::stop_token& over) {
    for (std::uint64_t value = 1; !over.stop_requested(); ++value) {
      slot.version.fetch_add(1);
      slot.step = value;
      slot.begun_ns = static_cast<std::int64_t>(value);
      slot.wait_number = static_cast<std::uint32_t>(value);
      slot.version.fetch_add(1);
      std::this_thread::yield();
    }
  });
  for (int look = 0; look < 20'000; ++look) {
    const SlotView view = read_slot(slot);
    ASSERT_EQ(view.step, static_cast<std::uint64_t>(view.begun_ns));
    ASSERT_EQ(view.step % (std::uint64_t{1} << 32), view.wait_number);
  }
}

TEST_F(BoardTest, AWriterThatStoppedInTheMiddleIsReadAllTheSame) {
  const std::unique_ptr<Board> board = made(1);
  board->slot(0).version = 7;
  board->slot(0).step = 12;
  EXPECT_EQ(read_slot(board->slot(0)).step, 12u);
}

TEST_F(BoardTest, DamagedWordsAreNoTrouble) {
  const std::unique_ptr<Board> board = made(1);
  BoardSlot& slot = board->slot(0);
  std::memset(static_cast<void*>(&slot), 0xff, sizeof(slot));
  const SlotView view = read_slot(slot);
  EXPECT_EQ(view.phase, Phase::start_up);
  EXPECT_EQ(view.process, 0);
  EXPECT_EQ(view.wait_operation, std::string(32, '\xff'));
}

TEST_F(BoardTest, TextsAreCutToWhatFits) {
  const std::unique_ptr<Board> board = made(1);
  store_text(board->slot(0).wait_operation, "an all-reduce");
  EXPECT_EQ(read_slot(board->slot(0)).wait_operation, "an all-reduce");
  store_text(board->slot(0).wait_operation, std::string(40, 'x'));
  EXPECT_EQ(read_slot(board->slot(0)).wait_operation, std::string(31, 'x'));
  store_text(board->slot(0).wait_operation, "");
  EXPECT_EQ(read_slot(board->slot(0)).wait_operation, "");
}

TEST_F(BoardTest, HangsCount) {
  const std::unique_ptr<Board> board = made(1);
  EXPECT_EQ(newest_notice(board->header().hangs).number, 0u);
  write_notice(board->header().hangs, 3, "rank 3 hangs");
  write_notice(board->header().hangs, 1, "rank 1 hangs" + std::string(400, '!'));
  const Notice hang = newest_notice(board->header().hangs);
  EXPECT_EQ(hang.number, 2u);
  EXPECT_EQ(hang.rank, 1);
  EXPECT_EQ(hang.sentence.size(), board_text_bytes - 1);
  // A guard dies while it writes the third one; its heir writes another.
  BoardNotices::Entry& torn = board->header().hangs.newest[3];
  torn.number = 0;
  store_text(torn.sentence, "rank 9 ha");
  EXPECT_EQ(newest_notice(board->header().hangs).number, 2u);
  write_notice(board->header().hangs, 2, "rank 2 hangs");
  EXPECT_EQ(newest_notice(board->header().hangs).number, 3u);
  EXPECT_EQ(newest_notice(board->header().hangs).sentence, "rank 2 hangs");
}

TEST_F(BoardTest, TheNewestNoticesAreKept) {
  const std::unique_ptr<Board> board = made(1);
  BoardNotices& spares = board->header().lost_spares;
  const auto sentences = [&](std::uint64_t after) {
    std::vector<std::string> all;
    for (const Notice& notice : read_notices(spares, after)) all.push_back(notice.sentence);
    return all;
  };
  EXPECT_THAT(sentences(0), testing::IsEmpty());
  for (int rank = 1; rank <= 3; ++rank) write_notice(spares, rank, fmt::format("rank {}", rank));
  EXPECT_THAT(sentences(0), testing::ElementsAre("rank 1", "rank 2", "rank 3"));
  EXPECT_THAT(sentences(1), testing::ElementsAre("rank 2", "rank 3"));
  EXPECT_THAT(sentences(3), testing::IsEmpty());
  for (int rank = 4; rank <= 11; ++rank) write_notice(spares, rank, fmt::format("rank {}", rank));
  EXPECT_THAT(sentences(0), testing::SizeIs(BoardNotices::kept));
  EXPECT_EQ(sentences(0).front(), "rank 4");
  EXPECT_EQ(read_notices(spares, 9).front().number, 10u);
  spares.newest[10 % BoardNotices::kept].number = 0;  // a newer one just takes its place
  EXPECT_THAT(sentences(8), testing::ElementsAre("rank 9", "rank 11"));
}

TEST_F(BoardTest, TheFirstRunDirectoryStays) {
  const std::unique_ptr<Board> board = made(1);
  EXPECT_EQ(read_run_directory(board->header()), "");
  write_run_directory(board->header(), std::string(1'024, 'x'));
  EXPECT_EQ(read_run_directory(board->header()), "");
  write_run_directory(board->header(), "/runs/a");
  write_run_directory(board->header(), "/runs/longer");
  EXPECT_EQ(read_run_directory(board->header()), "/runs/a");
}

TEST(BoardName, IsOneOfTheStart) {
  EXPECT_EQ(board_name("a"), board_name("a"));
  EXPECT_NE(board_name("a"), board_name("b"));
  EXPECT_EQ(board_name("with / in it").find('/'), std::string::npos);
}

}  // namespace
}  // namespace holdfast::test
