#include "runtime/os/machine_facts.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "tests/support/forwarding_env.h"
#include "tests/support/leave.h"

namespace holdfast::test {
namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
constexpr const char* host_meminfo = "MemTotal: 102400 kB\nMemAvailable: 81920 kB\nSwapFree: 0 kB\n";

// A machine whose /proc and /sys have these files.
class GroupsEnv final : public ForwardingEnv {
 public:
  explicit GroupsEnv(std::map<std::string, std::string> files)
      : ForwardingEnv(posix_env()), files_(std::move(files)) {
    files_.try_emplace("/proc/meminfo", host_meminfo);
  }
  Result<std::string> read_text(const std::string& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) return fail(ExitCode::config, "cannot open {}", path);
    return found->second;
  }

 private:
  std::map<std::string, std::string> files_;
};

std::map<std::string, std::string> v1_group(const std::string& folder, std::uint64_t limit_MiB,
                                            std::uint64_t usage_MiB, bool is_hierarchy = true) {
  return {{folder + "/memory.limit_in_bytes", fmt::format("{}\n", limit_MiB * MiB)},
          {folder + "/memory.usage_in_bytes", fmt::format("{}\n", usage_MiB * MiB)},
          {folder + "/memory.use_hierarchy", is_hierarchy ? "1\n" : "0\n"},
          {folder + "/memory.stat", "inactive_file 0\n"}};
}

std::map<std::string, std::string> v2_group(const std::string& folder, const std::string& max,
                                            std::uint64_t usage_MiB) {
  return {{folder + "/memory.max", max + "\n"},
          {folder + "/memory.current", fmt::format("{}\n", usage_MiB * MiB)},
          {folder + "/memory.stat", "inactive_file 0\n"}};
}

GroupsEnv machine_of(const std::string& own, const std::string& mounts,
                     const std::vector<std::map<std::string, std::string>>& groups) {
  std::map<std::string, std::string> files = {{"/proc/self/cgroup", own}, {"/proc/self/mountinfo", mounts}};
  for (const std::map<std::string, std::string>& group : groups) files.insert(group.begin(), group.end());
  return GroupsEnv(std::move(files));
}

const std::string v1_mounts =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
const std::string v2_mounts = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(MemoryRoom, IsWhatTheHostCanStillGive) {
  const auto available = [](const std::string& meminfo) { return room_of_meminfo(meminfo); };
  EXPECT_EQ(available("MemTotal:       100 kB\nMemAvailable:    40 kB\nSwapFree:        2 kB\n"),
            (MemoryRoom{42u * 1024, 100u * 1024, ""}));
  EXPECT_EQ(available("MemAvailable:    40 kB\n"), (MemoryRoom{40u * 1024, 40u * 1024, ""}));
  EXPECT_FALSE(available("").has_value());
  EXPECT_FALSE(available("MemTotal:  100 kB\nNotMemAvailable: 3 kB\n").has_value());
}

TEST(MemoryRoom, IsWhatAGroupHasLeft) {
  const std::string stat = "anon 600\nfile 300\ninactive_file 200\nactive_file 40\n";
  EXPECT_EQ(room_of_group("1000\n", "900\n", stat), (MemoryRoom{320, 1000, ""}));
  EXPECT_EQ(room_of_group("1000\n", "900\n", ""), (MemoryRoom{100, 1000, ""}));
  EXPECT_EQ(room_of_group("1000\n", "5000\n", stat), (MemoryRoom{0, 1000, ""}));
  EXPECT_FALSE(room_of_group("max\n", "900\n", stat).has_value());
  EXPECT_FALSE(room_of_group("9223372036854771712\n", "900\n", stat).has_value()) << "version 1: no limit";
  EXPECT_FALSE(room_of_group("", "", "").has_value());
}

// In version 1 the plain names are of the group alone, without those below it.
TEST(MemoryRoom, CountsWhatGroupsBelowCanDrop) {
  EXPECT_EQ(room_of_group("1000\n", "900\n", "inactive_file 1\ntotal_inactive_file 300\n"),
            (MemoryRoom{400, 1000, ""}));
}

TEST(MemoryRoom, AGroupOfVersionOneLimits) {
  GroupsEnv machine = machine_of(
      "9:cpu,cpuacct:/\n4:memory:/jobs/a\n0::/\n", v1_mounts,
      {v1_group("/sys/fs/cgroup/memory", 8796093022207, 50), v1_group("/sys/fs/cgroup/memory/jobs", 70, 10),
       v1_group("/sys/fs/cgroup/memory/jobs/a", 60, 40)});
  EXPECT_EQ(memory_room(machine), (MemoryRoom{20 * MiB, 60 * MiB, "/sys/fs/cgroup/memory/jobs/a"}));
}

TEST(MemoryRoom, AnAncestorLimitsWhatIsBelowItWhereItCountsThat) {
  for (const bool is_hierarchy : {true, false}) {
    GroupsEnv machine = machine_of("4:memory:/jobs/a\n", v1_mounts,
                                   {v1_group("/sys/fs/cgroup/memory/jobs", 70, 69, is_hierarchy),
                                    v1_group("/sys/fs/cgroup/memory/jobs/a", 90, 40)});
    const std::optional<MemoryRoom> room = memory_room(machine);
    EXPECT_EQ(room->available_bytes, (is_hierarchy ? 1 : 50) * MiB);
    EXPECT_EQ(room->total_bytes, (is_hierarchy ? 70 : 90) * MiB);
  }
}

TEST(MemoryRoom, AGroupOfVersionTwoLimitsAtEveryLevel) {
  GroupsEnv machine = machine_of("0::/user.slice/job.scope/\n", v2_mounts,
                                 {v2_group("/sys/fs/cgroup/user.slice", fmt::format("{}", 50 * MiB), 20),
                                  v2_group("/sys/fs/cgroup/user.slice/job.scope", "max", 20)});
  EXPECT_EQ(memory_room(machine), (MemoryRoom{30 * MiB, 50 * MiB, "/sys/fs/cgroup/user.slice"}));
}

TEST(MemoryRoom, WhatSlowsAGroupDownLimitsItToo) {
  GroupsEnv machine = machine_of("0::/job\n", v2_mounts,
                                 {v2_group("/sys/fs/cgroup/job", "max", 20),
                                  {{"/sys/fs/cgroup/job/memory.high", fmt::format("{}\n", 25 * MiB)}}});
  EXPECT_EQ(memory_room(machine)->available_bytes, 5 * MiB);
}

// The hierarchy of version 2 is there, without a controller for memory.
TEST(MemoryRoom, AHybridHasItsLimitInVersionOne) {
  GroupsEnv machine = machine_of(
      "4:memory:/a\n0::/a\n",
      v1_mounts + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
      {v1_group("/sys/fs/cgroup/memory/a", 60, 40), {{"/sys/fs/cgroup/unified/a/cgroup.procs", "1\n"}}});
  EXPECT_EQ(memory_room(machine)->available_bytes, 20 * MiB);
}

// The path is the host's, and the mount begins at the group of the container.
TEST(MemoryRoom, AContainerSeesItsGroupAtTheMountPoint) {
  const std::string mounts =
      "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime master:11 - cgroup cgroup rw,memory\n";
  for (const char* path : {"/docker/abc", "/docker/abc/inner", "/kubepods/pod1/xyz", "/../../xyz"}) {
    GroupsEnv machine =
        machine_of(fmt::format("4:memory:{}\n", path), mounts, {v1_group("/sys/fs/cgroup/memory", 60, 40)});
    EXPECT_EQ(memory_room(machine)->available_bytes, 20 * MiB) << path;
  }
  GroupsEnv machine =
      machine_of("4:memory:/docker/abc/inner\n", mounts,
                 {v1_group("/sys/fs/cgroup/memory", 60, 40), v1_group("/sys/fs/cgroup/memory/inner", 15, 5)});
  EXPECT_EQ(memory_room(machine)->available_bytes, 10 * MiB);
}

TEST(MemoryRoom, AContainerOfVersionTwoHasItsGroupAsRoot) {
  GroupsEnv machine =
      machine_of("0::/\n", v2_mounts, {v2_group("/sys/fs/cgroup", fmt::format("{}", 64 * MiB), 60)});
  EXPECT_EQ(memory_room(machine)->available_bytes, 4 * MiB);
}

TEST(MemoryRoom, AMountPointMayHaveABlankInItsPath) {
  GroupsEnv machine =
      machine_of("4:memory:/a\n", "35 31 0:32 / /mnt/my\\040groups rw - cgroup cgroup rw,memory\n",
                 {v1_group("/mnt/my groups/a", 60, 40)});
  EXPECT_EQ(memory_room(machine)->available_bytes, 20 * MiB);
}

// As where /proc is hidden in part.
TEST(MemoryRoom, TheUsualPlaceCountsWhereNothingSaysAnother) {
  GroupsEnv machine({{"/sys/fs/cgroup/memory/memory.limit_in_bytes", fmt::format("{}\n", 60 * MiB)},
                     {"/sys/fs/cgroup/memory/memory.usage_in_bytes", fmt::format("{}\n", 40 * MiB)}});
  EXPECT_EQ(memory_room(machine)->available_bytes, 20 * MiB);
  GroupsEnv no_groups({});
  EXPECT_EQ(memory_room(no_groups), (MemoryRoom{80 * MiB, 100 * MiB, ""}));
}

TEST(MemoryRoom, IsKnownOnThisSystem) {
  const std::optional<MemoryRoom> room = memory_room(posix_env());
  ASSERT_TRUE(room.has_value());
  EXPECT_GT(room->available_bytes, MiB);
  EXPECT_GE(room->total_bytes, room->available_bytes);
}

bool write_line(const std::string& path, const std::string& line) {
  std::ofstream file(path);
  file << line << std::flush;
  return file.good();
}

// A child process in a group of its own, made below that of this process.
TEST(MemoryRoom, FollowsALimitOfThisSystem) {
  ControlGroup own;
  for (const ControlGroup& group : control_groups(posix_env(), "memory")) {
    if (group.is_own && access((group.folder + "/memory.stat").c_str(), R_OK) == 0) own = group;
  }
  if (own.folder.empty()) GTEST_SKIP() << "no control group of this process can be seen";
  const bool is_v1 = own.version == ControlGroup::Version::v1;
  const std::string folder = fmt::format("{}/holdfast-test-{}", own.folder, getpid());
  if (mkdir(folder.c_str(), 0755) != 0) GTEST_SKIP() << "no group can be made in " << own.folder;
  const std::uint64_t limit = 256 * MiB;
  const bool limited =
      write_line(folder + (is_v1 ? "/memory.limit_in_bytes" : "/memory.max"), fmt::format("{}", limit));
  int state = -1;
  if (limited) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (!write_line(folder + "/cgroup.procs", fmt::format("{}", getpid()))) test::leave(2);
      const std::optional<MemoryRoom> room = memory_room(posix_env());
      const bool right = room.has_value() && room->total_bytes == limit && room->limited_by == folder &&
                         room->available_bytes > limit / 2 && room->available_bytes <= limit;
      test::leave(right ? 0 : 1);
    }
    ASSERT_EQ(waitpid(child, &state, 0), child);
  }
  rmdir(folder.c_str());
  if (!limited || (WIFEXITED(state) && WEXITSTATUS(state) == 2))
    GTEST_SKIP() << "no process can be put into a limited group below " << own.folder;
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

}  // namespace
}  // namespace holdfast::test
