// Tests which ranks a guard ends because they hang, and which it leaves alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/processes.h"
#include "tests/support/forwarding_env.h"
#include "tests/watchdog/guard_fixture.h"
#include "tests/watchdog/watch_env.h"
#include "watchdog/board.h"
#include "watchdog/flight_record.h"

namespace holdfast {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

class GuardVerdictTest : public GuardTest {};

TEST_F(GuardVerdictTest, EndsTheOneThatHangs) {
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

TEST_F(GuardVerdictTest, EndsAStoppedOneAlthoughItSaysThatItWaits) {
  add_ranks(3);
  for (int each = 0; each < 3; ++each) waits(each, 200);
  ASSERT_TRUE(rank(1).signal(SIGSTOP).ok());
  start_guard();
  ASSERT_TRUE(rank(1).wait_ended(soon_ms));
  EXPECT_THAT(newest_notice(board->header().verdicts).sentence, HasSubstr("it is stopped"));
  EXPECT_TRUE(alive(0) && alive(2));
}

TEST_F(GuardVerdictTest, EndsAllThatAreStopped) {
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

TEST_F(GuardVerdictTest, EndsAllThatHangWhereNoTimeIsLearnedYet) {
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

TEST_F(GuardVerdictTest, OneThatShowsSignsOfLifeIsLeftAlone) {
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

TEST_F(GuardVerdictTest, SignsOfLifeHelpNobodyPastTheCeiling) {
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

// Starts a child that works in ways that only the kernel sees, until it is killed.
pid_t start_worker(const std::function<void()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  while (true) work();
}

TEST_F(GuardVerdictTest, OneThatFaultsPagesOrReadsFilesIsLeftAloneAndOneThatSpinsIsNot) {
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

TEST_F(GuardVerdictTest, ThoseThatWaitForStorageAreToldOfOnceAndLeftAlone) {
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

TEST_F(GuardVerdictTest, ADeathGivesTheOthersTheirTimeAnew) {
  add_ranks(3);
  for (int each = 0; each < 3; ++each) computes(each, 1'500);
  start_guard();
  env.sleep_us(250'000);
  ASSERT_TRUE(rank(0).signal(SIGKILL).ok());
  const std::int64_t death_ns = env.monotonic_ns();
  ASSERT_TRUE(soon([&] { return !alive(1) || !alive(2); }));
  EXPECT_GE(env.monotonic_ns() - death_ns, 1'490 * ms);
}

TEST_F(GuardVerdictTest, EndsAllWhoWaitForEachOther) {
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

TEST_F(GuardVerdictTest, ALateTickIsNoEvidence) {
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

// Process that SIGKILL does not reach, as in a driver that waits for its device.
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

TEST_F(GuardVerdictTest, AProcessThatDoesNotDieEndsTheHost) {
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
