// In a process of its own, whose mounts go with it.
#include "runtime/os/mounts.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "runtime/os/env.h"
#include "tests/support/leave.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

constexpr int not_permitted = 77;

int code_of_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) test::leave(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(Mounts, HideWhatWasThereAndBringItBackForThisProcessAlone) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(posix_env().replace_text(directory / "before", "text").ok());
  const int code = code_of_child([&] {
    Mounts& mounts = posix_mounts();
    if (!mounts.begin_own().ok()) return not_permitted;
    constexpr std::uint64_t bytes = 1 << 20;
    if (!mounts.mount_memory(directory.path(), bytes).ok()) return 1;
    if (posix_env().status(directory / "before")->exists) return 2;
    if (!posix_env().replace_text(directory / "inside", "text").ok()) return 3;
    if (posix_env().replace_text(directory / "large", std::string(2 * bytes, 'x')).ok()) return 4;
    if (!mounts.unmount(directory.path()).ok()) return 5;
    if (!posix_env().status(directory / "before")->exists) return 6;
    if (mounts.unmount(directory.path()).ok()) return 7;
    return mounts.mount_memory(directory / "nowhere", bytes).ok() ? 8 : 0;
  });
  if (code == not_permitted) HF_SKIP_OUTSIDE_CI("this process may not have mounts of its own");
  EXPECT_EQ(code, 0);
  EXPECT_FALSE(posix_env().status(directory / "inside")->exists) << "it was mounted for others, too";
}

}  // namespace
}  // namespace holdfast::test
