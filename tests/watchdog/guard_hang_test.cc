// Tests that a guard sees what real processes are at, and ends those that its mind says hang. Whom it says,
// and when: guard_mind_test.cc. Nothing here depends on how fast the machine is: limits are either short and
// certain to pass, or for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "runtime/os/processes.h"
#include "tests/watchdog/guard_fixture.h"
#include "tests/watchdog/watch_env.h"
#include "watchdog/board.h"
#include "watchdog/flight_record.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

class GuardHangTest : public GuardTest {};

TEST_F(GuardHangTest, EndsTheOneThatHangs) {
  add_ranks(4);
  for (const int innocent : {0, 1, 3}) waits(innocent, for_ever_ms);
  computes(2, 100);
  start_guard();
  ASSERT_TRUE(rank(2).wait_ended(soon_ms));
  EXPECT_GE(env.monotonic_ns() - slot(2).begun_ns, 100 * ms);
  ASSERT_TRUE(soon([&] { return flights().size() == 4; }));
  const Notice hang = newest_notice(board->header().hangs);
  EXPECT_EQ(hang.rank, 2);
  EXPECT_THAT(hang.sentence, HasSubstr("rank 2 (host " + env.host_name() + ") hangs: step 9 for "));
  EXPECT_EQ(flights()[0].reason, hang.sentence);
  ASSERT_TRUE(ticks(20));
  EXPECT_EQ(said(), "holdfast guard: " + hang.sentence + "; it is ended\n");
  EXPECT_EQ(reported(), "2 " + hang.sentence + "\n");
  EXPECT_TRUE(alive(0) && alive(1) && alive(3));
  EXPECT_EQ(newest_notice(board->header().hangs).number, 1u);
}

TEST_F(GuardHangTest, EndsAStoppedOneAlthoughItSaysThatItWaitsAndLooks) {
  add_ranks(3);
  waits(0, for_ever_ms);
  waits(1, 50);
  waits(2, for_ever_ms);
  ASSERT_TRUE(rank(1).signal(SIGSTOP).ok());
  start_guard();
  ASSERT_TRUE(rank(1).wait_ended(soon_ms));
  EXPECT_THAT(newest_notice(board->header().hangs).sentence, HasSubstr("it is stopped"));
  EXPECT_TRUE(alive(0) && alive(2));
}

TEST_F(GuardHangTest, EndsAStoppedOneInAPhaseThatMayTakeLong) {
  add_ranks(1);
  computes(0, for_ever_ms);
  slot(0).phase = static_cast<std::uint32_t>(Phase::save);
  slot(0).ceiling_ns = for_ever_ms * ms;
  slot(0).floor_ns = 50 * ms;
  ASSERT_TRUE(rank(0).signal(SIGSTOP).ok());
  start_guard();
  ASSERT_TRUE(rank(0).wait_ended(soon_ms));
  EXPECT_THAT(newest_notice(board->header().hangs).sentence, HasSubstr("hangs: save, step 9 for "));
  EXPECT_THAT(newest_notice(board->header().hangs).sentence,
              HasSubstr("it is stopped, which it may be for 50 ms"));
}

TEST_F(GuardHangTest, EndsAllWhoWaitForEachOther) {
  add_ranks(3);
  for (int each = 0; each < 3; ++each) waits(each, 50);
  const pid_t guard = start_guard();
  EXPECT_EQ(end_of(guard), 0);
  EXPECT_GE(env.monotonic_ns() - slot(0).begun_ns, 100 * ms);
  EXPECT_FALSE(alive(0) || alive(1) || alive(2));
  EXPECT_THAT(said(), HasSubstr("all ranks wait for each other: rank 0, step 9, for an all-reduce"));
  EXPECT_THAT(said(), HasSubstr("; all ranks of this host are ended\n"));
  EXPECT_EQ(newest_notice(board->header().hangs).rank, -1);
  EXPECT_THAT(reported(), StartsWith("-1 all ranks wait for each other"));
  EXPECT_THAT(flights(), SizeIs(3));
}

// A guard that was stopped sees by its clock that it was, and the time until then counts for nobody.
TEST_F(GuardHangTest, ATickThatComesLateIsSeen) {
  constexpr std::int64_t deadline_ms = 400;
  settings.mind.late_ms = 300;
  add_ranks(2);
  waits(0, for_ever_ms);
  const pid_t guard = start_guard();
  ::kill(guard, SIGSTOP);
  computes(1, deadline_ms);
  env.sleep_us(600'000);
  EXPECT_TRUE(alive(1));
  const std::int64_t continued_ns = env.monotonic_ns();
  ::kill(guard, SIGCONT);
  EXPECT_TRUE(rank(1).wait_ended(soon_ms));
  EXPECT_GE(env.monotonic_ns() - continued_ns, deadline_ms * ms);
  EXPECT_TRUE(alive(0));
}

// Starts a child that says once that it works, and works in a way that only the kernel sees until it is
// killed.
pid_t start_worker(const std::function<void()>& work) {
  std::array<int, 2> ready = {};
  EXPECT_EQ(::pipe(ready.data()), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    work();
    if (::write(ready[1], "1", 1) != 1) std::_Exit(3);
    while (true) work();
  }
  char said = 0;
  EXPECT_EQ(::read(ready[0], &said, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST_F(GuardHangTest, SeesThatOneFaultsPagesAndOneReadsFilesAndThatOneOnlyBurnsTime) {
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
  for (std::size_t each = 0; each < works.size(); ++each) {
    const pid_t worker = start_worker(works[each]);
    const int number = static_cast<int>(ranks.size());
    ranks.push_back(env.processes().find(worker).value());
    slot(number).started_ticks = env.processes().facts(worker)->started_ticks;
    slot(number).launched_rank = number;
    computes(number, for_ever_ms);
    slot(number).begun_ns -= for_ever_ms / 2 * ms;  // so long ago that the guard looks into /proc
    slot(number).process = worker;
  }
  start_guard();
  EXPECT_TRUE(soon([&] { return slot(0).life_ns != 0 && slot(1).life_ns != 0; }));
  ASSERT_TRUE(ticks(2));
  EXPECT_EQ(slot(2).life_ns, 0) << "it only burns time";
}

}  // namespace
}  // namespace holdfast::test
