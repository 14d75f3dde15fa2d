#include "runtime/run/log_reader.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "runtime/run/event_log.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class EventPartsTest : public testing::Test {
 protected:
  // Events number `first` to `last`, of 40 bytes or so each.
  static void write(Env& env, const std::string& path, std::int64_t first, std::int64_t last) {
    EventLog log(env, path, /*rotate_bytes=*/100);
    for (std::int64_t i = first; i <= last; ++i) log.write(EventLine().begin("e", 1).field("number", i));
  }
  static std::vector<std::string> lines_of(const std::string& file) {
    const Result<std::string> text = posix_env().read_text(file);
    std::vector<std::string> lines;
    std::istringstream stream(text.ok() ? *text : "");
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  // In the order of the parts.
  static std::vector<std::string> all_lines(const std::string& path) {
    std::vector<std::string> lines;
    const auto add = [&](const std::string& file) {
      for (std::string& line : lines_of(file)) lines.push_back(std::move(line));
    };
    const Result<std::vector<std::uint64_t>> numbers = event_parts(posix_env(), path);
    EXPECT_TRUE(numbers.ok());
    for (const std::uint64_t number : *numbers) add(event_part(path, number));
    add(path);
    return lines;
  }
  static std::vector<std::string> expected(std::int64_t last) {
    std::vector<std::string> lines;
    for (std::int64_t i = 1; i <= last; ++i)
      lines.push_back(fmt::format(R"({{"event":"e","time_us":1,"number":{}}})", i));
    return lines;
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_ / "events.jsonl";
};

TEST_F(EventPartsTest, ALogThatGrowsTooLargeBecomesAPart) {
  write(posix_env(), path_, 1, 7);
  EXPECT_THAT(event_parts(posix_env(), path_).value(), ElementsAre(1, 2));
  EXPECT_EQ(lines_of(directory_ / "events-0001.jsonl").size(), 3U);
  EXPECT_EQ(lines_of(directory_ / "events-0002.jsonl").size(), 3U);
  EXPECT_EQ(lines_of(path_).size(), 1U);
  write(posix_env(), path_, 8, 12);  // another process goes on
  EXPECT_THAT(event_parts(posix_env(), path_).value(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(all_lines(path_), expected(12));
}

TEST_F(EventPartsTest, WithoutASizeItGrowsForEver) {
  EventLog log(posix_env(), path_);
  for (int i = 1; i <= 50; ++i) log.write(EventLine().begin("e", 1).field("number", i));
  EXPECT_THAT(event_parts(posix_env(), path_).value(), IsEmpty());
  EXPECT_EQ(lines_of(path_), expected(50));
}

TEST_F(EventPartsTest, OtherFilesAreNoParts) {
  for (const char* name :
       {"events-1.jsonl", "events-.jsonl", "events-0001.json", "events-00x1.jsonl", "events.jsonl",
        "other-0001.jsonl", "events-0003.jsonl", "events-12345.jsonl", "events-00003.jsonl"}) {
    ASSERT_TRUE(posix_env().replace_text(directory_ / name, "").ok());
  }
  EXPECT_THAT(event_parts(posix_env(), path_).value(), ElementsAre(3, 12345));
  ASSERT_TRUE(rotate_events(posix_env(), path_).ok());
  EXPECT_THAT(event_parts(posix_env(), path_).value(), ElementsAre(3, 12345, 12346));
}

// A process dies in front of each call of the system: nothing works any more. Another goes on behind the
// last line that is there.
TEST_F(EventPartsTest, AKillAtAnyMomentLosesAndDoublesNoLine) {
  constexpr std::int64_t all = 10;
  std::uint64_t kills = 0;
  for (bool died = true; died; ++kills) {
    SCOPED_TRACE(kills + 1);
    const TemporaryDirectory directory;
    const std::string path = directory / "events.jsonl";
    FaultyEnv env(posix_env());
    env.inject({.at = kills + 1, .for_ever = true, .reason = EIO});
    testing::internal::CaptureStderr();
    write(env, path, 1, all);
    static_cast<void>(testing::internal::GetCapturedStderr());
    died = env.failure_count() > 0;
    const std::vector<std::string> before = all_lines(path);
    EXPECT_EQ(before, expected(std::ssize(before)));
    write(posix_env(), path, std::ssize(before) + 1, all);
    EXPECT_EQ(all_lines(path), expected(all));
    if (HasFailure()) return;
  }
  EXPECT_GT(kills, 15U);
}

// What cannot be renamed grows on.
TEST_F(EventPartsTest, ALogThatCannotBeRotatedGoesOn) {
  FaultyEnv env(posix_env());
  env.inject({.operation = Operation::rename, .for_ever = true, .reason = EACCES});
  write(env, path_, 1, 10);
  EXPECT_EQ(lines_of(path_), expected(10));
  write(posix_env(), path_, 11, 12);
  EXPECT_EQ(lines_of(path_).size(), 1U);
  EXPECT_EQ(all_lines(path_), expected(12));
}

}  // namespace
}  // namespace holdfast::test
