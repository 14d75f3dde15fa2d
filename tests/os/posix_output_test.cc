// The streams of a process that is forked for it, so that the test's own stay what they are.
#include "runtime/os/posix_output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/console.h"
#include "tests/support/leave.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  // Until there is nobody left who could write, or `bytes` are there.
  std::string read(std::size_t bytes = std::string::npos) {
    ::close(std::exchange(ends[1], -1));
    std::string text;
    std::array<char, 4096> part{};
    while (text.size() < bytes) {
      const ssize_t got = ::read(ends[0], part.data(), part.size());
      if (got <= 0) break;
      text.append(part.data(), static_cast<std::size_t>(got));
    }
    return text;
  }
  std::array<int, 2> ends{-1, -1};
};

// A process with these streams whose exit code is that of `body`.
pid_t process(int out, int err, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  test::leave(body());
}

int code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

constexpr int line_count = 30'000;  // far more than a pipe and the memory for them hold

int print_lines() {
  for (int i = 0; i < line_count; ++i)
    print_line("line {:05d} of a run that has very much to say, more than anybody will", i);
  return 0;
}

TEST(OutputThread, WhatIsPrintedArrivesInOrder) {
  Pipe pipe;
  const pid_t child = process(pipe.ends[1], pipe.ends[1], [] {
    OutputThread output;
    print_line("one");
    print_message("two");
    std::fputs("three\n", stderr);
    fmt::print("four\n");
    return 0;
  });
  EXPECT_EQ(pipe.read(), "one\nholdfast: two\nthree\nfour\n");
  EXPECT_EQ(code_of(child), 0);
}

// A sentence is out before its process is, however it ends.
// As libraries do that were loaded while it was there.
TEST(OutputThread, AStreamThatSomebodyHasKeptGoesOn) {
  Pipe pipe;
  const pid_t child = process(pipe.ends[1], pipe.ends[1], [] {
    std::FILE* kept = nullptr;
    {
      const OutputThread output;
      kept = stderr;
      print_message("before");
    }
    std::vector<std::string> others(1000);  // whose memory was the stream's, if it was freed
    for (std::size_t i = 0; i < others.size(); ++i) others[i].assign(400 + i % 200, 'x');
    write_to_console(kept, "after\n");
    return 0;
  });
  EXPECT_EQ(pipe.read(), "holdfast: before\nafter\n");
  EXPECT_EQ(code_of(child), 0);
}

TEST(OutputThread, ASentenceBeforeASuddenEndIsThere) {
  Pipe pipe;
  const pid_t child = process(pipe.ends[1], pipe.ends[1], [] {
    OutputThread output;
    print_message("this is the end");
    std::raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(pipe.read(), "holdfast: this is the end\n");
  EXPECT_EQ(code_of(child), 1000 + SIGKILL);
}

// Nobody reads until all is printed. Counts stand where the lines would.
TEST(OutputThread, APipeThatNobodyReadsHoldsUpNobodyAndCostsLinesThatAreCounted) {
  Pipe pipe, done;
  const pid_t child = process(pipe.ends[1], pipe.ends[1], [&] {
    OutputThread output;
    print_lines();
    static_cast<void>(::write(done.ends[1], "x", 1));
    return output.drain() ? 0 : 7;
  });
  EXPECT_EQ(done.read(1), "x") << "it has printed all, with nobody who reads";
  const std::string text = pipe.read();
  EXPECT_EQ(code_of(child), 0);
  std::istringstream printed(text);
  int next = 0, gaps = 0;
  for (std::string line; std::getline(printed, line);) {
    if (line.starts_with("holdfast: ")) {
      EXPECT_THAT(line, HasSubstr("lines are left out here"));
      next += std::stoi(line.substr(10));
      ++gaps;
    } else {
      ASSERT_TRUE(line.starts_with(fmt::format("line {:05d} of a run", next))) << line;
      ++next;
    }
  }
  EXPECT_EQ(next, line_count);
  EXPECT_GT(gaps, 0);
}

TEST(OutputThread, TheEndDoesNotWaitForAReaderForEver) {
  Pipe pipe;
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = process(pipe.ends[1], pipe.ends[1], [] {
    OutputThread output;
    return print_lines();
  });
  EXPECT_EQ(code_of(child), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// As behind a pipe whose reader has gone, where SIGPIPE is ignored.
TEST(OutputThread, WhatNobodyCanReadAnyMoreIsForgotten) {
  Pipe pipe;
  const pid_t child = process(pipe.ends[1], pipe.ends[1], [&] {
    std::signal(SIGPIPE, SIG_IGN);
    ::close(pipe.ends[0]);
    OutputThread output;
    print_lines();
    return output.drain() ? 3 : 4;
  });
  ::close(std::exchange(pipe.ends[0], -1));
  EXPECT_EQ(code_of(child), 3);
}

}  // namespace
}  // namespace holdfast::test
