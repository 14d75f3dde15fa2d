// A close that fails, as NFS and quotas have it when what was written before does not fit: here close(2)
// itself is replaced, for one file at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string>

#include "runtime/run/line_log.h"
#include "tests/support/temporary_directory.h"

#ifndef __SANITIZE_THREAD__  // which has a close of its own

namespace {

thread_local std::string failing_path;  // NOLINT: what C calls has no other way to learn it

bool leads_to_failing_path(int descriptor) {
  if (failing_path.empty()) return false;
  std::array<char, 4096> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  return length > 0 && failing_path == std::string(target.data(), static_cast<std::size_t>(length));
}

}  // namespace

extern "C" int close(int descriptor) {
  const bool fails = leads_to_failing_path(descriptor);
  const long result = ::syscall(SYS_close, descriptor);
  if (!fails) return static_cast<int>(result);
  errno = EDQUOT;
  return -1;
}

namespace holdfast::test {
namespace {

using testing::EndsWith;
using testing::StartsWith;

class FailedClose {
 public:
  explicit FailedClose(const std::string& path) { failing_path = std::filesystem::canonical(path); }
  ~FailedClose() { failing_path.clear(); }
  FailedClose(const FailedClose&) = delete;
  FailedClose& operator=(const FailedClose&) = delete;
};

TEST(FailedClose, OfALineIsAFailedWrite) {
  const TemporaryDirectory directory;
  const std::string path = directory / "log";
  Env& env = posix_env();
  ASSERT_TRUE(env.append_line(path, "one").ok());
  {
    const FailedClose failed(path);
    const Result<void> written = env.append_line(path, "two");
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ExitCode::checkpoint);
    EXPECT_EQ(written.error().message, "cannot append to " + path +
                                           ": the disk is full (Disk quota exceeded); free space there and "
                                           "start again");
    EXPECT_TRUE(env.append_line(directory / "other", "one").ok());
  }
  EXPECT_TRUE(env.append_line(path, "three").ok());
}

TEST(FailedClose, TheLineIsTriedAgain) {
  const TemporaryDirectory directory;
  const std::string path = directory / "log";
  LineLog log(posix_env(), path, {.bytes = 1000});
  ASSERT_TRUE(log.append("one").ok());
  {
    const FailedClose failed(path);
    EXPECT_TRUE(log.append("two").ok()) << "it waits";
    EXPECT_FALSE(log.flush().ok());
  }
  ASSERT_TRUE(log.append("three").ok());
  const Result<std::string> text = posix_env().read_text(path);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, StartsWith("one\ntwo\n"));
  EXPECT_THAT(*text, EndsWith("\ntwo\nthree\n")) << "the last try worked";
}

}  // namespace
}  // namespace holdfast::test

#endif
