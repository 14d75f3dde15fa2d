// In a process of its own, whose mounts go with it.
#include "runtime/os/slow_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "runtime/os/mounts.h"
#include "tests/support/leave.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

constexpr int no_fuse = 77;

// Runs the body in a child of this process; what it expects is its own.
int code_of_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) test::leave(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// Does what a run does to its directory. Returns the line of the first call with another outcome; 0: there is none.
int use(const std::string& directory) {
  Env& env = posix_env();
  const std::string folder = directory + "/checkpoints/step-1", file = folder + "/shard";
  const std::string text(3'000'000, 'x');  // more than one write
  if (!env.make_directories(folder).ok()) return __LINE__;
  if (env.status(file)->exists) return __LINE__;
  {
    Result<std::unique_ptr<File>> shard = env.open(file, OpenMode::create);
    if (!shard.ok() || !(*shard)->allocate(text.size()).ok()) return __LINE__;
    if (!(*shard)->write_at(0, std::as_bytes(std::span(text))).ok()) return __LINE__;
    if (!(*shard)->sync().ok() || !env.sync_directory(folder).ok()) return __LINE__;
  }
  if (!env.rename(folder, directory + "/whole").ok() || env.status(file)->exists) return __LINE__;
  if (env.read_text(directory + "/whole/shard").value() != text) return __LINE__;
  for (const char* line : {"one", "two"})
    if (!env.append_line(directory + "/log", line).ok()) return __LINE__;
  if (env.read_text(directory + "/log").value() != "one\ntwo\n") return __LINE__;
  if (!env.replace_text(directory + "/status", "first").ok()) return __LINE__;
  if (!env.replace_text(directory + "/status", "second").ok()) return __LINE__;
  if (env.read_text(directory + "/status").value() != "second") return __LINE__;
  if (!env.remove_tree(directory + "/checkpoints").ok()) return __LINE__;
  const std::vector<std::string> names = {"before", "log", "status", "whole"};
  return env.list(directory).value() == names ? 0 : __LINE__;
}

TEST(SlowFiles, AreTheSameFilesWithAndWithoutTheView) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(posix_env().replace_text(directory / "before", "text").ok());
  const int line = code_of_process([&] {
    if (!posix_mounts().begin_own().ok() || !why_no_slow_files().empty()) return no_fuse;
    const Result<std::unique_ptr<SlowFiles>> files = mount_slow_files(directory.path());
    if (!files.ok()) return no_fuse;
    return use(directory.path());
  });
  if (line == no_fuse) HF_SKIP_OUTSIDE_CI("this process may not have FUSE");
  EXPECT_EQ(line, 0);
  EXPECT_THAT(posix_env().list(directory.path()).value(),
              testing::ElementsAre("before", "log", "status", "whole"));
  EXPECT_EQ(posix_env().read_text(directory / "status").value(), "second");
  EXPECT_EQ(posix_env().read_text(directory / "whole/shard")->size(), 3'000'000U);
}

// Calls of another process are slow, and those of the one that has made the view are not.
TEST(SlowFiles, ACallTakesAsLongAsIsSaidUntilItIsOver) {
  const TemporaryDirectory directory;
  const std::string file = directory / "tokens";
  ASSERT_TRUE(posix_env().replace_text(file, "text").ok());
  const auto read_ms = [&] {
    const std::int64_t begin_ns = posix_env().monotonic_ns();
    const bool is_right = posix_env().read_text(file).value() == "text";
    return is_right ? (posix_env().monotonic_ns() - begin_ns) / 1'000'000 : 1'000'000;
  };
  const int code = code_of_process([&] {
    if (!posix_mounts().begin_own().ok()) return no_fuse;
    const Result<std::unique_ptr<SlowFiles>> files = mount_slow_files(file);  // of one file
    if (!files.ok()) return no_fuse;
    (*files)->slow_down(50);
    if (read_ms() >= 50) return 1;
    if (code_of_process([&] { return read_ms() >= 100 ? 0 : 1; }) != 0)
      return 2;  // at least an open and a read
    (*files)->slow_down(3'600'000);
    const pid_t child = ::fork();
    if (child == 0) test::leave(read_ms() < 60'000 ? 0 : 1);
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) != 0) return 3;
    posix_env().sleep_us(20'000);
    (*files)->slow_down(0);
    return ::waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 4;
  });
  if (code == no_fuse) HF_SKIP_OUTSIDE_CI("this process may not have FUSE");
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace holdfast::test
