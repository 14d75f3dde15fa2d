// The contract of an IoQueue, which both backends keep on a disk and in memory, and what happens where
// io_uring is forbidden.
#include "runtime/os/io_queue.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <set>
#include <thread>

#include "runtime/core/random.h"
#include "runtime/os/machine_facts.h"
#include "tests/support/faulty_env.h"
#include "tests/support/leave.h"
#include "tests/support/memory_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::size_t part_bytes = 16 * io_alignment_bytes;

void fill_randomly(std::span<std::byte> bytes, std::uint64_t seed) {
  const RandomStream stream(seed, 3);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(stream.bits(i / 8) >> (i % 8));
}

struct Place {
  IoBackend backend;
  const char* directory;  // empty: the disk that tests use
};

class IoQueueTest : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    const auto tried = posix_env().make_io_queue({.depth = 1, .backend = GetParam().backend});
    if (!tried.ok()) GTEST_SKIP() << tried.error().message;
    ASSERT_EQ((*tried)->backend(), GetParam().backend);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<IoQueue> queue(int depth = 8) {
    return env.make_io_queue({.depth = depth, .backend = GetParam().backend}).value();
  }
  std::string path() const { return directory_ + "/file"; }
  std::unique_ptr<File> create() { return env.open(path(), OpenMode::create_direct).value(); }
  // The parts of `bytes` one behind the other, then drain().
  static Result<void> write_all(IoQueue& queue, File& file, std::span<const std::byte> bytes) {
    Result<void> first;
    for (std::size_t offset = 0; offset < bytes.size(); offset += part_bytes) {
      if (queue.in_flight() == queue.depth()) {
        const Result<void> one = outcome_of(queue.wait().bytes);
        if (first.ok()) first = one;
      }
      queue.write(file, offset, bytes.subspan(offset, part_bytes), offset);
    }
    const Result<void> rest = queue.drain();
    return first.ok() ? rest : first;
  }
  std::vector<std::byte> content() {
    const auto file = posix_env().open(path(), OpenMode::read).value();
    std::vector<std::byte> bytes(file->size().value());
    EXPECT_TRUE(file->read_at(0, bytes).ok());
    return bytes;
  }

  TemporaryDirectory disk_;
  std::string directory_ = [&] {
    const std::string parent = GetParam().directory;
    if (parent.empty()) return disk_.path();
    std::string made = fmt::format("{}/holdfast-test-{:016x}", parent, posix_env().random_u64());
    std::filesystem::create_directory(made);
    return made;
  }();
  FaultyEnv env{posix_env()};
};

INSTANTIATE_TEST_SUITE_P(Backends, IoQueueTest,
                         testing::Values(Place{IoBackend::io_uring, ""}, Place{IoBackend::threads, ""},
                                         Place{IoBackend::io_uring, "/dev/shm"},
                                         Place{IoBackend::threads, "/dev/shm"}),
                         [](const auto& place) {
                           return fmt::format("{}_{}", name_of(place.param.backend),
                                              *place.param.directory == '\0' ? "disk" : "memory");
                         });

TEST_P(IoQueueTest, MovesEveryByteAndGivesEveryTagBackOnce) {
  constexpr std::size_t parts = 50;
  const AlignedBuffer source(parts * part_bytes), target(parts * part_bytes);
  fill_randomly(source.bytes(), 1);
  const auto file = create();
  const auto queue = this->queue();
  std::set<std::uint64_t> tags;
  std::size_t begun = 0;
  const auto run = [&](const auto& begin) {
    tags.clear();
    for (begun = 0; begun < parts || queue->in_flight() > 0;) {
      if (begun < parts && queue->in_flight() < queue->depth()) {
        begin((begun * 7 % parts) * part_bytes);
        ++begun;
        continue;
      }
      const IoCompletion completion = queue->wait();
      ASSERT_TRUE(completion.bytes.ok()) << completion.bytes.error().message;
      ASSERT_EQ(*completion.bytes, part_bytes);
      ASSERT_TRUE(tags.insert(completion.tag).second) << completion.tag;
    }
    ASSERT_EQ(tags.size(), parts);
  };
  run([&](std::size_t at) { queue->write(*file, at, source.bytes().subspan(at, part_bytes), at); });
  queue->sync(*file, 99);
  const IoCompletion synced = queue->wait();
  EXPECT_EQ(synced.tag, 99u);
  EXPECT_TRUE(synced.bytes.ok());
  EXPECT_TRUE(std::ranges::equal(content(), source.bytes()));
  const auto reader = env.open(path(), OpenMode::read_direct).value();
  run([&](std::size_t at) { queue->read(*reader, at, target.bytes().subspan(at, part_bytes), at); });
  EXPECT_TRUE(std::ranges::equal(target.bytes(), source.bytes()));
}

TEST_P(IoQueueTest, AFileThatWasNotOpenedForDirectIoWorksAlike) {
  const AlignedBuffer source(4 * part_bytes);
  fill_randomly(source.bytes(), 2);
  const auto file = env.open(path(), OpenMode::create).value();
  EXPECT_EQ(file->buffered_reason(), "it was not opened for direct I/O");
  ASSERT_TRUE(write_all(*queue(), *file, source.bytes()).ok());
  EXPECT_TRUE(std::ranges::equal(content(), source.bytes()));
}

TEST_P(IoQueueTest, RegisteredBuffersMoveTheSameBytes) {
  const AlignedBuffer source(4 * part_bytes), target(4 * part_bytes);
  fill_randomly(source.bytes(), 3);
  const auto queue = this->queue();
  const std::array<std::span<std::byte>, 2> buffers = {source.bytes(), target.bytes()};
  const bool registered = queue->register_buffers(buffers);
  EXPECT_FALSE(registered && GetParam().backend == IoBackend::threads);
  const auto file = create();
  ASSERT_TRUE(write_all(*queue, *file, source.bytes()).ok());
  queue->read(*file, 0, target.bytes(), 0);
  EXPECT_EQ(queue->wait().bytes.value(), 4 * part_bytes);
  EXPECT_TRUE(std::ranges::equal(target.bytes(), source.bytes()));
}

TEST_P(IoQueueTest, ReadsStopAtTheEndOfTheFile) {
  const AlignedBuffer target(4 * io_alignment_bytes);
  const auto file = create();
  const std::vector<std::byte> bytes(2 * io_alignment_bytes + 808, std::byte{7});
  ASSERT_TRUE(file->write_at(0, bytes).ok());
  ASSERT_TRUE(file->sync().ok());
  const auto queue = this->queue();
  for (const auto& [offset, expected] :
       {std::pair{0u, 9000u}, {4096u, 4904u}, {8192u, 808u}, {12288u, 0u}, {1u << 20, 0u}}) {
    queue->read(*file, offset, target.bytes(), 1);
    EXPECT_EQ(queue->wait().bytes.value(), expected) << offset;
  }
  EXPECT_TRUE(std::ranges::all_of(target.bytes().first(808), [](std::byte b) { return b == std::byte{7}; }));
}

TEST_P(IoQueueTest, TruncateCutsTheUnusedEnd) {
  const AlignedBuffer source(part_bytes);
  fill_randomly(source.bytes(), 4);
  const auto file = create();
  ASSERT_TRUE(file->allocate(10 * part_bytes).ok());
  ASSERT_TRUE(write_all(*queue(), *file, source.bytes()).ok());
  ASSERT_TRUE(file->truncate(part_bytes - 100).ok());
  EXPECT_TRUE(std::ranges::equal(content(), source.bytes().first(part_bytes - 100)));
}

TEST_P(IoQueueTest, ASyncWaitsForTheWritesOfItsFile) {
  const AlignedBuffer source(part_bytes);
  const auto file = create();
  const auto queue = this->queue(8);
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t tag = 0; tag < 7; ++tag) queue->write(*file, tag * part_bytes, source.bytes(), tag);
    queue->sync(*file, 7);
    std::uint64_t last = 0;
    while (queue->in_flight() > 0) last = queue->wait().tag;
    ASSERT_EQ(last, 7u);
  }
  EXPECT_EQ(env.count(Operation::sync), 20u);
}

TEST_P(IoQueueTest, AFailedWriteIsTheLastWordOfItsFile) {
  const AlignedBuffer source(4 * part_bytes);
  for (const int reason : {EIO, ENOSPC, EDQUOT}) {
    const std::uint64_t syncs = env.count(Operation::sync);
    env.inject({.operation = Operation::write, .at = 2, .short_write = true, .reason = reason});
    const auto file = create();
    const auto queue = this->queue(4);
    for (std::uint64_t tag = 0; tag < 3; ++tag) queue->write(*file, tag * part_bytes, source.bytes(), tag);
    queue->sync(*file, 3);
    int failures = 0;
    while (queue->in_flight() > 0) {
      const IoCompletion completion = queue->wait();
      const bool must_fail = completion.tag == 1 || completion.tag == 3;
      EXPECT_EQ(completion.bytes.ok(), !must_fail) << completion.tag;
      if (completion.bytes.ok()) continue;
      ++failures;
      EXPECT_EQ(completion.bytes.error().code, ExitCode::checkpoint);
      EXPECT_THAT(completion.bytes.error().message, HasSubstr("cannot write " + path()));
      EXPECT_EQ(completion.bytes.error().message.find("the disk is full") != std::string::npos,
                reason != EIO);
    }
    EXPECT_EQ(failures, 2);
    const std::uint64_t writes = env.count(Operation::write);
    queue->write(*file, 0, source.bytes(), 4);
    EXPECT_FALSE(queue->wait().bytes.ok());
    queue->sync(*file, 5);
    EXPECT_FALSE(queue->wait().bytes.ok());
    EXPECT_EQ(env.count(Operation::write), writes) << "nothing more reached the disk";
    EXPECT_EQ(env.count(Operation::sync), syncs) << "a sync would have made a lie durable";
    ASSERT_TRUE(posix_env().remove(path()).ok());
  }
}

TEST_P(IoQueueTest, AFailedSyncIsNotRepeated) {
  const AlignedBuffer source(part_bytes);
  env.inject({.operation = Operation::sync});
  const auto file = create();
  const auto queue = this->queue();
  queue->write(*file, 0, source.bytes(), 0);
  queue->sync(*file, 1);
  const Result<void> drained = queue->drain();
  ASSERT_FALSE(drained.ok());
  EXPECT_THAT(drained.error().message, HasSubstr("cannot make durable " + path() + ": Input/output error"));
  queue->sync(*file, 2);
  EXPECT_FALSE(queue->wait().bytes.ok());
  EXPECT_EQ(env.count(Operation::sync), 1u);
  const auto other = env.open(path() + "2", OpenMode::create_direct).value();
  queue->sync(*other, 3);
  EXPECT_TRUE(queue->wait().bytes.ok()) << "another file has nothing to do with it";
}

TEST_P(IoQueueTest, AReadErrorSaysReadAndDoesNotStick) {
  const AlignedBuffer bytes(part_bytes);
  const auto file = create();
  ASSERT_TRUE(write_all(*queue(), *file, bytes.bytes()).ok());
  env.inject({.operation = Operation::read});
  const auto queue = this->queue();
  queue->read(*file, 0, bytes.bytes(), 0);
  const IoCompletion failed = queue->wait();
  ASSERT_FALSE(failed.bytes.ok());
  EXPECT_EQ(failed.bytes.error().code, ExitCode::data);
  EXPECT_EQ(failed.bytes.error().message, "cannot read " + path() + ": Input/output error");
  queue->read(*file, 0, bytes.bytes(), 0);
  EXPECT_TRUE(queue->wait().bytes.ok());
}

TEST_P(IoQueueTest, WhatIsInterruptedPutOffOrCutShortIsFinished) {
  const AlignedBuffer source(8 * part_bytes), target(8 * part_bytes);
  fill_randomly(source.bytes(), 5);
  for (std::uint64_t at = 1; at <= 4; ++at) {
    env.inject({.operation = Operation::write, .at = at, .reason = EINTR});
    env.inject({.operation = Operation::write, .at = at + 2, .reason = EAGAIN});
    env.inject({.operation = Operation::write, .at = at + 4, .only_short = true});
    env.inject({.operation = Operation::read, .at = at, .only_short = true});
    env.inject({.operation = Operation::read, .at = at + 2, .reason = EINTR});
    env.inject({.operation = Operation::sync, .at = 1, .reason = EINTR});
    const auto file = create();
    const auto queue = this->queue(3);
    ASSERT_TRUE(write_all(*queue, *file, source.bytes()).ok());
    queue->sync(*file, 0);
    ASSERT_TRUE(queue->drain().ok());
    ASSERT_TRUE(std::ranges::equal(content(), source.bytes()));
    std::ranges::fill(target.bytes(), std::byte{0});
    for (std::size_t offset = 0; offset < target.bytes().size(); offset += part_bytes) {
      queue->read(*file, offset, target.bytes().subspan(offset, part_bytes), offset);
      EXPECT_EQ(queue->wait().bytes.value(), part_bytes);
    }
    EXPECT_TRUE(std::ranges::equal(target.bytes(), source.bytes()));
    ASSERT_TRUE(posix_env().remove(path()).ok());
  }
  EXPECT_EQ(env.failure_count(), 24u) << "each of them happened";
}

TEST_P(IoQueueTest, WhatIsPutOffForEverIsAnError) {
  const AlignedBuffer source(part_bytes);
  env.inject({.operation = Operation::write, .for_ever = true, .reason = EAGAIN});
  const auto file = create();
  const auto queue = this->queue();
  queue->write(*file, 0, source.bytes(), 0);
  const IoCompletion completion = queue->wait();
  ASSERT_FALSE(completion.bytes.ok());
  EXPECT_THAT(completion.bytes.error().message, HasSubstr("Resource temporarily unavailable"));
}

TEST_P(IoQueueTest, AnOperationThatIsRefusedForBeingDirectGoesThroughTheCache) {
  const auto file = posix_env().open(path(), OpenMode::create_direct).value();
  if (!file->buffered_reason().empty()) GTEST_SKIP() << file->buffered_reason();
  const auto engine = posix_env().make_io_engine({.depth = 1, .backend = GetParam().backend}).value();
  std::vector<std::byte> bytes(1000, std::byte{3});
  engine->start({.kind = IoKind::write, .file = file.get(), .offset = 1, .bytes = bytes});
  EXPECT_EQ(engine->wait().result, 1000);
  EXPECT_EQ(file->size().value(), 1001u);
  if (*GetParam().directory == '\0') {  // memory minds no alignment
    EXPECT_EQ(file->buffered_reason(), "the file system refused a direct operation (Invalid argument)");
  }
}

TEST_P(IoQueueTest, TheDestructorWaits) {
  const AlignedBuffer source(8 * part_bytes);
  fill_randomly(source.bytes(), 6);
  const auto file = create();
  {
    const auto queue = this->queue(8);
    for (std::size_t i = 0; i < 8; ++i) {
      queue->write(*file, i * part_bytes, source.bytes().subspan(i * part_bytes, part_bytes), i);
    }
  }
  EXPECT_TRUE(std::ranges::equal(content(), source.bytes()));
}

// What the queue itself checks is the same in front of every engine; this one has no threads that a death
// test would have to leave behind.
TEST(IoQueueMisuse, IsABug) {
  MemoryEnv env;
  const AlignedBuffer source(part_bytes);
  const auto file = env.open("/file", OpenMode::create_direct).value();
  const auto queue = env.make_io_queue({.depth = 1}).value();
  EXPECT_DEATH(queue->write(*file, 1, source.bytes(), 0), "not aligned");
  EXPECT_DEATH(queue->write(*file, 0, source.bytes().subspan(8), 0), "not aligned");
  EXPECT_DEATH(queue->write(*file, 0, source.bytes().first(4000), 0), "not aligned");
  EXPECT_DEATH(static_cast<void>(queue->wait()), "nothing is in flight");
  EXPECT_DEATH(std::jthread([&] { queue->write(*file, 0, source.bytes(), 0); }).join(),
               "belongs to the thread that made it");
  queue->write(*file, 0, source.bytes(), 0);
  EXPECT_DEATH(queue->write(*file, 0, source.bytes(), 1), "1 operations are in flight already");
}

TEST(IoBackendNames, AreThoseOfTheConfig) {
  for (const IoBackend backend : {IoBackend::automatic, IoBackend::io_uring, IoBackend::threads})
    EXPECT_EQ(io_backend_of(name_of(backend)), backend);
  EXPECT_EQ(name_of(IoBackend::automatic), "auto");
}

// As the seccomp filters of containers do: io_uring_setup(2) fails with `reason`.
bool forbid_io_uring(unsigned reason) {
  std::array<sock_filter, 4> rules = {
      {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
       {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_setup},
       {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | (reason & SECCOMP_RET_DATA)},
       {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}}};
  const sock_fprog program{.len = rules.size(), .filter = rules.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// In a process of its own, because a filter cannot be taken off. The status says what was not as expected.
int try_without_io_uring(unsigned reason, const std::string& path, const std::string& expected) {
  Env& env = posix_env();
  if (!forbid_io_uring(reason)) return 1;
  const auto insisted = env.make_io_queue({.backend = IoBackend::io_uring});
  if (insisted.ok() || insisted.error().code != ExitCode::config) return 2;
  if (insisted.error().message != "io_uring cannot be used: " + expected + "; take \"auto\" or \"threads\"")
    return 3;
  const auto queue = env.make_io_queue({});
  if (!queue.ok() || (*queue)->backend() != IoBackend::threads) return 4;
  if ((*queue)->fallback_reason() != expected) return 5;
  const auto file = env.open(path, OpenMode::create_direct);
  const AlignedBuffer source(part_bytes);
  (*queue)->write(**file, 0, source.bytes(), 0);
  (*queue)->sync(**file, 1);
  if (!(*queue)->drain().ok() || (*file)->size().value() != part_bytes) return 6;
  const std::vector<MachineFact> facts = machine_facts(env);
  const MachineFact fact = *std::ranges::find(facts, "io_uring", &MachineFact::name);
  return !fact.there && fact.detail.starts_with(expected) ? 0 : 7;
}

TEST(IoQueueForbidden, ThreadsDoItAndItIsSaidWhy) {
  const auto disabled = posix_env().read_text("/proc/sys/kernel/io_uring_disabled");
  if (disabled.ok() && disabled->front() != '0') GTEST_SKIP() << "it is forbidden to all here";
  const TemporaryDirectory directory;
  for (const auto& [reason, expected] : {std::pair{EPERM, "Operation not permitted, as in most containers"},
                                         {ENOSYS, "this kernel has no io_uring"}}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0)
      test::leave(try_without_io_uring(static_cast<unsigned>(reason),
                                       fmt::format("{}/{}", directory.path(), reason), expected));
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << expected;
  }
}

}  // namespace
}  // namespace holdfast::test
