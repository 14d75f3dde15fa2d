#include "runtime/os/signals.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

namespace holdfast::test {
namespace {

// On a thread of its own, whose mask ends with it; the signals are sent to that thread alone.
TEST(Signals, AreReadOneByOneAndEndNobody) {
  std::thread([] {
    const Result<std::unique_ptr<SignalWatcher>> watcher = SignalWatcher::watch({SIGUSR1, SIGUSR2});
    ASSERT_TRUE(watcher.ok()) << watcher.error().message;
    EXPECT_EQ((*watcher)->poll(), 0);
    ASSERT_EQ(pthread_kill(pthread_self(), SIGUSR2), 0);
    EXPECT_EQ((*watcher)->poll(), SIGUSR2);
    EXPECT_EQ((*watcher)->poll(), 0);
  }).join();
}

TEST(Signals, APipeThatNobodyReadsIsAnErrorOfTheWrite) {
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  ignore_closed_pipes();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::close(ends[1]);
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace holdfast::test
