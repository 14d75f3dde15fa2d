#include "tools/chaos/lasting_fault.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "runtime/os/fifo.h"
#include "runtime/os/mounts.h"
#include "tests/support/forwarding_env.h"
#include "tests/support/skip.h"
#include "tools/chaos/faulty_storage.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class LastingFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    // Its own: tests run beside each other.
    folder_ = fmt::format("{}lasting_fault-{}", testing::TempDir(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(env_.remove_tree(folder_).ok());
    ASSERT_TRUE(env_.make_directories(folder_).ok());
    setup_.steps = 100;
    setup_.hosts = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
    setup_.other_hosts = {"b", "c"};
    const std::string log = " >> " + folder_ + "/log";
    setup_.host_commands = {{"lose-host", "echo lose {host} and {host}" + log},
                            {"return-host", "echo back" + log + "; echo"},
                            {"cut-link", "echo no switch >&2; exit 3; #"},
                            {"mend-link", "true"}};
  }
  void TearDown() override { EXPECT_TRUE(env_.remove_tree(folder_).ok()); }

  Env& env_ = posix_env();
  std::string folder_;
  ChaosSetup setup_;
};

TEST_F(LastingFaultTest, AHostIsLostAndComesBackByTheUsersCommands) {
  const ChaosInjection injection{.fault = ChaosFault::lost_host, .victim = 3, .lasts = 4};
  LastingFault fault(env_, setup_, {}, injection);
  EXPECT_EQ(fault.what(), "host c is lost for 4 steps");
  ASSERT_TRUE(fault.begin().ok());
  fault.since(10);
  EXPECT_EQ(env_.read_text(folder_ + "/log").value(), "lose c and c\n");
  EXPECT_FALSE(fault.is_over(13));
  EXPECT_TRUE(fault.is_over(14));
  ASSERT_TRUE(fault.end().ok());
  EXPECT_EQ(env_.read_text(folder_ + "/log").value(), "lose c and c\nback\n") << "the name stands behind it";
}

TEST_F(LastingFaultTest, TheNameOfAHostIsOneWord) {
  setup_.other_hosts = {"x; touch " + folder_ + "/made"};
  const ChaosInjection injection{.fault = ChaosFault::lost_host, .victim = 0, .lasts = 4};
  LastingFault fault(env_, setup_, {}, injection);
  ASSERT_TRUE(fault.begin().ok());
  ASSERT_TRUE(fault.end().ok());
  EXPECT_FALSE(env_.status(folder_ + "/made")->exists);
  EXPECT_THAT(env_.read_text(folder_ + "/log").value(), HasSubstr("lose x; touch "));
}

TEST_F(LastingFaultTest, TheNamesOfAPairAreOneWordEach) {
  setup_.hosts = {{.name = "{peer}"}, {.name = "x; touch " + folder_ + "/made"}};
  setup_.other_hosts = {"{peer}"};
  const ChaosInjection injection{.fault = ChaosFault::cut_pair, .victim = 0, .lasts = 4};
  LastingFault fault(env_, setup_, {}, injection);
  setup_.host_commands["cut-pair"] = "echo {host} > " + folder_ + "/log {peer}";
  ASSERT_TRUE(fault.begin().ok());
  EXPECT_FALSE(env_.status(folder_ + "/made")->exists);
  EXPECT_THAT(env_.read_text(folder_ + "/log").value(), HasSubstr("{peer} x; touch "));
}

TEST_F(LastingFaultTest, EveryFaultOfHostsIsMadeAndEndedByItsOwnCommands) {
  for (const std::string_view option : host_fault_options())
    setup_.host_commands[std::string(option)] =
        fmt::format("echo {} >> {}/log {}", option, folder_, option.ends_with("pair") ? "{host} {peer}" : "");
  std::string expected;
  for (const HostFault& of_host : host_faults()) {
    const bool ends = !of_host.end.empty(), is_by_clock = is_timed(of_host.fault);
    const ChaosInjection injection{.fault = of_host.fault,
                                   .victim = 1,
                                   .pause_us = 60'000'000,
                                   .lasts = ends && !is_by_clock ? std::uint64_t{4} : 0};
    LastingFault fault(env_, setup_, {}, injection);
    EXPECT_EQ(fault.host(), "c");
    EXPECT_EQ(fault.peer(), of_host.of_pair ? "a" : "");
    const std::string names = of_host.of_pair ? "c a" : "c";
    const char* const time = is_by_clock ? " for 60.0 s" : ends ? " for 4 steps" : "";
    EXPECT_EQ(fault.what(), fmt::format("host c {}{}{}", of_host.text, of_host.of_pair ? " a" : "", time));
    ASSERT_TRUE(fault.begin().ok());
    fault.since(10);
    EXPECT_EQ(fault.is_over(10), !ends) << fault.what();
    ASSERT_TRUE(fault.end().ok());
    expected += fmt::format("{} {}\n", of_host.begin, names);
    if (ends) expected += fmt::format("{} {}\n", of_host.end, names);
  }
  EXPECT_EQ(env_.read_text(folder_ + "/log").value(), expected);
}

TEST_F(LastingFaultTest, ACommandThatFailsIsToldWithWhatItSaid) {
  const ChaosInjection injection{.fault = ChaosFault::cut_link, .victim = 0, .lasts = 4};
  LastingFault fault(env_, setup_, {}, injection);
  EXPECT_EQ(fault.what(), "host b is cut off for 4 steps");
  const Result<void> begun = fault.begin();
  ASSERT_FALSE(begun.ok());
  EXPECT_THAT(begun.error().message, HasSubstr("# b\" ended with exit code 3: no switch"));
}

TEST_F(LastingFaultTest, IsOverBeforeTheRunIs) {
  const ChaosInjection injection{.fault = ChaosFault::lost_host, .victim = 0, .lasts = 12};
  LastingFault fault(env_, setup_, {}, injection);
  ASSERT_TRUE(fault.begin().ok());
  fault.since(95);
  EXPECT_TRUE(fault.is_over(98));
}

TEST_F(LastingFaultTest, OutputThatNobodyReadsIsAFullPipeUntilItIsReadAgain) {
  const std::string path = folder_ + "/output";
  const Result<std::unique_ptr<Fifo>> made = make_posix_fifo(path);
  ASSERT_TRUE(made.ok()) << made.error().message;
  Fifo& output = **made;
  const auto write_within_a_second = [&](const std::string& line) {
    return env_.run_command({.line = fmt::format("echo {} > {}", line, path), .timeout_ms = 1'000}).value();
  };
  EXPECT_TRUE(write_within_a_second("one").succeeded());
  const ChaosInjection injection{.fault = ChaosFault::stalled_output, .pause_us = 20'000};
  LastingFault fault(env_, setup_, {.output = &output}, injection);
  EXPECT_EQ(fault.what(), "nobody reads the output for 0.0 s");
  ASSERT_TRUE(fault.begin().ok());
  fault.since(99);
  EXPECT_FALSE(fault.is_over(100)) << "steps do not end it";
  EXPECT_EQ(write_within_a_second("two").how, CommandEnd::How::timed_out);
  EXPECT_TRUE(fault.is_over(1));
  ASSERT_TRUE(fault.end().ok());
  EXPECT_EQ(output.read(), "one\n") << "and what filled it is left out";
  EXPECT_TRUE(write_within_a_second("three").succeeded());
  EXPECT_EQ(output.read(), "three\n");
}

TEST_F(LastingFaultTest, AStalledDiskTakesNoWriteUntilItResumes) {
  if (const std::string reason = StallingDisk::why_not(env_); !reason.empty()) HF_SKIP_OUTSIDE_CI(reason);
  if (const Result<void> own = posix_mounts().begin_own(); !own.ok()) HF_SKIP_OUTSIDE_CI(own.error().message);
  const std::string directory = folder_ + "/run";
  {
    Result<std::unique_ptr<StallingDisk>> disk =
        StallingDisk::mount(env_, posix_mounts(), directory, std::uint64_t{32} << 20);
    ASSERT_TRUE(disk.ok()) << disk.error().message;
    ASSERT_TRUE(env_.append_line(directory + "/log", "one").ok());
    const ChaosInjection injection{.fault = ChaosFault::stalled_disk, .pause_us = 200'000};
    LastingFault fault(env_, setup_, {.stalling_disk = disk->get()}, injection);
    const std::int64_t begin_ns = env_.monotonic_ns();
    ASSERT_TRUE(fault.begin().ok());
    std::thread resumes([&] {
      while (!fault.is_over(0)) env_.sleep_us(1'000);
      EXPECT_TRUE(fault.end().ok());
    });
    EXPECT_TRUE(env_.append_line(directory + "/log", "two").ok()) << "it waits, and does not fail";
    resumes.join();
    EXPECT_GE(env_.monotonic_ns() - begin_ns, 200'000'000);
    ASSERT_TRUE((*disk)->keep().ok());
  }
  EXPECT_EQ(env_.read_text(directory + "/log").value(), "one\ntwo\n");
  EXPECT_THAT(env_.list(folder_).value(), ElementsAre("run")) << "the image is gone";
}

TEST_F(LastingFaultTest, CallsToSlowStorageTakeAsLongAsIsSaid) {
  if (const std::string reason = why_no_slow_files(); !reason.empty()) HF_SKIP_OUTSIDE_CI(reason);
  if (const Result<void> own = posix_mounts().begin_own(); !own.ok()) HF_SKIP_OUTSIDE_CI(own.error().message);
  const std::string directory = folder_ + "/run", tokens = folder_ + "/tokens";
  ASSERT_TRUE(env_.replace_text(tokens, "text").ok());
  {
    Result<std::unique_ptr<SlowStorage>> storage = SlowStorage::mount(env_, directory, {tokens});
    ASSERT_TRUE(storage.ok()) << storage.error().message;
    ASSERT_TRUE(env_.replace_text(directory + "/status", "one").ok());
    const auto read_ms = [&](const std::string& path) {
      const std::int64_t begin_ns = env_.monotonic_ns();
      EXPECT_TRUE(env_.run_command({.line = "cat " + path, .timeout_ms = 60'000})->succeeded());
      return (env_.monotonic_ns() - begin_ns) / 1'000'000;
    };
    for (const bool of_data : {false, true}) {
      const ChaosInjection injection{
          .fault = ChaosFault::slow_storage, .pause_us = 3'600'000'000, .call_ms = 1'000, .of_data = of_data};
      LastingFault fault(env_, setup_, {.slow_storage = storage->get()}, injection);
      EXPECT_EQ(fault.what(), fmt::format("each call to the {} takes 1 s for 3600.0 s",
                                          of_data ? "training data" : "run directory"));
      ASSERT_TRUE(fault.begin().ok());
      EXPECT_FALSE(fault.is_over(1'000)) << "steps do not end it";
      EXPECT_GE(read_ms(of_data ? tokens : directory + "/status"), 1'000);
      ASSERT_TRUE(fault.end().ok());
    }
    EXPECT_EQ(env_.read_text(tokens).value(), "text");
  }
  EXPECT_EQ(env_.read_text(directory + "/status").value(), "one");
}

// What it hides and shows is the system's.
class NoMounts final : public Mounts {
 public:
  Result<void> begin_own() override { return {}; }
  Result<void> mount_memory(const std::string& directory, std::uint64_t) override {
    calls.push_back("mount " + directory);
    return {};
  }
  Result<void> unmount(const std::string& directory) override {
    calls.push_back("unmount " + directory);
    return {};
  }
  std::vector<std::string> calls;
};

// A disk of ten pages of which a run takes two and a half between the question what is free and the answer's
// use.
class DiskInUse final : public ForwardingEnv {
 public:
  static constexpr std::uint64_t page_bytes = 4096, free_pages = 10, left_bytes = 15 * page_bytes / 2;
  using ForwardingEnv::ForwardingEnv;

  Result<std::uint64_t> free_bytes(const std::string&) override { return free_pages * page_bytes; }
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode) override {
    return std::unique_ptr<File>(new Filler(path, held_bytes));
  }

  std::uint64_t held_bytes = 0;

 private:
  class Filler final : public File {
   public:
    Filler(std::string path, std::uint64_t& held_bytes) : path_(std::move(path)), held_bytes_(&held_bytes) {}
    Result<void> allocate(std::uint64_t bytes) override {
      if (bytes > left_bytes) return fail(ExitCode::checkpoint, "the disk is full");
      *held_bytes_ = bytes;
      return {};
    }
    Result<void> read_at(std::uint64_t, std::span<std::byte>) override { return {}; }
    Result<void> write_at(std::uint64_t, std::span<const std::byte>) override { return {}; }
    Result<void> truncate(std::uint64_t) override { return {}; }
    Result<void> sync() override { return {}; }
    Result<std::uint64_t> size() override { return *held_bytes_; }
    void will_need(std::uint64_t, std::uint64_t) override {}
    void drop_cached() override {}
    std::string buffered_reason() const override { return ""; }
    const std::string& path() const override { return path_; }

   private:
    std::string path_;
    std::uint64_t* held_bytes_;
  };
};

TEST_F(LastingFaultTest, ASmallDiskIsFilledWhileTheRunWrites) {
  NoMounts mounts;
  DiskInUse env(env_);
  Result<std::unique_ptr<SmallDisk>> disk = SmallDisk::mount(env, mounts, folder_ + "/run", 1 << 20);
  ASSERT_TRUE(disk.ok()) << disk.error().message;
  const Result<void> filled = (*disk)->fill();
  EXPECT_TRUE(filled.ok()) << filled.error().message;
  EXPECT_EQ(env.held_bytes, 7 * DiskInUse::page_bytes) << "all whole pages";
}

TEST_F(LastingFaultTest, WhatIsOnASmallDiskCanBeKept) {
  NoMounts mounts;
  const std::string directory = folder_ + "/run";
  {
    Result<std::unique_ptr<SmallDisk>> disk = SmallDisk::mount(env_, mounts, directory, 1 << 20);
    ASSERT_TRUE(disk.ok()) << disk.error().message;
    ASSERT_TRUE(env_.make_directories(directory + "/checkpoints/one").ok());
    ASSERT_TRUE(env_.replace_text(directory + "/checkpoints/one/shard", "bytes").ok());
    ASSERT_TRUE(env_.replace_text(directory + "/.hidden", "more").ok());
    EXPECT_EQ(bytes_of_tree(env_, directory).value(), 9U);
    ASSERT_TRUE((*disk)->keep().ok());
  }
  EXPECT_THAT(mounts.calls, ElementsAre("mount " + directory, "unmount " + directory));
  EXPECT_EQ(env_.read_text(directory + "/checkpoints/one/shard").value(), "bytes");
  EXPECT_EQ(env_.read_text(directory + "/.hidden").value(), "more");
  EXPECT_THAT(env_.list(folder_).value(), ElementsAre("run"));

  { const auto disk = SmallDisk::mount(env_, mounts, directory, 1 << 20); }
  EXPECT_EQ(mounts.calls.back(), "unmount " + directory);
}

}  // namespace
}  // namespace holdfast::test
