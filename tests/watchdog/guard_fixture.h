// Fixture for tests of the guard: it runs on a board whose ranks the test controls.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/os/processes.h"
#include "tests/support/leave.h"
#include "tests/support/temporary_directory.h"
#include "watchdog/board.h"
#include "watchdog/flight_record.h"
#include "watchdog/guard.h"

namespace holdfast::test {

// Ranks are programs that sleep, and what they would write on the board the test writes.
class GuardTest : public testing::Test {
 protected:
  static constexpr std::int64_t ms = 1'000'000;
  static constexpr std::int64_t soon_ms = 10'000, for_ever_ms = 1'000'000;

  GuardTest() : board(Board::open_or_create(env, name, {.slots = 6, .ring_spans = 4}).value()) {
    write_run_directory(board->header(), directory.path());
    settings = {.board = name, .mind = {.tick_ms = 5, .late_ms = 2'000, .kill_patience_ms = for_ever_ms}};
    settings.on_hang = [this](int rank, const std::string& sentence) {
      static_cast<void>(env.append_line(directory / "told", fmt::format("{} {}", rank, sentence)).ok());
    };
    settings.on_end = [this](const RankDeath& death) {
      static_cast<void>(
          env.append_line(directory / "ends", fmt::format("{} {} {}", death.rank, death.process, death.cause))
              .ok());
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
    for (int each = 0; each < count; ++each) add_rank({"sleep", "1000"});
  }
  void add_rank(const std::vector<std::string>& program) {
    const int rank = static_cast<int>(ranks.size());
    ranks.push_back(env.processes().start({.arguments = program}).value());
    slot(rank).started_ticks = env.processes().facts(ranks.back()->id())->started_ticks;
    slot(rank).launched_rank = rank;
    computes(rank, for_ever_ms);
    slot(rank).process = ranks.back()->id();
  }
  void computes(int rank, std::int64_t deadline_ms) {
    slot(rank).phase = static_cast<std::uint32_t>(Phase::step);
    slot(rank).step = 9;
    slot(rank).wait_begun_ns = 0;
    slot(rank).deadline_ns = deadline_ms * ms;
    slot(rank).begun_ns = slot(rank).heartbeat_ns = env.monotonic_ns();
  }
  // Lets the rank wait for ever, and look all the time.
  void waits(int rank, std::int64_t deadline_ms) {
    computes(rank, deadline_ms);
    store_text(slot(rank).wait_operation, "an all-reduce");
    slot(rank).heartbeat_ns = env.monotonic_ns() + for_ever_ms * ms;
    slot(rank).wait_begun_ns = env.monotonic_ns();
  }
  pid_t start_guard(Env& own) {
    std::fflush(nullptr);
    const pid_t guard = fork();
    if (guard == 0) {
      if (std::freopen((directory.path() + "/stderr").c_str(), "a", stderr) == nullptr) test::leave(2);
      setvbuf(stderr, nullptr, _IONBF, 0);
      if (in_guard) in_guard();
      test::leave(run_guard(own, settings).ok() ? 0 : 1);
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
  // Returns the exit code of the guard; -1: it goes on.
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
  // By on_hang.
  std::string reported() {
    const Result<std::string> text = env.read_text(directory / "told");
    return text.ok() ? *text : "";
  }
  // By on_end.
  std::string ends() {
    const Result<std::string> text = env.read_text(directory / "ends");
    return text.ok() ? *text : "";
  }
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
  std::function<void()> in_guard;  // what the process of a guard does first
  GuardSettings settings;
};

}  // namespace holdfast::test
