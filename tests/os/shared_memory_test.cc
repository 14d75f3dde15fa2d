#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "runtime/os/machine_facts.h"
#include "runtime/os/resizable_memory.h"
#include "tests/support/faulty_env.h"
#include "tests/support/leave.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

class SharedMemoryTest : public testing::Test {
 protected:
  ~SharedMemoryTest() override { EXPECT_TRUE(env.remove_shared_memory(name).ok()); }
  static bool has_names(const std::string& prefix) {
    const auto names = posix_env().list_shared_memory();
    return !names.ok() || std::ranges::any_of(
                              names.value(), [&](const std::string& one) { return one.starts_with(prefix); });
  }

  FaultyEnv env{posix_env()};
  // What others, or other programs, can have put there; the sentence that follows.
  std::string refusal() {
    const auto opened = env.open_shared_memory(name);
    if (opened.ok()) return "opened";
    EXPECT_EQ(opened.error().code, ExitCode::data);
    const std::string message = opened.error().message;
    EXPECT_TRUE(env.remove_shared_memory(name).ok());
    return message;
  }

  const std::string name = fmt::format("holdfast-test-{}-{:016x}", getpid(), posix_env().random_u64());
  const std::string path = env.shared_memory_path(name);
};

TEST_F(SharedMemoryTest, AnotherProcessSeesWhatIsWritten) {
  auto made = env.create_shared_memory(name, 10'000).value();
  ASSERT_EQ(made->bytes().size(), 10'000u);
  EXPECT_TRUE(std::ranges::all_of(made->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  made->bytes().back() = std::byte{7};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto opened = posix_env().open_shared_memory(name);
    if (!opened.ok() || (*opened)->bytes().back() != std::byte{7}) test::leave(1);
    (*opened)->bytes().front() = std::byte{9};
    test::leave(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(made->bytes().front(), std::byte{9});
}

TEST_F(SharedMemoryTest, ManyHoldItSharedOrOneAlone) {
  using Hold = SharedMemory::Hold;
  const auto first = env.create_shared_memory(name, 10).value();
  auto second = env.open_shared_memory(name).value();
  EXPECT_TRUE(first->hold(Hold::alone)) << "nobody else holds it";
  EXPECT_FALSE(second->hold(Hold::shared));
  EXPECT_TRUE(first->hold(Hold::shared));
  EXPECT_TRUE(second->hold(Hold::shared));
  EXPECT_FALSE(first->hold(Hold::alone));
  EXPECT_TRUE(first->hold(Hold::shared));
  second.reset();
  EXPECT_TRUE(first->hold(Hold::alone));
}

TEST_F(SharedMemoryTest, ADeadProcessHoldsNothing) {
  const auto made = env.create_shared_memory(name, 10).value();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto opened = posix_env().open_shared_memory(name);
    const bool held = opened.ok() && (*opened)->hold(SharedMemory::Hold::shared);
    if (held && write(ready[1], "", 1) == 1) pause();
    test::leave(1);
  }
  char word = 1;
  close(ready[1]);
  EXPECT_EQ(read(ready[0], &word, 1), 1);
  close(ready[0]);
  EXPECT_FALSE(made->hold(SharedMemory::Hold::alone));
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(made->hold(SharedMemory::Hold::alone));
}

TEST_F(SharedMemoryTest, OutlivesItsMappingsUntilItsNameIsRemoved) {
  env.create_shared_memory(name, 100).value()->bytes()[50] = std::byte{5};
  const auto mapped = env.open_shared_memory(name).value();
  EXPECT_EQ(mapped->bytes().size(), 100u);
  EXPECT_EQ(mapped->bytes()[50], std::byte{5});
  EXPECT_TRUE(env.remove_shared_memory(name).ok());
  EXPECT_TRUE(env.remove_shared_memory(name).ok()) << "missing is ok";
  EXPECT_EQ(mapped->bytes()[50], std::byte{5}) << "a mapping outlives the name";
  const auto gone = env.open_shared_memory(name);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().message, "cannot open the shared memory " + path + ": No such file or directory");
}

TEST_F(SharedMemoryTest, IsMadeOnceOnly) {
  const auto first = env.create_shared_memory(name, 100).value();
  first->bytes()[0] = std::byte{1};
  const auto second = env.create_shared_memory(name, 100);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr(name + ": File exists"));
  EXPECT_EQ(env.open_shared_memory(name).value()->bytes()[0], std::byte{1});
}

TEST_F(SharedMemoryTest, MoreThanThereIsIsAnErrorAndLeavesNothing) {
  const auto refused = env.create_shared_memory(name, std::uint64_t{1} << 62);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ExitCode::does_not_fit);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("of shared memory for " + path), HasSubstr("make it larger")));
  EXPECT_FALSE(has_names(name));
}

TEST_F(SharedMemoryTest, IsResizedInPlace) {
  const Result<std::unique_ptr<SharedMemory>> made = env.create_shared_memory(name, 64 << 10);
  ASSERT_TRUE(made.ok());
  auto* const memory = dynamic_cast<ResizableSharedMemory*>(made->get());
  ASSERT_NE(memory, nullptr);
  memory->bytes()[1000] = std::byte{7};
  memory->bytes()[40'000] = std::byte{9};
  ASSERT_TRUE(memory->resize(1 << 20).ok());
  ASSERT_EQ(memory->bytes().size(), std::size_t{1} << 20);
  EXPECT_EQ(memory->bytes()[1000], std::byte{7});
  EXPECT_EQ(memory->bytes().back(), std::byte{0});
  ASSERT_TRUE(memory->resize(8 << 10).ok());
  const Result<std::unique_ptr<SharedMemory>> seen = env.open_shared_memory(name);
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ((*seen)->bytes().size(), std::size_t{8} << 10);
  ASSERT_TRUE(memory->resize(64 << 10).ok());
  EXPECT_EQ(memory->bytes()[1000], std::byte{7});
  EXPECT_EQ(memory->bytes()[40'000], std::byte{0}) << "it was given back";
}

TEST_F(SharedMemoryTest, OneThatCannotGrowStaysAsItIs) {
  const Result<std::unique_ptr<SharedMemory>> made = env.create_shared_memory(name, 8 << 10);
  ASSERT_TRUE(made.ok());
  auto* const memory = dynamic_cast<ResizableSharedMemory*>(made->get());
  ASSERT_NE(memory, nullptr);
  memory->bytes()[1000] = std::byte{7};
  const Result<void> grown = memory->resize(std::uint64_t{1} << 50);
  ASSERT_FALSE(grown.ok());
  EXPECT_EQ(grown.error().code, ExitCode::does_not_fit);
  EXPECT_EQ(memory->bytes().size(), std::size_t{8} << 10);
  EXPECT_EQ(memory->bytes()[1000], std::byte{7});
}

TEST_F(SharedMemoryTest, OneThatWasNotFinishedIsNotOpened) {
  const mode_t before = umask(0077);
  ASSERT_TRUE(env.open(path, OpenMode::create).ok());
  umask(before);
  const auto opened = env.open_shared_memory(name);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message, HasSubstr("is empty"));
}

TEST_F(SharedMemoryTest, IsOfItsUserAlone) {
  const mode_t before = umask(0);
  ASSERT_TRUE(env.create_shared_memory(name, 100).ok());
  umask(before);
  struct stat memory {
  }, directory{};
  ASSERT_EQ(lstat(path.c_str(), &memory), 0);
  EXPECT_EQ(memory.st_mode & 07777, 0600u);
  const std::string parent = path.substr(0, path.rfind('/'));
  EXPECT_THAT(parent, testing::StartsWith(fmt::format("/dev/shm/holdfast-{}", geteuid())));
  ASSERT_EQ(lstat(parent.c_str(), &directory), 0);
  EXPECT_TRUE(S_ISDIR(directory.st_mode));
  EXPECT_EQ(directory.st_mode & 0077, 0u);
  EXPECT_EQ(directory.st_uid, geteuid());
  EXPECT_TRUE(has_names(name));
}

TEST_F(SharedMemoryTest, WhatIsNotOfItsUserAloneIsRefused) {
  const auto make = [&] { ASSERT_TRUE(env.create_shared_memory(name, 100).ok()); };
  make();
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("others may open it (mode 640)"), HasSubstr("remove it")));
  make();
  ASSERT_EQ(link(path.c_str(), (path + "-second").c_str()), 0);
  EXPECT_THAT(refusal(), HasSubstr("it has 2 names"));
  ASSERT_EQ(symlink((path + "-second").c_str(), path.c_str()), 0);
  EXPECT_FALSE(env.create_shared_memory(name, 100).ok());
  EXPECT_THAT(refusal(), HasSubstr("it is a link"));
  ASSERT_TRUE(env.remove_shared_memory(name + "-second").ok());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("it is no file"));
  if (geteuid() != 0) return;
  make();
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  EXPECT_THAT(refusal(), HasSubstr("it belongs to user 65534"));
}

TEST_F(SharedMemoryTest, ADirectoryIsOfItsUserAloneToo) {
  const mode_t before = umask(0);
  EXPECT_EQ(env.make_shared_directory(name).value(), path);
  umask(before);
  struct stat made {};
  ASSERT_EQ(lstat(path.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, 0700u);
  EXPECT_TRUE(env.make_shared_directory(name).ok()) << "again";
  ASSERT_EQ(chmod(path.c_str(), 0750), 0);
  EXPECT_EQ(env.make_shared_directory(name).error().code, ExitCode::config);
  ASSERT_TRUE(env.remove_tree(path).ok());
  ASSERT_TRUE(env.create_shared_memory(name, 10).ok());
  EXPECT_THAT(env.make_shared_directory(name).error().message, HasSubstr("is no directory that user"));
}

TEST_F(SharedMemoryTest, MachineFactsTryIt) {
  const auto fact = [&] {
    const std::vector<MachineFact> facts = machine_facts(env);
    return *std::ranges::find(facts, "/dev/shm", &MachineFact::name);
  };
  const std::string prefix = fmt::format("holdfast-probe-{}-", getpid());
  EXPECT_TRUE(fact().there);
  EXPECT_THAT(fact().detail, HasSubstr("writable"));
  EXPECT_FALSE(has_names(prefix));
  for (const Operation operation : {Operation::create_shared_memory, Operation::open_shared_memory}) {
    env.clear_faults();
    env.inject({.operation = operation, .path_contains = "holdfast-probe", .reason = EACCES});
    const MachineFact refused = fact();
    EXPECT_FALSE(refused.there);
    EXPECT_THAT(refused.detail, HasSubstr("Permission denied"));
    EXPECT_FALSE(has_names(prefix));
  }
}

}  // namespace
}  // namespace holdfast::test
