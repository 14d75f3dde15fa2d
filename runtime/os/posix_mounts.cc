#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/os/mounts.h"
#include "runtime/os/posix_file.h"

namespace holdfast::os {
namespace {

Error refused(const std::string& what, int reason) {
  return fail(ExitCode::config, "cannot {}: {}", what, std::strerror(reason));
}

bool write_whole(const char* path, const std::string& text) {
  const Descriptor descriptor = open_descriptor(path, O_WRONLY);
  return descriptor.value() >= 0 &&
         ::write(descriptor.value(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

class PosixMounts final : public Mounts {
 public:
  Result<void> begin_own() override {
    if (::unshare(CLONE_NEWNS) != 0) HF_TRY_VOID(begin_as_user());
    // Mounts made from here on stay private to this process.
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return refused("make mounts private", errno);
    return {};
  }

  Result<void> mount_memory(const std::string& directory, std::uint64_t bytes) override {
    const std::string size = fmt::format("size={}", bytes);
    if (::mount("holdfast", directory.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, size.c_str()) == 0) return {};
    return refused("mount a file system in memory at " + directory, errno);
  }

  Result<void> unmount(const std::string& directory) override {
    if (::umount2(directory.c_str(), MNT_DETACH) == 0) return {};
    return refused("unmount " + directory, errno);
  }

 private:
  // A user who may not mount otherwise may do so in a user namespace, as the same user.
  static Result<void> begin_as_user() {
    const uid_t user = ::geteuid();
    const gid_t group = ::getegid();
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return refused("have mounts of its own", errno);
    // The kernel wants this before an ordinary user's map of groups; older ones do not know it.
    static_cast<void>(write_whole("/proc/self/setgroups", "deny"));
    const bool mapped = write_whole("/proc/self/uid_map", fmt::format("{0} {0} 1", user)) &&
                        write_whole("/proc/self/gid_map", fmt::format("{0} {0} 1", group));
    return mapped ? Result<void>() : refused("be the same user among mounts of its own", errno);
  }
};

}  // namespace

Mounts& posix_mounts() {
  static PosixMounts mounts;
  return mounts;
}

}  // namespace holdfast::os
