#include "runtime/run/line_log.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/support/faulty_env.h"
#include "tests/support/memory_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr LineLog::Memory plenty = {.bytes = 10'000, .drops_oldest = false};

// A disk with room for so many bytes more, as seen by what appends to a file.
class SmallDiskEnv final : public ForwardingEnv {
 public:
  using ForwardingEnv::ForwardingEnv;
  std::size_t room = 0;

  Result<void> append_line(const std::string& path, std::string_view line) override {
    const std::string whole = std::string(line) + "\n";
    const std::size_t put = std::min(room, whole.size());
    const Result<std::string> text = inner().read_text(path);
    if (put > 0) HF_TRY_VOID(inner().replace_text(path, (text.ok() ? *text : "") + whole.substr(0, put)));
    room -= put;
    if (put < whole.size()) return write_error("append to", path, ENOSPC);
    return {};
  }
};

class LineLogTest : public testing::Test {
 protected:
  std::string text() {
    const Result<std::string> text = files_.read_text(path_);
    return text.ok() ? *text : "";
  }
  // What it says on stderr.
  static std::string reported(const std::function<void()>& body) {
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
  }

  MemoryEnv files_;
  const std::string path_ = "/lines";
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Lines that begin alike, and one that is the beginning of another.
const std::vector<std::string> lines = {"{\"a\":1}", "{\"a\":1", "{\"a\":12}", "{\"b\":3}", "{\"b\":3}"};

TEST_F(LineLogTest, EveryByteAtWhichADiskBecomesFull) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  for (std::size_t room = 0; room < all.size(); ++room) {
    SCOPED_TRACE(room);
    ASSERT_TRUE(files_.remove(path_).ok());
    SmallDiskEnv env(files_);
    LineLog log(env, path_, plenty);
    env.room = room;
    const std::string first = reported([&] {
      for (const std::string& line : lines) ASSERT_TRUE(log.append(line).ok());
    });
    EXPECT_EQ(text(), all.substr(0, room));
    EXPECT_EQ(count(first, "\n"), 1U) << first;
    EXPECT_THAT(first, HasSubstr("holdfast: cannot append to " + path_ + ": the disk is full"));
    EXPECT_THAT(first, HasSubstr("The run goes on: lines wait in memory, up to 9.77 KiB of them"));
    const std::size_t waiting = log.waiting();
    EXPECT_GE(waiting, 1U);
    env.room = 1000;
    const std::string second = reported([&] { ASSERT_TRUE(log.append("last").ok()); });
    EXPECT_EQ(text(), all + "last\n");
    EXPECT_EQ(count(second, "\n"), 1U) << second;
    EXPECT_THAT(second, HasSubstr(fmt::format("{} is written again, with {} line{} that waited\n", path_,
                                              waiting, waiting == 1 ? "" : "s")));
  }
}

// Room comes byte by byte, and goes again.
TEST_F(LineLogTest, LinesStayWholeAndInOrderHoweverRoomComes) {
  SmallDiskEnv env(files_);
  LineLog log(env, path_, plenty);
  std::string all;
  static_cast<void>(reported([&] {
    for (std::size_t i = 0; i < 300; ++i) {
      const std::string line = fmt::format("{{\"event\":\"step\",\"step\":{}}}", i);
      all += line + "\n";
      env.room = i % 70;
      ASSERT_TRUE(log.append(line).ok());
      EXPECT_TRUE(all.starts_with(text()));
    }
    env.room = all.size();
    ASSERT_TRUE(log.flush().ok());
  }));
  EXPECT_EQ(text(), all);
}

TEST_F(LineLogTest, WhateverFailsTheLineWaits) {
  struct Case {
    Operation operation;
    int reason;
  };
  const std::vector<Case> cases = {{Operation::append_line, EDQUOT}, {Operation::append_line, EIO},
                                   {Operation::append_line, EROFS},  {Operation::append_line, ENOENT},
                                   {Operation::append_line, EACCES}, {Operation::status, EIO},
                                   {Operation::open, EMFILE},        {Operation::read, EIO}};
  for (const Case& failing : cases) {
    SCOPED_TRACE(fmt::format("operation {}, errno {}", static_cast<int>(failing.operation), failing.reason));
    ASSERT_TRUE(files_.replace_text(path_, "before\ntor").ok());
    FaultyEnv env(files_);
    env.inject({.operation = failing.operation, .for_ever = true, .reason = failing.reason});
    LineLog log(env, path_, plenty);
    const std::string first = reported([&] {
      for (const char* line : {"a", "b", "c"}) ASSERT_TRUE(log.append(line).ok());
    });
    EXPECT_GE(env.failure_count(), 3U) << "each is another try";
    EXPECT_EQ(count(first, "\n"), 1U) << first;
    EXPECT_EQ(text(), "before\ntor");
    env.clear_faults();
    EXPECT_THAT(reported([&] { ASSERT_TRUE(log.flush().ok()); }), HasSubstr("with 3 lines that waited\n"));
    EXPECT_EQ(text(), "before\ntor\na\nb\nc\n");
  }
}

TEST_F(LineLogTest, ADirectoryThatGoesAndComesBack) {
  const TemporaryDirectory directory;
  const std::string mounted = directory / "mounted", away = directory / "away";
  ASSERT_TRUE(posix_env().make_directories(mounted).ok());
  LineLog log(posix_env(), mounted + "/lines", plenty);
  ASSERT_TRUE(log.append("a").ok());
  ASSERT_TRUE(posix_env().rename(mounted, away).ok());
  EXPECT_THAT(reported([&] { ASSERT_TRUE(log.append("b").ok()); }), HasSubstr("No such file or directory"));
  ASSERT_TRUE(posix_env().rename(away, mounted).ok());
  static_cast<void>(reported([&] { ASSERT_TRUE(log.append("c").ok()); }));
  EXPECT_EQ(posix_env().read_text(mounted + "/lines").value(), "a\nb\nc\n");
}

TEST_F(LineLogTest, TheOldestGoWhereMemoryEnds) {
  SmallDiskEnv env(files_);
  LineLog log(env, path_, {.bytes = 10, .drops_oldest = true});
  static_cast<void>(reported([&] {
    for (const char* line : {"one", "two", "three", "four"}) ASSERT_TRUE(log.append(line).ok());
  }));
  EXPECT_EQ(log.waiting(), 2U);
  EXPECT_EQ(log.take_dropped(), 2U);
  EXPECT_EQ(log.take_dropped(), 0U);
  EXPECT_THAT(log.flush().error().message, HasSubstr("; 4 lines are not in it"));
  env.room = 1000;
  EXPECT_THAT(reported([&] { ASSERT_TRUE(log.append("five").ok()); }),
              HasSubstr(" is written again, with 2 lines that waited, but without 2 lines before them\n"));
  EXPECT_EQ(text(), "three\nfour\nfive\n");
  const std::string long_line(50, 'x');
  env.room = 3;
  static_cast<void>(
      reported([&] { ASSERT_TRUE(log.append(long_line).ok()) << "there is room for one, always"; }));
  env.room = 1000;
  static_cast<void>(reported([&] { ASSERT_TRUE(log.flush().ok()); }));
  EXPECT_EQ(text(), "three\nfour\nfive\n" + long_line + "\n");
  EXPECT_EQ(log.take_dropped(), 0U);
}

// The front of a dropped line may be in the file already.
TEST_F(LineLogTest, WhatIsLeftOfADroppedLineIsALineOfItsOwn) {
  SmallDiskEnv env(files_);
  LineLog log(env, path_, {.bytes = 10, .drops_oldest = true});
  env.room = 2;
  static_cast<void>(reported([&] {
    for (const char* line : {"aaaaaaaa", "bbbbbbbb", "cc"}) ASSERT_TRUE(log.append(line).ok());
    env.room = 1000;
    ASSERT_TRUE(log.flush().ok());
  }));
  EXPECT_EQ(text(), "aa\nbbbbbbbb\ncc\n");
}

TEST_F(LineLogTest, NoneGoesWhereAllAreWanted) {
  SmallDiskEnv env(files_);
  LineLog log(env, path_, {.bytes = 10, .drops_oldest = false});
  static_cast<void>(reported([&] {
    for (const char* line : {"one", "two"}) ASSERT_TRUE(log.append(line).ok());
    const Result<void> third = log.append("three");
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(third.error().code, ExitCode::checkpoint);
    EXPECT_EQ(third.error().reach, Reach::minute);
    EXPECT_THAT(third.error().message, HasSubstr("the disk is full"));
    EXPECT_THAT(third.error().message, HasSubstr("; memory is full with 2 lines that waited before"));
    env.room = 1000;
    ASSERT_TRUE(log.flush().ok());
  }));
  EXPECT_EQ(text(), "one\ntwo\n");
}

TEST_F(LineLogTest, TheEndIsOneMoreTry) {
  SmallDiskEnv env(files_);
  for (const bool owner_asks : {false, true}) {
    for (const bool better : {false, true}) {
      ASSERT_TRUE(files_.remove(path_).ok());
      auto log = std::make_unique<LineLog>(env, path_, plenty);
      env.room = 0;
      static_cast<void>(reported([&] { ASSERT_TRUE(log->append("one").ok()); }));
      log->retry();
      const Result<void> flushed = owner_asks ? log->flush() : Result<void>();
      if (owner_asks) {
        ASSERT_FALSE(flushed.ok());
        EXPECT_EQ(flushed.error().code, ExitCode::checkpoint);
        EXPECT_THAT(flushed.error().message, testing::EndsWith("; 1 line is not in it"));
      }
      env.room = better ? 1000 : 0;
      const std::string last = reported([&] { log.reset(); });
      const char* lost = owner_asks ? "" : "; 1 line is not in it, and never will be\n";
      EXPECT_THAT(last, testing::EndsWith(better ? "is written again, with 1 line that waited\n" : lost));
      EXPECT_EQ(text(), better ? "one\n" : "");
    }
  }
  EXPECT_THAT(reported([&] { const LineLog log(env, path_, plenty); }), IsEmpty());
}

TEST_F(LineLogTest, WhoeverInsistsHasItNowOrNot) {
  SmallDiskEnv env(files_);
  LineLog log(env, path_, plenty);
  EXPECT_THAT(reported([&] {
                const Result<void> written = log.insist("one");
                ASSERT_FALSE(written.ok());
                EXPECT_EQ(written.error().code, ExitCode::checkpoint);
                EXPECT_THAT(written.error().message, HasSubstr("the disk is full"));
              }),
              IsEmpty());
  EXPECT_EQ(log.waiting(), 0U);
  static_cast<void>(reported([&] { ASSERT_TRUE(log.append("two").ok()); }));
  EXPECT_FALSE(log.insist("three").ok());
  env.room = 1000;
  EXPECT_THAT(reported([&] { ASSERT_TRUE(log.insist("four").ok()); }),
              HasSubstr("with 1 line that waited\n"));
  EXPECT_EQ(text(), "two\nfour\n");
}

TEST_F(LineLogTest, GoesOnBehindOthers) {
  ASSERT_TRUE(files_.replace_text(path_, "one\ntw").ok());
  LineLog log(files_, path_, plenty);
  ASSERT_TRUE(log.append("three").ok());
  ASSERT_TRUE(files_.replace_text(path_, text() + "fou").ok());
  log.others_have_written();
  ASSERT_TRUE(log.append("five").ok());
  ASSERT_TRUE(log.append("six").ok());
  EXPECT_EQ(text(), "one\ntw\nthree\nfou\nfive\nsix\n");
}

}  // namespace
}  // namespace holdfast::test
