// What is said while nobody can hear it.
#include "runtime/os/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "runtime/os/posix_start.h"
#include "runtime/os/signals.h"
#include "tests/support/leave.h"

namespace holdfast::test {
namespace {

const std::string long_line(100'000, 'x');  // more than a stream keeps for later

// On both streams; ends with 0 when nothing but that has happened.
[[noreturn]] void speak() {
  for (int i = 0; i < 3; ++i) {
    print_line("step {}", i);
    print_message("{}", long_line);
    print_line("{}", long_line);
  }
  test::leave(0);
}

TEST(TellDeathTest, ADiskThatIsFull) {
  const auto speak_to_full_disk = [] {
    const int full = ::open("/dev/full", O_WRONLY);
    ::dup2(full, STDOUT_FILENO);
    ::dup2(full, STDERR_FILENO);
    speak();
  };
  EXPECT_EXIT(speak_to_full_disk(), testing::ExitedWithCode(0), "");
}

TEST(TellDeathTest, AReaderThatIsGone) {
  const auto speak_to_nobody = [] {
    ignore_closed_pipes();
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) test::leave(1);
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(pipe[1], STDERR_FILENO);
    ::close(pipe[0]);
    speak();
  };
  EXPECT_EXIT(speak_to_nobody(), testing::ExitedWithCode(0), "");
}

TEST(TellDeathTest, WhatNobodyReadsIsThrownAway) {
  const auto replace = [] {
    ignore_closed_pipes();
    std::array<int, 2> read{}, unread{};
    if (::pipe(read.data()) != 0 || ::pipe(unread.data()) != 0) test::leave(1);
    ::dup2(read[1], STDOUT_FILENO);
    ::dup2(unread[1], STDERR_FILENO);
    ::close(unread[0]);
    replace_unread_streams();
    if (::write(STDERR_FILENO, "x", 1) != 1) test::leave(2);
    char byte = 0;
    const bool kept = ::write(STDOUT_FILENO, "y", 1) == 1 && ::read(read[0], &byte, 1) == 1 && byte == 'y';
    test::leave(kept ? 0 : 3);
  };
  EXPECT_EXIT(replace(), testing::ExitedWithCode(0), "");
}

TEST(TellDeathTest, AStreamThatIsClosedIsNoFileOpenedLater) {
  const auto open_a_file = [] {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(stream);
    replace_closed_streams();
    if (::open("/dev/null", O_WRONLY) <= STDERR_FILENO) test::leave(1);
    if (::write(STDOUT_FILENO, "x", 1) >= 0 || ::write(STDERR_FILENO, "x", 1) >= 0) test::leave(2);
    speak();
  };
  EXPECT_EXIT(open_a_file(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace holdfast::test
