#include "runtime/os/line_thread.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Records what a sink was given, and has a gate at which it stops.
class Disk {
 public:
  void close() { set(false); }
  void open() { set(true); }
  void fails(bool failing) {
    const std::lock_guard guard(mutex_);
    failing_ = failing;
  }
  // Until somebody waits at the gate.
  void wait_for_writer() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [this] { return waiting_; });
  }
  Result<void> put(std::string text) {
    std::unique_lock guard(mutex_);
    waiting_ = !open_;
    changed_.notify_all();
    changed_.wait(guard, [this] { return open_; });
    waiting_ = false;
    if (failing_) return fail(ExitCode::checkpoint, "cannot write {}", text);
    lines_.push_back(std::move(text));
    return {};
  }
  std::vector<std::string> lines() {
    const std::lock_guard guard(mutex_);
    return lines_;
  }

 private:
  void set(bool open) {
    const std::lock_guard guard(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  bool open_ = true, waiting_ = false, failing_ = false;
};

class DiskSink final : public LineSink {
 public:
  explicit DiskSink(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}
  Result<void> append(std::string_view line) override { return disk_->put(std::string(line)); }
  Result<void> insist(std::string_view line) override { return disk_->put("insist " + std::string(line)); }
  Result<void> flush() override { return disk_->put("flush"); }
  void others_have_written() override { static_cast<void>(disk_->put("others").ok()); }
  void lost(std::uint64_t lines) override {
    static_cast<void>(disk_->put(fmt::format("lost {}", lines)).ok());
  }

 private:
  std::shared_ptr<Disk> disk_;
};

class LineThreadTest : public testing::Test {
 protected:
  std::unique_ptr<LineThread> thread(LineThread::Memory memory = {.bytes = 1'000'000}) {
    return std::make_unique<LineThread>(posix_env(), std::make_unique<DiskSink>(disk_), "the log", memory);
  }
  std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
};

TEST_F(LineThreadTest, ADiskThatStandsStillHoldsUpNobody) {
  const auto lines = thread();
  disk_->close();
  std::vector<std::string> expected;
  for (int i = 0; i < 1000; ++i) {
    expected.push_back(fmt::format("line {}", i));
    ASSERT_TRUE(lines->append(expected.back()).ok());
  }
  EXPECT_THAT(disk_->lines(), testing::IsEmpty());
  disk_->open();
  EXPECT_TRUE(lines->flush().ok());
  expected.emplace_back("flush");
  EXPECT_EQ(disk_->lines(), expected);
}

TEST_F(LineThreadTest, OrderIsThatOfTheCalls) {
  const auto lines = thread();
  ASSERT_TRUE(lines->append("a").ok());
  ASSERT_TRUE(lines->flush().ok());
  lines->others_have_written();
  ASSERT_TRUE(lines->append("b").ok());
  ASSERT_TRUE(lines->insist("c").ok());
  lines->post([this](LineSink&) { static_cast<void>(disk_->put("work").ok()); });
  ASSERT_TRUE(lines->append("").ok());
  ASSERT_TRUE(lines->flush().ok());
  EXPECT_THAT(disk_->lines(), ElementsAre("a", "flush", "others", "b", "insist c", "work", "", "flush"));
}

TEST_F(LineThreadTest, WhoWaitsForALittleWhileDoesNotWaitAgain) {
  const auto lines = thread();
  EXPECT_TRUE(lines->wait_until_written(100));
  disk_->close();
  ASSERT_TRUE(lines->append("a").ok());
  EXPECT_FALSE(lines->wait_until_written(100));
  disk_->wait_for_writer();
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(lines->wait_until_written(100));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  disk_->open();
  EXPECT_TRUE(lines->flush().ok());
  EXPECT_TRUE(lines->wait_until_written(100));
}

// Also where those before it go for want of memory.
TEST_F(LineThreadTest, WhatIsInsertedStandsBetweenTheLines) {
  const auto lines = thread({.bytes = 26, .drops_oldest = true});
  const auto insert = [&](const std::string& text) {
    lines->post([text](LineSink& sink) { static_cast<void>(sink.append(text).ok()); });
  };
  insert("first");
  ASSERT_TRUE(lines->flush().ok());
  disk_->close();
  ASSERT_TRUE(lines->append("a").ok());
  disk_->wait_for_writer();
  ASSERT_TRUE(lines->append("line before").ok());
  insert("between");
  ASSERT_TRUE(lines->append("line after").ok());
  ASSERT_TRUE(lines->append("third").ok());
  disk_->open();
  ASSERT_TRUE(lines->flush().ok());
  disk_->close();
  ASSERT_TRUE(lines->append("b").ok());
  disk_->wait_for_writer();
  ASSERT_TRUE(lines->append("c").ok());
  insert("between");
  ASSERT_TRUE(lines->append("d").ok());
  disk_->open();
  ASSERT_TRUE(lines->flush().ok());
  EXPECT_THAT(disk_->lines(), ElementsAre("first", "flush", "a", "lost 1", "between", "line after", "third",
                                          "flush", "b", "c", "between", "d", "flush"));
}

// The count stands where the lines would.
TEST_F(LineThreadTest, TheOldestGoWhereMemoryEnds) {
  constexpr int count = 1000;
  const auto lines = thread({.bytes = 1000, .drops_oldest = true});
  disk_->close();
  ASSERT_TRUE(lines->append("first").ok());
  disk_->wait_for_writer();
  for (int i = 0; i < count; ++i) ASSERT_TRUE(lines->append(fmt::format("line {:03}", i)).ok());
  disk_->open();
  ASSERT_TRUE(lines->flush().ok());
  const std::vector<std::string> put = disk_->lines();
  ASSERT_GT(put.size(), 60U);
  EXPECT_EQ(put.front(), "first");
  const auto kept = static_cast<int>(put.size()) - 3;  // without the count and the flush
  EXPECT_LE(kept * 9, 1000);
  EXPECT_EQ(put[1], fmt::format("lost {}", count - kept));
  for (int i = 0; i < kept; ++i)
    EXPECT_EQ(put[static_cast<std::size_t>(i) + 2], fmt::format("line {:03}", count - kept + i));
}

TEST_F(LineThreadTest, NoneGoesWhereAllAreWanted) {
  const auto lines = thread({.bytes = 100, .drops_oldest = false});
  disk_->close();
  ASSERT_TRUE(lines->append("first").ok());
  disk_->wait_for_writer();
  Result<void> put;
  int count = 0;
  while (put.ok() && count < 100) put = lines->append(fmt::format("line {:03}", count++));
  ASSERT_FALSE(put.ok());
  EXPECT_EQ(put.error().code, ExitCode::checkpoint);
  EXPECT_EQ(put.error().reach, Reach::minute);
  EXPECT_THAT(put.error().message, HasSubstr("memory is full with 12 lines that wait"));
  disk_->open();
  EXPECT_TRUE(lines->flush().ok());
  EXPECT_EQ(disk_->lines().size(), 13U);
}

TEST_F(LineThreadTest, WhatTheSinkMeetsIsHeardOf) {
  const auto lines = thread();
  disk_->fails(true);
  const Result<void> insisted = lines->insist("b");
  ASSERT_FALSE(insisted.ok());
  EXPECT_EQ(insisted.error().message, "cannot write insist b");
  ASSERT_TRUE(lines->append("a").ok());
  const Result<void> flushed = lines->flush();
  ASSERT_FALSE(flushed.ok());
  EXPECT_THAT(flushed.error().message, HasSubstr("cannot write"));
}

TEST_F(LineThreadTest, FlushHasAnEnd) {
  const auto lines = thread();
  disk_->close();
  ASSERT_TRUE(lines->append("a").ok());
  const Result<void> flushed = lines->flush(/*patience_ms=*/50);
  ASSERT_FALSE(flushed.ok());
  EXPECT_EQ(flushed.error().code, ExitCode::checkpoint);
  EXPECT_EQ(flushed.error().reach, Reach::minute);
  EXPECT_THAT(flushed.error().message,
              HasSubstr("the log: 1 line of it waits for a disk that does not respond"));
  disk_->open();
  EXPECT_TRUE(lines->flush().ok());
  EXPECT_THAT(disk_->lines(), testing::Contains("a"));
}

// The disk, and what waits for it, outlive their owner then.
TEST_F(LineThreadTest, TheEndWaitsForALittleWhile) {
  auto lines = thread();
  disk_->close();
  ASSERT_TRUE(lines->append("a").ok());
  disk_->wait_for_writer();
  lines.reset();
  EXPECT_THAT(disk_->lines(), testing::IsEmpty());
  disk_->open();
  while (disk_->lines().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(disk_->lines(), ElementsAre("a"));
}

TEST_F(LineThreadTest, TheEndWaitsForNothingThatIsNotThere) {
  const auto begin = std::chrono::steady_clock::now();
  auto lines = thread();
  ASSERT_TRUE(lines->append("b").ok());
  lines.reset();
  EXPECT_THAT(disk_->lines(), ElementsAre("b"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(LineThread::short_patience_ms));
}

}  // namespace
}  // namespace holdfast::test
