#include "watchdog/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "runtime/core/processes.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/temporary_directory.h"
#include "tests/watchdog/watch_env.h"
#include "watchdog/board.h"
#include "watchdog/flight_record.h"

namespace holdfast {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t soon_ms = 10'000, for_ever_ms = 1'000'000;

// Ranks are programs that sleep, and what they would write on the board the test writes.
class GuardTest : public testing::Test {
 protected:
  GuardTest() : board(Board::open_or_create(env, name, {.slots = 6, .ring_spans = 4}).value()) {
    write_run_directory(board->header(), directory.path());
    settings = {.board = name, .tick_ms = 5, .late_ms = 2'000, .kill_patience_ms = for_ever_ms};
    settings.on_verdict = [this](int rank, const std::string& sentence) {
      static_cast<void>(env.append_line(directory / "told", fmt::format("{} {}", rank, sentence)).ok());
    };
  }
  ~GuardTest() override {
    for (const auto& rank : ranks) static_cast<void>(rank->signal(SIGKILL).ok());
    for (const pid_t guard : guards) {
      ::kill(guard, SIGKILL);
      ::waitpid(guard, nullptr, 0);
    }
    for (const auto& rank : ranks) {
      rank->wait_ended(soon_ms);
      rank->end();
    }
    static_cast<void>(env.remove_shared_memory(name).ok());
  }

  BoardSlot& slot(int rank) { return board->slot(static_cast<std::uint32_t>(rank)); }
  Process& rank(int number) { return *ranks[static_cast<std::size_t>(number)]; }
  void add_ranks(int count) {
    for (int each = 0; each < count; ++each) {
      const int rank = static_cast<int>(ranks.size());
      ranks.push_back(env.processes().start({.arguments = {"sleep", "1000"}}).value());
      slot(rank).started_ticks = env.processes().facts(ranks.back()->id())->started_ticks;
      slot(rank).launched_rank = rank;
      computes(rank, for_ever_ms);
      slot(rank).process = ranks.back()->id();
    }
  }
  void computes(int rank, std::int64_t deadline_ms) {
    slot(rank).phase = static_cast<std::uint32_t>(Phase::step);
    slot(rank).step = 9;
    slot(rank).wait_begun_ns = 0;
    slot(rank).deadline_ns = deadline_ms * ms;
    slot(rank).begun_ns = slot(rank).beat_ns = env.monotonic_ns();
  }
  // For ever, and looks all the time.
  void waits(int rank, std::int64_t deadline_ms) {
    computes(rank, deadline_ms);
    store_text(slot(rank).wait_operation, "an all-reduce");
    slot(rank).beat_ns = env.monotonic_ns() + for_ever_ms * ms;
    slot(rank).wait_begun_ns = env.monotonic_ns();
  }
  pid_t start_guard(Env& own) {
    std::fflush(nullptr);
    const pid_t guard = fork();
    if (guard == 0) {
      if (std::freopen((directory.path() + "/stderr").c_str(), "a", stderr) == nullptr) std::_Exit(2);
      setvbuf(stderr, nullptr, _IONBF, 0);
      std::_Exit(run_guard(own, settings).ok() ? 0 : 1);
    }
    guards.push_back(guard);
    return guard;
  }
  pid_t start_guard() {
    const pid_t guard = start_guard(env);
    EXPECT_TRUE(soon([&] { return board->header().guard_process == guard && ticks(2); }));
    return guard;
  }
  bool ticks(int count) {
    for (; count > 0; --count) {
      const std::int64_t before = board->header().guard_tick_ns;
      if (!soon([&] { return board->header().guard_tick_ns != before; })) return false;
    }
    return true;
  }
  // Its exit code; -1: it goes on.
  int end_of(pid_t guard, std::int64_t timeout_ms = soon_ms) {
    int status = 0;
    const bool ended = within(timeout_ms, [&] { return ::waitpid(guard, &status, WNOHANG) == guard; });
    if (!ended) return -1;
    std::erase(guards, guard);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1'000 + WTERMSIG(status);
  }
  bool within(std::int64_t timeout_ms, const std::function<bool()>& what) {
    const std::int64_t end_ns = env.monotonic_ns() + timeout_ms * ms;
    while (!what()) {
      if (env.monotonic_ns() > end_ns) return false;
      env.sleep_us(1'000);
    }
    return true;
  }
  bool soon(const std::function<bool()>& what) { return within(soon_ms, what); }
  bool alive(int number) { return !rank(number).wait_ended(0); }
  std::string told() { return env.read_text(directory / "told").value(); }  // on_verdict
  std::string said() { return env.read_text(directory.path() + "/stderr").value(); }
  std::vector<FlightRecord> flights() {
    const Result<std::vector<FlightRecord>> records = read_flight_records(env, directory.path() + "/flight");
    return records.ok() ? *records : std::vector<FlightRecord>();
  }

  Env& env = posix_env();
  const TemporaryDirectory directory;
  const std::string name = fmt::format("holdfast-test-{}-{:016x}", getpid(), env.random_u64());
  std::unique_ptr<Board> board;
  std::vector<std::unique_ptr<Process>> ranks;
  std::vector<pid_t> guards;
  GuardSettings settings;
};

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
  EXPECT_EQ(flights()[0].reason, "rank 1 (host " + env.host_name() + ") died");
  EXPECT_EQ(flights()[0].state, 'S');
  EXPECT_EQ(flights()[1].state, 'X');
  EXPECT_EQ(flights()[1].slot.step, 9u);
  EXPECT_TRUE(alive(0) && alive(2));
  EXPECT_EQ(newest_notice(board->header().verdicts).number, 0u);
}

TEST_F(GuardTest, EndsTheOneThatHangs) {
  add_ranks(4);
  for (const int innocent : {0, 1, 3}) waits(innocent, 50);
  computes(2, 100);
  start_guard();
  ASSERT_TRUE(rank(2).wait_ended(soon_ms));
  for (const int innocent : {0, 1, 3}) computes(innocent, for_ever_ms);  // they go on without it
  EXPECT_GE(env.monotonic_ns() - slot(2).begun_ns, 100 * ms);
  ASSERT_TRUE(soon([&] { return flights().size() == 4; }));
  const Notice verdict = newest_notice(board->header().verdicts);
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_THAT(verdict.sentence, HasSubstr("rank 2 (host " + env.host_name() + ") hangs: step 9 for "));
  EXPECT_EQ(said(), "holdfast guard: " + verdict.sentence + "; it is ended\n");
  EXPECT_EQ(flights()[0].reason, verdict.sentence);
  env.sleep_us(300'000);
  EXPECT_TRUE(alive(0) && alive(1) && alive(3));
  EXPECT_EQ(newest_notice(board->header().verdicts).number, 1u);
  EXPECT_EQ(told(), "2 " + verdict.sentence + "\n");
}

TEST_F(GuardTest, EndsAStoppedOneAlthoughItSaysThatItWaits) {
  add_ranks(3);
  for (int each = 0; each < 3; ++each) waits(each, 200);
  ASSERT_TRUE(rank(1).signal(SIGSTOP).ok());
  start_guard();
  ASSERT_TRUE(rank(1).wait_ended(soon_ms));
  EXPECT_THAT(newest_notice(board->header().verdicts).sentence, HasSubstr("it is stopped"));
  EXPECT_TRUE(alive(0) && alive(2));
}

TEST_F(GuardTest, EndsAllThatAreStopped) {
  add_ranks(3);
  for (int each = 0; each < 3; ++each) {
    waits(each, 100);
    ASSERT_TRUE(rank(each).signal(SIGSTOP).ok());
  }
  const pid_t guard = start_guard();
  for (int each = 0; each < 3; ++each) EXPECT_TRUE(rank(each).wait_ended(soon_ms)) << each;
  EXPECT_EQ(end_of(guard), 0);
  EXPECT_EQ(newest_notice(board->header().verdicts).number, 3u);
}

TEST_F(GuardTest, EndsAllThatHangWhereNoTimeIsLearnedYet) {
  add_ranks(5);
  for (int each = 0; each < 5; ++each) {
    if (each < 3) {
      waits(each, for_ever_ms);
    } else {
      computes(each, 200);
    }
    slot(each).members = 5;
  }
  const pid_t guard = start_guard();
  EXPECT_TRUE(rank(3).wait_ended(soon_ms) && rank(4).wait_ended(soon_ms));
  for (int innocent = 0; innocent < 3; ++innocent) computes(innocent, for_ever_ms);  // and slots 3, 4 stay
  ASSERT_TRUE(soon([&] { return flights().size() == 5; }));
  std::vector<int> named;
  for (const Notice& notice : read_notices(board->header().verdicts)) {
    named.push_back(notice.rank);
    EXPECT_THAT(said(), HasSubstr("holdfast guard: " + notice.sentence + "; it is ended\n"));
    EXPECT_THAT(flights()[0].reason, HasSubstr(notice.sentence));
  }
  EXPECT_THAT(named, testing::UnorderedElementsAre(3, 4));
  EXPECT_EQ(end_of(guard, 100), -1);
  EXPECT_TRUE(alive(0) && alive(1) && alive(2));
}

TEST_F(GuardTest, OneThatShowsSignsOfLifeIsLeftAlone) {
  const auto signs = std::vector<std::atomic<std::uint64_t> BoardSlot::*>{
      &BoardSlot::spans_opened, &BoardSlot::device_ops, &BoardSlot::moved_bytes};
  add_ranks(static_cast<int>(signs.size()) + 1);
  waits(0, for_ever_ms);
  for (int each = 1; each <= static_cast<int>(signs.size()); ++each) {
    computes(each, 2'000);
    slot(each).ceiling_ns = for_ever_ms * ms;
  }
  start_guard();
  for (int shown = 0; shown < 30; ++shown) {
    env.sleep_us(100'000);
    for (std::size_t each = 0; each < signs.size(); ++each) ++(slot(static_cast<int>(each) + 1).*signs[each]);
  }
  const std::int64_t shown_ns = env.monotonic_ns();
  for (int each = 0; each < 4; ++each) EXPECT_TRUE(alive(each)) << each;
  for (int each = 1; each < 4; ++each) EXPECT_TRUE(rank(each).wait_ended(soon_ms)) << each;
  EXPECT_GE(env.monotonic_ns() - shown_ns, 1'890 * ms);
  EXPECT_TRUE(alive(0));
  EXPECT_THAT(said(), HasSubstr("; no sign of life for 2."));
}

TEST_F(GuardTest, SignsOfLifeHelpNobodyPastTheCeiling) {
  add_ranks(2);
  waits(0, for_ever_ms);
  computes(1, 1'500);
  slot(1).ceiling_ns = 3'000 * ms;
  start_guard();
  const std::int64_t begun_ns = slot(1).begun_ns;
  while (alive(1) && env.monotonic_ns() - begun_ns < soon_ms * ms) {
    ++slot(1).spans_opened;
    env.sleep_us(20'000);
  }
  EXPECT_FALSE(alive(1));
  EXPECT_GE(env.monotonic_ns() - begun_ns, 3'000 * ms);
  EXPECT_THAT(said(), HasSubstr("there are signs of life, but 3.0 s are the most"));
}

// A child that works in ways that only the kernel sees, until it is killed.
pid_t start_worker(const std::function<void()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  while (true) work();
}

TEST_F(GuardTest, OneThatFaultsPagesOrReadsFilesIsLeftAloneAndOneThatSpinsIsNot) {
  const std::string path = directory / "data";
  ASSERT_TRUE(env.replace_text(path, std::string(1 << 16, 'x')).ok());
  const std::vector<std::function<void()>> works = {
      [] {
        constexpr std::size_t bytes = std::size_t{1} << 20;
        void* const memory =
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) std::_Exit(3);
        for (std::size_t offset = 0; offset < bytes; offset += 4096)
          static_cast<volatile char*>(memory)[offset] = 1;
        ::munmap(memory, bytes);
        ::usleep(10'000);
      },
      [&] {
        static_cast<void>(env.read_text(path).ok());
        ::usleep(10'000);
      },
      [] {}};
  add_ranks(1);
  waits(0, for_ever_ms);
  for (std::size_t each = 0; each < works.size(); ++each) {
    const pid_t worker = start_worker(works[each]);
    const int number = static_cast<int>(ranks.size());
    ranks.push_back(env.processes().find(worker).value());
    slot(number).started_ticks = env.processes().facts(worker)->started_ticks;
    slot(number).launched_rank = number;
    computes(number, 2'000);
    slot(number).ceiling_ns = 9'000 * ms;
    slot(number).process = worker;
  }
  start_guard();
  EXPECT_TRUE(rank(3).wait_ended(soon_ms)) << "it only burns time";
  EXPECT_TRUE(alive(1)) << "it faults pages";
  EXPECT_TRUE(alive(2)) << "it reads";
  EXPECT_LT(env.monotonic_ns() - slot(1).begun_ns, 9'000 * ms);
  EXPECT_TRUE(rank(1).wait_ended(2 * soon_ms) && rank(2).wait_ended(2 * soon_ms)) << "past the ceiling";
  EXPECT_TRUE(alive(0));
}

TEST_F(GuardTest, ThoseThatWaitForStorageAreToldOfOnceAndLeftAlone) {
  settings.storage_quiet_ms = 300;
  add_ranks(3);
  for (int each = 0; each < 3; ++each) {
    computes(each, 100);
    slot(each).ceiling_ns = 6'000 * ms;
    store_text(slot(each).storage_what, "training data");
    slot(each).storage_begun_ns = env.monotonic_ns();
  }
  start_guard();
  ASSERT_TRUE(soon([&] { return said().find("wait for storage for") != std::string::npos; }));
  ASSERT_TRUE(ticks(20));
  EXPECT_THAT(said(),
              HasSubstr("holdfast guard: ranks 0, 1, 2 (host " + env.host_name() + ") wait for storage"));
  EXPECT_EQ(std::ranges::count(said(), '\n'), 1);
  EXPECT_TRUE(alive(0) && alive(1) && alive(2));
  for (int each = 0; each < 3; ++each) slot(each).storage_begun_ns = 0;
  EXPECT_TRUE(soon([&] { return !alive(0) || !alive(1) || !alive(2); })) << "no excuse any more";
}

TEST_F(GuardTest, ADeathGivesTheOthersTheirTimeAnew) {
  add_ranks(3);
  for (int each = 0; each < 3; ++each) computes(each, 1'500);
  start_guard();
  env.sleep_us(250'000);
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  const std::int64_t death_ns = env.monotonic_ns();
  ASSERT_TRUE(soon([&] { return !alive(1) || !alive(2); }));
  EXPECT_GE(env.monotonic_ns() - death_ns, 1'490 * ms);
}

TEST_F(GuardTest, EndsAllWhoWaitForEachOther) {
  add_ranks(3);
  for (int each = 0; each < 3; ++each) waits(each, 100);
  const pid_t guard = start_guard();
  EXPECT_EQ(end_of(guard), 0);
  EXPECT_GE(env.monotonic_ns() - slot(0).begun_ns, 200 * ms);
  EXPECT_FALSE(alive(0) || alive(1) || alive(2));
  EXPECT_THAT(said(), HasSubstr("all ranks wait for each other: rank 0, step 9, for an all-reduce"));
  EXPECT_THAT(said(), HasSubstr("; all ranks of this host are ended\n"));
  EXPECT_EQ(newest_notice(board->header().verdicts).rank, -1);
  EXPECT_THAT(told(), StartsWith("-1 all ranks wait for each other"));
  EXPECT_THAT(flights(), SizeIs(3));
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

TEST_F(GuardTest, ALateTickIsNoEvidence) {
  settings.late_ms = 200;
  add_ranks(2);
  const pid_t guard = start_guard();
  ::kill(guard, SIGSTOP);
  computes(0, 1'000);
  computes(1, 1'000);
  env.sleep_us(1'500'000);
  ::kill(guard, SIGCONT);
  ASSERT_TRUE(ticks(10));
  EXPECT_TRUE(alive(0) && alive(1));
  computes(0, for_ever_ms);
  EXPECT_TRUE(rank(1).wait_ended(soon_ms)) << "it counts anew";
  EXPECT_TRUE(alive(0));
  EXPECT_GE(env.monotonic_ns() - slot(1).begun_ns, 2'450 * ms);
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

TEST_F(GuardTest, WatchesARankThatComesLater) {
  add_ranks(1);
  start_guard();
  add_ranks(1);
  computes(1, 50);
  EXPECT_TRUE(rank(1).wait_ended(soon_ms));
  EXPECT_TRUE(alive(0));
}

TEST_F(GuardTest, TellsOfASpareThatDied) {
  add_ranks(3);
  slot(1).phase = slot(2).phase = static_cast<std::uint32_t>(Phase::spare);
  start_guard();
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  ASSERT_TRUE(rank(0).wait_ended(soon_ms));
  ASSERT_TRUE(ticks(3));
  EXPECT_EQ(newest_notice(board->header().lost_spares).number, 0u) << "it had a seat";
  ASSERT_TRUE(rank(2).signal(SIGKILL).ok());
  ASSERT_TRUE(soon([&] { return newest_notice(board->header().lost_spares).number == 1; }));
  EXPECT_EQ(newest_notice(board->header().lost_spares).sentence, "rank 2 (host " + env.host_name() + ")");
  slot(1).left = 1;
  ASSERT_TRUE(rank(1).signal(SIGKILL).ok());
  ASSERT_TRUE(rank(1).wait_ended(soon_ms));
  env.sleep_us(50'000);
  EXPECT_EQ(newest_notice(board->header().lost_spares).number, 1u) << "it went by itself";
}

TEST_F(GuardTest, WithoutARunDirectoryItWatchesAllTheSame) {
  board->header().run_directory_known = 0;
  add_ranks(2);
  computes(0, 50);
  start_guard();
  EXPECT_TRUE(rank(0).wait_ended(soon_ms));
  EXPECT_THAT(said(), HasSubstr("rank 0"));
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

// One that SIGKILL does not reach, as in a driver that waits for its device.
class HeldProcess final : public Process {
 public:
  explicit HeldProcess(std::unique_ptr<Process> inner) : inner_(std::move(inner)) {}
  std::int64_t id() const override { return inner_->id(); }
  bool wait_ended(std::int64_t timeout_ms) override { return inner_->wait_ended(timeout_ms); }
  std::optional<ProcessEnd> end() override { return inner_->end(); }
  Result<void> signal(int) override { return {}; }
  Result<void> signal_group(int) override { return {}; }

 private:
  std::unique_ptr<Process> inner_;
};

class HoldingEnv final : public ForwardingEnv, public Processes {
 public:
  explicit HoldingEnv(std::int64_t held) : ForwardingEnv(posix_env()), held_(held) {}
  Processes& processes() override { return *this; }
  Result<std::unique_ptr<Process>> start(const ProcessStart& start) override {
    return posix_env().processes().start(start);
  }
  Result<std::unique_ptr<Process>> find(std::int64_t id) override {
    Result<std::unique_ptr<Process>> found = posix_env().processes().find(id);
    if (!found.ok() || id != held_) return found;
    return std::unique_ptr<Process>(std::make_unique<HeldProcess>(std::move(found).value()));
  }
  std::optional<ProcessFacts> facts(std::int64_t id) override { return posix_env().processes().facts(id); }
  std::vector<std::int64_t> list() override { return posix_env().processes().list(); }
  bool wait_any_ended(std::span<Process* const> processes, std::int64_t timeout_ms) override {
    for (std::int64_t passed_ms = 0; passed_ms < timeout_ms; ++passed_ms) {
      for (Process* process : processes) {
        if (process->wait_ended(0)) return true;
      }
      sleep_us(1'000);
    }
    return false;
  }

 private:
  std::int64_t held_;
};

TEST_F(GuardTest, AProcessThatDoesNotDieEndsTheHost) {
  settings.kill_patience_ms = 100;
  add_ranks(3);
  waits(0, 50);
  waits(2, 50);
  computes(1, 50);
  HoldingEnv holding(rank(1).id());
  start_guard(holding);
  EXPECT_TRUE(rank(0).wait_ended(soon_ms));
  EXPECT_TRUE(rank(2).wait_ended(soon_ms));
  EXPECT_TRUE(alive(1));
  EXPECT_TRUE(soon([&] { return said().find("does not die of SIGKILL") != std::string::npos; }));
}

}  // namespace
}  // namespace holdfast
