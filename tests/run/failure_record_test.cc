#include "runtime/run/failure_record.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "runtime/run/event_log.h"
#include "tests/elastic/recovery_fixture.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t second_us = 1'000'000;

// Has a wall clock of its own, and counts the bytes that are read of files whose path contains a word.
class CountingEnv final : public ForwardingEnv {
 public:
  explicit CountingEnv(std::string word) : ForwardingEnv(posix_env()), word_(std::move(word)) {}

  std::atomic<std::uint64_t> read_bytes{0};
  std::int64_t wall_us = 0;  // 0: the real one

  std::int64_t wall_time_us() override { return wall_us != 0 ? wall_us : inner().wall_time_us(); }
  Result<std::string> read_text(const std::string& path) override {
    Result<std::string> text = inner().read_text(path);
    if (text.ok() && counts(path)) read_bytes += text->size();
    return text;
  }
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    HF_TRY(std::unique_ptr<File> file, inner().open(path, mode));
    if (!counts(path)) return file;
    return std::unique_ptr<File>(std::make_unique<CountedFile>(std::move(file), read_bytes));
  }

 private:
  class CountedFile final : public ForwardingFile {
   public:
    CountedFile(std::unique_ptr<File> inner, std::atomic<std::uint64_t>& read_bytes)
        : ForwardingFile(std::move(inner)), read_bytes_(&read_bytes) {}
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
      *read_bytes_ += target.size();
      return ForwardingFile::read_at(offset, target);
    }

   private:
    std::atomic<std::uint64_t>* read_bytes_;
  };
  bool counts(const std::string& path) const { return path.find(word_) != std::string::npos; }

  std::string word_;
};

class FailureTallyTest : public testing::Test {
 protected:
  // A start at `begin` seconds; what it says to people.
  std::string begin(std::int64_t begin_s, std::int64_t ranks = 1) {
    env_.wall_us = begin_s * second_us;
    tally_ = {};
    std::string note = tally_.begin_start(env_, paths_, ranks);
    tally_.writing(env_, paths_)();
    log(fmt::format(R"({{"event":"start","time_us":{}}})", env_.wall_us));
    return note;
  }
  void step(std::int64_t at_s) { log(fmt::format(R"({{"event":"step","time_us":{}}})", at_s * second_us)); }
  void log(const std::string& line) { ASSERT_TRUE(posix_env().append_line(paths_.events(), line).ok()); }
  void end(std::int64_t at_s, bool failed) {
    tally_.end(failed, at_s * second_us);
    tally_.writing(env_, paths_)();
    log(fmt::format(R"({{"event":"finish","time_us":{},"state":"{}"}})", at_s * second_us,
                    failed ? "failed" : "saved"));
  }
  void expect(std::int64_t failures, double running_seconds) {
    const FailureHistory history = tally_.so_far(env_.wall_us);
    EXPECT_EQ(history.failures, failures);
    EXPECT_DOUBLE_EQ(history.running_seconds, running_seconds);
  }

  TemporaryDirectory directory_;
  RunPaths paths_{directory_ / "run"};
  CountingEnv env_{"events.jsonl"};
  FailureTally tally_;

  void SetUp() override { ASSERT_TRUE(posix_env().make_directories(paths_.directory).ok()); }
};

TEST_F(FailureTallyTest, AddsUpOverStarts) {
  EXPECT_THAT(begin(100), IsEmpty());
  expect(0, 0.0);
  step(130);
  tally_.count_failure();  // healed in place
  tally_.writing(env_, paths_)();
  step(140);
  log(R"({"event":"gap","time_us":199000000,"first_step":1,"last_step":2})");  // of the next start's leader
  begin(200);  // the one before died 40 s after its begin
  expect(2, 40.0);
  end(260, /*failed=*/true);
  begin(300);
  expect(3, 100.0);
  end(310, /*failed=*/false);
  begin(400);
  expect(3, 110.0);
}

TEST_F(FailureTallyTest, ASuccessorGoesOnWithTheCounts) {
  begin(100);
  tally_.count_failure();
  tally_.writing(env_, paths_)();
  tally_ = {};  // of another process
  tally_.go_on(env_, paths_, 1);
  tally_.count_failure();
  env_.wall_us = 107 * second_us;
  expect(2, 7.0);
}

// A rank that left the run, which went on, may have recorded its own end.
TEST_F(FailureTallyTest, ASuccessorGoesOnAfterAnEndThatWasNone) {
  begin(100);
  end(110, /*failed=*/false);
  tally_ = {};
  env_.wall_us = 115 * second_us;
  tally_.go_on(env_, paths_, 1);
  env_.wall_us = 125 * second_us;
  expect(0, 20.0);
  tally_.writing(env_, paths_)();
  step(125);
  begin(200);  // the start died without a word
  expect(1, 20.0);
}

// What fails are ranks: 10 s of 4 ranks and 20 s of 2 are 80 rank-seconds, which 8 ranks have in 10 s.
TEST_F(FailureTallyTest, CountsTheTimeOfAllRanks) {
  begin(100, /*ranks=*/4);
  env_.wall_us = 110 * second_us;
  tally_.go_on(env_, paths_, 2);
  tally_.count_failure();
  tally_.writing(env_, paths_)();
  expect(1, 40.0 / 2);
  env_.wall_us = 130 * second_us;
  expect(1, 80.0 / 2);
  end(130, /*failed=*/false);
  begin(200, /*ranks=*/8);
  expect(1, 80.0 / 8);
  EXPECT_DOUBLE_EQ(read_failure_history(env_, paths_, 1)->of(1).running_seconds, 80.0);
}

TEST_F(FailureTallyTest, ARecordOfAnOlderVersionIsOfTheRanksThatThereAre) {
  ASSERT_TRUE(posix_env()
                  .replace_text(paths_.history(),
                                R"({"failures":7,"running_us":9000000,"started_us":1,"state":"ended"})")
                  .ok());
  EXPECT_THAT(begin(100, /*ranks=*/4), IsEmpty());
  expect(7, 9.0);
  EXPECT_FALSE(read_failure_history(env_, RunPaths{"/nowhere"}, 4).has_value());
}

TEST_F(FailureTallyTest, WithoutARecordTheLogCounts) {
  begin(100);
  step(150);
  begin(200);
  step(220);
  for (const char* record : {"", "no json", "{\"failures\":-1}", "{\"failures\":1e300,\"running_us\":0}"}) {
    SCOPED_TRACE(record);
    ASSERT_TRUE(posix_env().replace_text(paths_.history(), record).ok());
    env_.wall_us = 300 * second_us;
    tally_ = {};
    EXPECT_THAT(tally_.begin_start(env_, paths_, 1), IsEmpty());
    expect(2, 70.0);
  }
  ASSERT_TRUE(posix_env().remove(paths_.history()).ok());
  tally_ = {};
  EXPECT_THAT(tally_.begin_start(env_, paths_, 1), IsEmpty());
  expect(2, 70.0);
}

TEST_F(FailureTallyTest, ReadsNoMoreThanTheEndOfALongLog) {
  std::string lines;
  for (int step = 0; lines.size() < 3 * FailureTally::tail_bytes; ++step) {
    lines += fmt::format("{{\"event\":\"step\",\"time_us\":{},\"step\":{}}}\n", 100 * second_us, step);
  }
  ASSERT_TRUE(posix_env().replace_text(paths_.events(), lines).ok());
  EXPECT_THAT(begin(200), HasSubstr("history.json is missing or damaged: failures so far are counted"));
  EXPECT_LE(env_.read_bytes, FailureTally::tail_bytes);
  env_.read_bytes = 0;
  EXPECT_THAT(begin(300), IsEmpty());
  EXPECT_LE(env_.read_bytes, 65'536U);
  expect(1, 0.0);
}

class RecoveryWorkTest : public RecoveryTest {};

// A log of a million steps that earlier starts have left, beside one of 50,000, of which nobody reads all
// either; counted is what is read until the last step, with a start and a recovery of the leader before it.
TEST_F(RecoveryWorkTest, DoesNotGrowWithTheRun) {
  std::vector<std::uint64_t> read_bytes;
  for (const int steps : {10'000, 200'000}) {
    const std::string run = fmt::format("run-{}", steps);
    const RunPaths paths{run_directory(run)};
    ASSERT_TRUE(posix_env().make_directories(paths.directory).ok());
    std::string lines = "{\"event\":\"start\",\"time_us\":1}\n";
    for (int step = 1; step <= steps; ++step)
      lines += fmt::format("{{\"event\":\"step\",\"time_us\":{},\"step\":{}}}\n", step, step);
    ASSERT_TRUE(posix_env().replace_text(paths.events(), lines).ok());
    ASSERT_TRUE(posix_env()
                    .replace_text(paths.history(),
                                  R"({"failures":7,"running_us":9000000,"started_us":1,"state":"ended"})")
                    .ok());
    CountingEnv machine("events.jsonl");
    std::atomic<std::uint64_t> at_last_step{0};
    EXPECT_EQ(survive({.run = run,
                       .ranks = 3,
                       .overrides = {"checkpoint.every_steps=\"auto\"", "checkpoint.ram_every_steps=1"},
                       .faults = "step.before_vote@8:0=kill"},
                      {.before_step =
                           [&](int rank, int) {
                             if (rank == 1) at_last_step = machine.read_bytes.load();
                           },
                       .machine = &machine}),
              1);
    read_bytes.push_back(at_last_step);
    EXPECT_EQ(events(run, "recovery").size(), 1U);
    const std::string record = posix_env().read_text(paths.history()).value();
    EXPECT_THAT(record, HasSubstr("\"failures\":8,"));
    EXPECT_THAT(record, HasSubstr("\"state\":\"ended\""));
  }
  EXPECT_LE(read_bytes[1], read_bytes[0] + 65'536U) << read_bytes[0];
}

}  // namespace
}  // namespace holdfast::test
