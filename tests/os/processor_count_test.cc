#include "runtime/os/machine_facts.h"
#include "runtime/os/processes.h"
#include "tests/support/leave.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

namespace holdfast::test {
namespace {

TEST(ProcessorCount, QuotaIsRoundedUp) {
  EXPECT_EQ(processors_of_quota("max 100000\n"), 0);
  EXPECT_EQ(processors_of_quota("200000 100000\n"), 2);
  EXPECT_EQ(processors_of_quota("150000 100000"), 2);
  EXPECT_EQ(processors_of_quota("1000 100000"), 1);
  EXPECT_EQ(processors_of_quota("9223372036854775807 1"), 1 << 20);
}

TEST(ProcessorCount, TextThatIsNoQuotaMeansNoLimit) {
  for (const char* text : {"", "100000", "100000 ", "x y", "-5 100000", "5 0", "5 -1"}) {
    EXPECT_EQ(processors_of_quota(text), 0) << text;
  }
}

TEST(ProcessorCount, FollowsTheAffinityMask) {
  EXPECT_GE(available_processors(), 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) test::leave(100);
    test::leave(available_processors());
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(WEXITSTATUS(state), 1);
}

// Of a child, so that the binding is not that of the tests after it.
TEST(ProcessorCount, IsThatOfAllThreadsOfAProcessThatBindsItself) {
  const std::vector<int> own = posix_processes().own_processors();
  ASSERT_FALSE(own.empty());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<bool> is_bound = false;
    std::vector<int> before, after;
    std::thread thread([&] {
      before = posix_processes().own_processors();
      while (!is_bound) std::this_thread::yield();
      after = posix_processes().own_processors();
    });
    const std::vector<int> last = {own.back()};
    const bool done = posix_processes().run_on(last).ok();
    is_bound = true;
    thread.join();
    const bool right = done && (before == own || before == last) && after == last &&
                       posix_processes().own_processors() == last && available_processors() == 1;
    test::leave(right ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(WEXITSTATUS(state), 0);
  const int none_has_it = (1 << 20) - 1;
  const Result<void> refused = posix_processes().run_on(std::vector<int>{none_has_it});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("sched_setaffinity"), std::string::npos) << refused.error().message;
  EXPECT_EQ(posix_processes().own_processors(), own);
}

}  // namespace
}  // namespace holdfast::test
