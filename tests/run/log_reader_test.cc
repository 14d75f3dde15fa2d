#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/event_log.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_history.h"
#include "tests/elastic/recovery_fixture.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Lets something happen in front of the next file that is opened.
class BeforeOpenEnv final : public ForwardingEnv {
 public:
  BeforeOpenEnv() : ForwardingEnv(posix_env()) {}
  std::function<void()> next = {};
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (const auto happens = std::exchange(next, nullptr); happens) happens();
    return inner().open(path, mode);
  }
};

class LogReaderTest : public testing::Test {
 protected:
  void put(std::uint64_t part, const std::string& text) {  // 0: the newest
    const std::string path = part == 0 ? paths_.events() : event_part(paths_.events(), part);
    ASSERT_TRUE(posix_env().replace_text(path, text).ok());
  }
  static std::vector<int> numbers(const LogReader& log) {
    std::vector<int> found;
    EXPECT_TRUE(log.for_each([&](const Json& event) { found.push_back(event["n"].get<int>()); }).ok());
    return found;
  }

  TemporaryDirectory directory_;
  RunPaths paths_{directory_.path()};
};

TEST_F(LogReaderTest, PartsAreOneText) {
  put(1, "{\"n\":1}\n{\"n\":2}\n");
  put(2, "{\"n\":3}\n");
  put(0, "{\"n\":4}\n{\"n\":");
  const Result<LogReader> log = LogReader::open(posix_env(), paths_);
  ASSERT_TRUE(log.ok());
  EXPECT_THAT(log->warning(), IsEmpty());
  const std::string text = "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n{\"n\":4}\n{\"n\":";
  EXPECT_EQ(log->bytes(), text.size());
  EXPECT_EQ(log_bytes(posix_env(), paths_), text.size());
  for (std::size_t begin = 0; begin <= text.size(); ++begin) {
    for (std::size_t bytes = 0; begin + bytes <= text.size(); ++bytes)
      ASSERT_EQ(log->read(begin, bytes).value(), text.substr(begin, bytes));
  }
  EXPECT_THAT(numbers(*log), ElementsAre(1, 2, 3, 4));
}

TEST_F(LogReaderTest, ALogBetweenTwoPartsIsALog) {
  EXPECT_EQ(LogReader::open(posix_env(), paths_).error().code, ExitCode::config);
  put(1, "{\"n\":1}\n");  // killed before the first line of the next
  const Result<LogReader> log = LogReader::open(posix_env(), paths_);
  ASSERT_TRUE(log.ok());
  EXPECT_THAT(numbers(*log), ElementsAre(1));
}

TEST_F(LogReaderTest, RotatedMeanwhileItIsSeenOnce) {
  put(1, "{\"n\":1}\n");
  put(0, "{\"n\":2}\n");
  BeforeOpenEnv env;
  env.next = [this] {
    ASSERT_TRUE(rotate_events(posix_env(), paths_.events()).ok());
    put(0, "{\"n\":3}\n");
  };
  const Result<LogReader> log = LogReader::open(env, paths_);
  ASSERT_TRUE(log.ok());
  EXPECT_THAT(numbers(*log), ElementsAre(1, 2, 3));
  env.next = [this] { ASSERT_TRUE(rotate_events(posix_env(), paths_.events()).ok()); };
  const Result<LogReader> without_newest = LogReader::open(env, paths_);
  ASSERT_TRUE(without_newest.ok());
  EXPECT_THAT(numbers(*without_newest), ElementsAre(1, 2, 3));
}

TEST_F(LogReaderTest, MissingPartsAreNamedAndTheRestIsRead) {
  put(2, "{\"n\":2}\n");
  put(0, "{\"n\":4}\n");
  const Result<LogReader> one = LogReader::open(posix_env(), paths_);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->warning(), event_part(paths_.events(), 1) +
                                " is missing: what the log said there is not counted, the rest is");
  EXPECT_THAT(numbers(*one), ElementsAre(2, 4));
  put(9, "{\"n\":3}\n");
  EXPECT_THAT(LogReader::open(posix_env(), paths_)->warning(),
              testing::AllOf(HasSubstr("events-0001.jsonl, "),
                             HasSubstr("events-0004.jsonl and 4 more parts of the log "
                                       "are missing")));
}

class RotatedRunTest : public RecoveryTest {};

// With a recovery, and a tail of the log that is spread over parts.
TEST_F(RotatedRunTest, ReadersFollow) {
  const std::vector<std::string> small = {"log.rotate_bytes=2000", "checkpoint.ram_every_steps=1",
                                          "checkpoint.every_steps=5"};
  EXPECT_EQ(survive({.run = "whole",
                     .ranks = 3,
                     .overrides = {small[1], small[2]},
                     .faults = "step.before_vote@8:2=kill"}),
            1);
  EXPECT_EQ(survive({.run = "run", .ranks = 3, .overrides = small, .faults = "step.before_vote@8:2=kill"}),
            1);
  EXPECT_EQ(digest("run"), digest("whole"));
  const RunPaths paths{run_directory("run")};
  EXPECT_GT(event_parts(posix_env(), paths.events())->size(), 3U);
  const RunHistory history = read_history(posix_env(), paths).value();
  const RunHistory whole = read_history(posix_env(), {run_directory("whole")}).value();
  EXPECT_EQ(history.steps.size(), 20U);
  EXPECT_EQ(history.failures, 1);
  EXPECT_EQ(history.ledger.faults.size(), 1U);
  for (const char* name : {"start", "evaluation", "fault", "recovery", "finish"}) {
    EXPECT_EQ(std::ranges::count(history.events, name, &RunEvent::name),
              std::ranges::count(whole.events, name, &RunEvent::name))
        << name;
  }
  const LogTail tail = read_log_tail(posix_env(), paths, 3000).value();
  EXPECT_FALSE(tail.whole);
  EXPECT_TRUE(tail.lines.starts_with("{\"event\":"));
  EXPECT_GT(tail.lines.size(), 2000U);
}

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
  // Returns the lines in the order of the parts.
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

// A log that cannot be renamed grows on.
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
