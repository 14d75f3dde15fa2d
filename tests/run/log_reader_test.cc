#include "runtime/run/log_reader.h"
#include "runtime/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "runtime/run/run_history.h"
#include "tests/elastic/recovery_fixture.h"
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

}  // namespace
}  // namespace holdfast::test
