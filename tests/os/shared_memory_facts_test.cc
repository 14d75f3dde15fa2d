// Where logind would remove shared memory at logout.
#include "runtime/os/machine_facts.h"

#include <gmock/gmock.h>

#include "tests/support/memory_env.h"

namespace holdfast::test {
namespace {

class SharedMemoryRemovalTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    env_.put_file(path, std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end()));
  }
  // A user with a session.
  void log_in() { write("/run/systemd/users/1000", "NAME=ann\n"); }
  bool is_removed() { return !shared_memory_removal(env_, 1000, "ann").empty(); }

  MemoryEnv env_;
};

TEST_F(SharedMemoryRemovalTest, StaysWhereLogindDoesNotKnowTheUser) {
  EXPECT_FALSE(is_removed());
}

TEST_F(SharedMemoryRemovalTest, StaysOfSystemUsersAndOfThoseWhoLinger) {
  log_in();
  write("/run/systemd/users/0", "");
  write("/run/systemd/users/999", "");
  EXPECT_EQ(shared_memory_removal(env_, 0, "root"), "");
  EXPECT_EQ(shared_memory_removal(env_, 999, "slurm"), "");
  EXPECT_TRUE(is_removed());
  write("/var/lib/systemd/linger/bob", "");
  EXPECT_TRUE(is_removed());
  write("/var/lib/systemd/linger/ann", "");
  EXPECT_FALSE(is_removed());
}

TEST_F(SharedMemoryRemovalTest, IsWhatTheConfigurationSays) {
  log_in();
  write("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n");
  EXPECT_FALSE(is_removed()) << "built with that default";
  write("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\nRemoveIPC = yes\n");
  EXPECT_TRUE(is_removed());
  write("/usr/lib/systemd/logind.conf.d/50-vendor.conf", "[Login]\nRemoveIPC=no\n");
  EXPECT_FALSE(is_removed());
  write("/etc/systemd/logind.conf.d/60-site.conf", "[Login]\nRemoveIPC=true\n");
  EXPECT_TRUE(is_removed()) << "the last name counts";
  write("/etc/systemd/logind.conf.d/60-site.conf", "[Login]\nKillUserProcesses=no\n");
  EXPECT_FALSE(is_removed());
  write("/etc/systemd/logind.conf.d/50-vendor.conf", "");
  EXPECT_TRUE(is_removed()) << "it hides the vendor's file of the same name";
}

TEST_F(SharedMemoryRemovalTest, SaysWhatToDo) {
  log_in();
  EXPECT_THAT(shared_memory_removal(env_, 1000, "ann"),
              testing::AllOf(testing::HasSubstr("shared memory of ann at logout"),
                             testing::HasSubstr("loginctl enable-linger ann")));
}

}  // namespace
}  // namespace holdfast::test
