#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "runtime/os/env.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> payload(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class PosixEnvTest : public testing::Test {
 protected:
  Env& env = posix_env();
  TemporaryDirectory directory;
};

TEST_F(PosixEnvTest, FileWritesAndReadsAtOffsets) {
  const std::string path = directory / "file";
  auto file = env.open(path, OpenMode::create).value();
  ASSERT_TRUE(file->write_at(3, payload("world")).ok());
  ASSERT_TRUE(file->write_at(0, payload("abc")).ok());
  ASSERT_TRUE(file->sync().ok());
  EXPECT_EQ(file->size().value(), 8u);
  EXPECT_EQ(file->path(), path);
  std::string text(5, ' ');
  auto reader = env.open(path, OpenMode::read).value();
  ASSERT_TRUE(reader->read_at(3, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(text, "world");
  EXPECT_EQ(env.read_text(path).value(), "abcworld");
}

TEST_F(PosixEnvTest, ReadPastTheEndNamesFileAndPlace) {
  const std::string path = directory / "file";
  ASSERT_TRUE(env.replace_text(path, "12345").ok());
  auto file = env.open(path, OpenMode::read).value();
  std::vector<std::byte> target(4);
  const auto read = file->read_at(3, target);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ExitCode::data);
  EXPECT_THAT(read.error().message, HasSubstr(path));
  EXPECT_THAT(read.error().message, HasSubstr("the file ends at 5"));
  // It was cut far before the place.
  ASSERT_EQ(::truncate(path.c_str(), 2), 0);
  EXPECT_THAT(file->read_at(3, target).error().message, HasSubstr("the file ends at 2"));
}

TEST_F(PosixEnvTest, NamesOfVariablesAreThoseWithThePrefix) {
  ASSERT_EQ(setenv("HOLDFAST_TEST_NAMES_B", "text", 1) + setenv("HOLDFAST_TEST_NAMES_A", "", 1), 0);
  EXPECT_EQ(env.variable_names("HOLDFAST_TEST_NAMES_"),
            (std::vector<std::string>{"HOLDFAST_TEST_NAMES_A", "HOLDFAST_TEST_NAMES_B"}));
  unsetenv("HOLDFAST_TEST_NAMES_A");
  unsetenv("HOLDFAST_TEST_NAMES_B");
  EXPECT_EQ(env.variable_names("HOLDFAST_TEST_NAMES_"), std::vector<std::string>());
}

TEST_F(PosixEnvTest, CreateNeverOverwrites) {
  const std::string path = directory / "file";
  ASSERT_TRUE(env.replace_text(path, "old").ok());
  const auto file = env.open(path, OpenMode::create);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ExitCode::checkpoint);
  EXPECT_THAT(file.error().message, HasSubstr("File exists"));
  EXPECT_EQ(env.read_text(path).value(), "old");
}

TEST_F(PosixEnvTest, ErrorsNamePathAndReason) {
  const std::string path = directory / "none/file";
  EXPECT_EQ(env.open(path, OpenMode::read).error().message,
            "cannot open " + path + ": No such file or directory");
  EXPECT_EQ(env.open(path, OpenMode::read).error().code, ExitCode::data);
  EXPECT_EQ(env.open(path, OpenMode::create).error().code, ExitCode::checkpoint);
  EXPECT_EQ(env.read_text(path).error().code, ExitCode::data);
  EXPECT_EQ(env.list(directory / "none").error().code, ExitCode::data);
  EXPECT_EQ(env.append_line(path, "x").error().code, ExitCode::checkpoint);
  EXPECT_EQ(env.rename(path, directory / "x").error().code, ExitCode::checkpoint);
  EXPECT_EQ(env.sync_directory(directory / "none").error().code, ExitCode::checkpoint);
  EXPECT_EQ(env.free_bytes(directory / "none").error().code, ExitCode::data);
  EXPECT_FALSE(env.replace_text(path, "x").ok());
}

TEST_F(PosixEnvTest, FullDiskSaysWhatToDo) {
  if (!std::filesystem::exists("/dev/full")) HF_SKIP_OUTSIDE_CI("this system has no /dev/full");
  const auto appended = env.append_line("/dev/full", "line");
  ASSERT_FALSE(appended.ok());
  EXPECT_THAT(appended.error().message, HasSubstr("the disk is full"));
  EXPECT_THAT(appended.error().message, HasSubstr("free space"));
}

TEST_F(PosixEnvTest, AllocateReservesSpaceAndRefusesTheImpossible) {
  auto file = env.open(directory / "file", OpenMode::create).value();
  ASSERT_TRUE(file->allocate(0).ok());
  ASSERT_TRUE(file->allocate(1 << 20).ok());
  const auto refused = file->allocate(std::uint64_t{1} << 62);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ExitCode::checkpoint);
}

TEST_F(PosixEnvTest, StatusListAndRemove) {
  EXPECT_FALSE(env.status(directory / "none").value().exists);
  ASSERT_TRUE(env.make_directories(directory / "a/b/c").ok());
  ASSERT_TRUE(env.make_directories(directory / "a/b/c").ok()) << "an existing directory is fine";
  ASSERT_TRUE(env.replace_text(directory / "a/file", "123").ok());
  ASSERT_TRUE(env.replace_text(directory / "a/.hidden", "").ok());
  EXPECT_FALSE(env.status(directory / "a/file/below").value().exists);
  const FileStatus file = env.status(directory / "a/file").value();
  EXPECT_TRUE(file.exists);
  EXPECT_FALSE(file.directory);
  EXPECT_EQ(file.bytes, 3u);
  EXPECT_TRUE(env.status(directory / "a").value().directory);
  EXPECT_THAT(env.list(directory / "a").value(), ElementsAre(".hidden", "b", "file"));
  EXPECT_FALSE(env.make_directories(directory / "a/file").ok()) << "a file is in the way";
  EXPECT_FALSE(env.remove(directory / "a/b").ok()) << "remove is for files";
  EXPECT_TRUE(env.remove(directory / "a/file").ok());
  EXPECT_TRUE(env.remove(directory / "a/file").ok());
  EXPECT_TRUE(env.remove_tree(directory / "a").ok());
  EXPECT_TRUE(env.remove_tree(directory / "a").ok());
  EXPECT_FALSE(env.status(directory / "a").value().exists);
}

TEST_F(PosixEnvTest, ReplaceTextLeavesNothingBehind) {
  const std::string path = directory / "file";
  ASSERT_TRUE(env.replace_text(path, "a long first text").ok());
  ASSERT_TRUE(env.replace_text(path, "short").ok());
  EXPECT_EQ(env.read_text(path).value(), "short");
  ASSERT_TRUE(env.make_directories(directory / "occupied/inner").ok());
  EXPECT_FALSE(env.replace_text(directory / "occupied", "text").ok());
  EXPECT_THAT(env.list(directory.path()).value(), ElementsAre("file", "occupied"));
}

TEST_F(PosixEnvTest, LinesOfSeveralWritersDoNotMix) {
  const std::string path = directory / "lines";
  std::vector<std::thread> writers;
  for (char name = 'a'; name < 'e'; ++name) {
    writers.emplace_back([&, name] {
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(env.append_line(path, std::string(300, name)).ok());
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = env.read_text(path).value();
  ASSERT_EQ(text.size(), 4u * 200u * 301u);
  for (std::size_t line = 0; line < text.size(); line += 301) {
    ASSERT_EQ(text.substr(line, 300), std::string(300, text[line]));
    ASSERT_EQ(text[line + 300], '\n');
  }
}

TEST_F(PosixEnvTest, LockExcludesAndNamesTheHolder) {
  const std::string path = directory / "lock";
  {
    auto held = env.lock(path, "pid 12 on node7", 0);
    ASSERT_TRUE(held.ok()) << held.error().message;
    const auto second = env.lock(path, "other", 120);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, ExitCode::communication);
    EXPECT_THAT(second.error().message, HasSubstr("'pid 12 on node7'"));
    EXPECT_EQ(env.read_text(path).value(), "pid 12 on node7") << "a refused lock must not change the content";
  }
  ASSERT_TRUE(env.lock(path, "x", 0).ok());
  EXPECT_EQ(env.read_text(path).value(), "x") << "a shorter content replaces all of a longer one";
}

TEST_F(PosixEnvTest, ALockIsSeenWithoutBeingTaken) {
  const std::string path = directory / "lock";
  EXPECT_FALSE(env.is_locked(path).ok()) << "nothing is made";
  {
    const auto held = env.lock(path, "one", 0);
    ASSERT_TRUE(held.ok());
    EXPECT_TRUE(env.is_locked(path).value());
  }
  const int another = open(path.c_str(), O_RDONLY | O_CLOEXEC);  // that asks at the same time
  ASSERT_EQ(flock(another, LOCK_SH | LOCK_NB), 0);
  EXPECT_FALSE(env.is_locked(path).value());
  close(another);
  EXPECT_EQ(env.read_text(path).value(), "one");
}

TEST_F(PosixEnvTest, ALockCanBeReplacedWhoeverHoldsIt) {
  const std::string path = directory / "lock";
  auto old_lock = env.lock(path, "old", 0).value();
  Result<std::unique_ptr<FileLock>> waits = fail(ExitCode::communication, "not yet");
  std::thread waiter([&] { waits = env.lock(path, "", 400); });
  env.sleep_us(100'000);
  auto new_lock = env.replace_lock(path, "new").value();
  EXPECT_EQ(env.read_text(path).value(), "new");
  EXPECT_TRUE(old_lock->rewrite("still old").ok());
  EXPECT_EQ(env.read_text(path).value(), "new") << "the old one has a file without a name";
  EXPECT_TRUE(new_lock->rewrite("newer").ok());
  EXPECT_EQ(env.read_text(path).value(), "newer");
  old_lock.reset();
  waiter.join();
  ASSERT_FALSE(waits.ok()) << "the new file is the one that counts";
  EXPECT_THAT(waits.error().message, HasSubstr("'newer'"));
  new_lock.reset();
  EXPECT_TRUE(env.lock(path, "", 0).ok());
  EXPECT_EQ(env.read_text(path).value(), "newer") << "without a content the file stays as it is";
}

// While an object of this class lives.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(umask(mask)) {}
  ~Umask() { umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  mode_t before_;
};

mode_t mode_of(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

TEST_F(PosixEnvTest, FilesHaveTheUmaskOfTheUser) {
  struct Case {
    mode_t mask, file, directory, lock;
  };
  for (const Case& each : {Case{0022, 0644, 0755, 0600}, Case{0002, 0664, 0775, 0660},
                           Case{0077, 0600, 0700, 0600}, Case{0027, 0640, 0750, 0600}}) {
    SCOPED_TRACE(each.mask);
    const Umask mask(each.mask);
    const std::string inside = directory / fmt::format("of-{:o}", each.mask);
    ASSERT_TRUE(env.make_directories(inside).ok());
    EXPECT_EQ(mode_of(inside), each.directory);
    ASSERT_TRUE(env.open(inside + "/file", OpenMode::create).ok());
    ASSERT_TRUE(env.append_line(inside + "/line", "one").ok());
    ASSERT_TRUE(env.replace_text(inside + "/text", "one").ok());
    for (const char* name : {"/file", "/line", "/text"}) EXPECT_EQ(mode_of(inside + name), each.file) << name;
    ASSERT_TRUE(env.lock(inside + "/lock", "one", 0).ok());
    EXPECT_EQ(mode_of(inside + "/lock"), each.lock);
    ASSERT_TRUE(env.replace_lock(inside + "/lock", "two").ok());
    EXPECT_EQ(mode_of(inside + "/lock"), each.lock);
  }
}

TEST_F(PosixEnvTest, WhatReplacesAFileHasItsMode) {
  const std::string path = directory / "text";
  ASSERT_TRUE(env.replace_text(path, "one").ok());
  for (const mode_t mode : {0600u, 0640u, 0666u}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    ASSERT_TRUE(env.replace_text(path, "two").ok());
    EXPECT_EQ(mode_of(path), mode);
  }
}

TEST_F(PosixEnvTest, AnOlderLockThatOthersMayReadIsClosedToThem) {
  const Umask mask(0022);
  const std::string path = directory / "lock";
  ASSERT_TRUE(env.replace_text(path, "an older program's").ok());
  ASSERT_EQ(mode_of(path), 0644u);
  ASSERT_TRUE(env.lock(path, "", 0).ok());
  EXPECT_EQ(mode_of(path), 0600u);
  EXPECT_EQ(env.read_text(path).value(), "an older program's");
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  ASSERT_TRUE(env.lock(path, "", 0).ok());
  EXPECT_EQ(mode_of(path), 0666u) << "whoever may write it may have the run";
}

// Each of them would wait for whoever opens the other end, or follow the link.
TEST_F(PosixEnvTest, PipesAndLinksInThePlaceOfFilesAreTold) {
  const std::string pipe = directory / "pipe", link = directory / "link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink((directory / "elsewhere").c_str(), link.c_str()), 0);
  EXPECT_THAT(env.read_text(pipe).error().message, HasSubstr("it is a pipe, a device or a socket"));
  EXPECT_THAT(env.open(pipe, OpenMode::read).error().message, HasSubstr("it is a pipe"));
  EXPECT_THAT(env.is_locked(pipe).error().message, HasSubstr("it is a pipe"));
  EXPECT_EQ(env.lock(pipe, "", 0).error().code, ExitCode::config);
  EXPECT_EQ(env.lock(link, "", 0).error().code, ExitCode::config);
  EXPECT_FALSE(env.is_locked(link).ok());
  EXPECT_FALSE(env.open(link, OpenMode::create).ok());
  EXPECT_FALSE(env.status(directory / "elsewhere")->exists);
  ASSERT_TRUE(env.replace_text(link, "one").ok());
  EXPECT_FALSE(env.status(directory / "elsewhere")->exists) << "the link is what is replaced";
}

TEST_F(PosixEnvTest, LockWaitsForTheHolder) {
  const std::string path = directory / "lock";
  auto held = env.lock(path, "first", 0).value();
  std::thread releaser([&] {
    env.sleep_us(80'000);
    held.reset();
  });
  EXPECT_TRUE(env.lock(path, "second", 10'000).ok());
  releaser.join();
}

TEST_F(PosixEnvTest, LockGoesWithAKilledProcess) {
  const std::string path = directory / "lock";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto held = env.lock(path, "child", 0);
    if (!held.ok() || write(ready[1], "x", 1) != 1) std::_Exit(1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(env.lock(path, "parent", 0).error().message, HasSubstr("'child'"));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(env.lock(path, "parent", 0).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST_F(PosixEnvTest, ChildDiesWithItsParent) {
  int ready[2];
  int alive[2];  // nobody writes: its end of file says that the grandchild is gone
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(alive), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    if (fork() == 0) {
      close(alive[0]);
      if (!env.die_with_parent().ok() || write(ready[1], "x", 1) != 1) std::_Exit(1);
      while (true) pause();
    }
    close(alive[1]);
    while (true) pause();
  }
  close(alive[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(parent, SIGKILL);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  EXPECT_EQ(read(alive[0], &byte, 1), 0);
  for (const int descriptor : {ready[0], ready[1], alive[0]}) close(descriptor);
}

TEST_F(PosixEnvTest, KillSelfIsSigkill) {
  EXPECT_EXIT(env.kill_self(), testing::KilledBySignal(SIGKILL), "");
}

TEST_F(PosixEnvTest, ClocksAndProcess) {
  const std::int64_t begin = env.monotonic_ns();
  env.sleep_us(2000);
  EXPECT_GE(env.monotonic_ns() - begin, 2'000'000);
  EXPECT_GT(env.wall_time_us(), std::int64_t{1'600'000'000} * 1'000'000);
  EXPECT_EQ(env.process_id(), getpid());
  EXPECT_FALSE(env.host_name().empty());
  EXPECT_GE(env.processor_count(), 1);
  EXPECT_GT(env.free_bytes(directory.path()).value(), 0u);
  std::set<std::uint64_t> values;
  for (int i = 0; i < 100; ++i) values.insert(env.random_u64());
  EXPECT_EQ(values.size(), 100u);
}

TEST_F(PosixEnvTest, VariablesAreEmptyWhenUnset) {
  ASSERT_EQ(setenv("HOLDFAST_TEST_VARIABLE", "value", 1), 0);
  EXPECT_EQ(env.variable("HOLDFAST_TEST_VARIABLE"), "value");
  unsetenv("HOLDFAST_TEST_VARIABLE");
  EXPECT_EQ(env.variable("HOLDFAST_TEST_VARIABLE"), "");
}

}  // namespace
}  // namespace holdfast::test
