#include "tests/support/faulty_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

TEST(FaultyEnv, CountsAndFailsTheChosenOperationOnce) {
  const TemporaryDirectory directory;
  FaultyEnv env(posix_env());
  env.inject({.operation = Operation::sync, .path_contains = "second", .reason = EIO});
  auto first = env.open(directory / "first", OpenMode::create).value();
  auto second = env.open(directory / "second", OpenMode::create).value();
  EXPECT_TRUE(first->sync().ok());
  const auto failed = second->sync();
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("second: Input/output error"));
  EXPECT_TRUE(second->sync().ok());
  EXPECT_EQ(env.count(Operation::open), 2u);
  EXPECT_EQ(env.count(Operation::sync), 3u);
  EXPECT_EQ(env.count(), 5u);
  EXPECT_EQ(env.failure_count(), 1u);
}

TEST(FaultyEnv, ShortWriteLeavesHalfOfTheBytes) {
  const TemporaryDirectory directory;
  FaultyEnv env(posix_env());
  env.inject({.operation = Operation::write, .for_ever = true, .short_write = true, .reason = ENOSPC});
  auto file = env.open(directory / "file", OpenMode::create).value();
  const std::string text = "0123456789";
  const auto written = file->write_at(0, std::as_bytes(std::span(text)));
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().message, HasSubstr("the disk is full"));
  EXPECT_EQ(posix_env().read_text(directory / "file").value(), "01234");
  EXPECT_FALSE(file->write_at(0, std::as_bytes(std::span(text))).ok()) << "for ever";
  env.clear_faults();
  EXPECT_TRUE(file->write_at(0, std::as_bytes(std::span(text))).ok());
}

// The protocol of replace_text, stopped at each of its steps: a reader sees the old or the new text, never
// another.
TEST(FaultyEnv, ReplacementIsOldOrNewAtEveryStep) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  std::uint64_t at = 1;
  for (bool finished = false; !finished; ++at) {
    ASSERT_TRUE(posix_env().replace_text(path, "old").ok());
    FaultyEnv env(posix_env());
    env.inject({.at = at, .for_ever = true, .short_write = true});
    finished = env.replace_text(path, "new").ok();
    const std::string text = posix_env().read_text(path).value();
    EXPECT_TRUE(text == "new" || (text == "old" && !finished)) << text;
  }
  EXPECT_EQ(at, 7u)
      << "open, write, sync, rename and directory sync fail one after the other; then it succeeds";
}

}  // namespace
}  // namespace holdfast::test
