#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>
#include <thread>

#include "runtime/os/env.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/network.h"
#include "runtime/os/posix_file.h"
#include "runtime/os/posix_io_engine.h"
#include "runtime/os/posix_parts.h"
#include "runtime/os/posix_thread.h"
#include "runtime/os/processes.h"

namespace holdfast::os {
namespace {

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Gives a new file the mode of the one that it will replace, if there is one: a user that could not read the
// old file cannot read the new one, either. A file system without modes refuses it, and has nothing to keep.
void keep_mode(File& file, const std::string& replaced) {
  constexpr mode_t group = 0070, others = 0007;
  struct stat old {};
  if (lstat(replaced.c_str(), &old) != 0 || !S_ISREG(old.st_mode)) return;
  mode_t mode = old.st_mode & 0777;
  const int descriptor = sync_descriptor(file);
  // The new file gives its group only the rights of others where the old group cannot be kept.
  if (fchown(descriptor, static_cast<uid_t>(-1), old.st_gid) != 0)
    mode = (mode & ~group) | ((mode & others) << 3);
  static_cast<void>(fchmod(descriptor, mode));
}

class PosixEnv final : public Env {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    return open_posix_file(path, mode);
  }

  Result<FileStatus> status(const std::string& path) override {
    struct stat info {};
    int failed = lstat(path.c_str(), &info);
    const bool link = failed == 0 && S_ISLNK(info.st_mode);
    if (link) failed = stat(path.c_str(), &info);
    if (failed != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return FileStatus{.link = link};
      return read_error("look at", path, errno);
    }
    // A group that has the number of the owner is usually his alone.
    return FileStatus{.exists = true,
                      .directory = S_ISDIR(info.st_mode),
                      .bytes = static_cast<std::uint64_t>(info.st_size),
                      .modified_ns = info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec,
                      .link = link,
                      .group_may_write = (info.st_mode & S_IWGRP) != 0 && info.st_gid != info.st_uid,
                      .others_may_write = (info.st_mode & S_IWOTH) != 0};
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    return names_in(open_descriptor(directory, O_RDONLY | O_DIRECTORY), directory);
  }

  Result<void> make_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return lock_error("create the directory", path, error.value());
    return {};
  }

  Result<void> rename(const std::string& source, const std::string& target) override {
    if (::rename(source.c_str(), target.c_str()) == 0) return {};
    return write_error("rename", fmt::format("{} to {}", source, target), errno);
  }
  Result<void> link(const std::string& source, const std::string& target) override {
    if (::link(source.c_str(), target.c_str()) == 0) return {};
    return write_error("link", fmt::format("{} to {}", source, target), errno);
  }

  Result<void> remove(const std::string& path) override {
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return {};
    return write_error("remove", path, errno);
  }

  Result<void> remove_tree(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return write_error("remove", path, error.value());
    return {};
  }

  Result<void> sync_directory(const std::string& path) override {
    const Descriptor descriptor = open_descriptor(path, O_RDONLY | O_DIRECTORY);
    if (descriptor.value() < 0) return write_error("open the directory", path, errno);
    int result = 0;
    do {
      result = fsync(descriptor.value());
    } while (result != 0 && errno == EINTR);
    if (result != 0) return write_error("make durable", path, errno);
    return {};
  }

  Result<std::string> read_text(const std::string& path) override {
    return read_text_within(path, std::numeric_limits<std::uint64_t>::max());
  }

  Result<std::string> read_text_within(const std::string& path, std::uint64_t max_bytes) override {
    HF_TRY(const Descriptor descriptor, open_to_read(path));
    return read_all_of(descriptor, path, max_bytes);
  }

  Result<void> replace_text(const std::string& path, const std::string& text) override {
    const std::string temporary = fmt::format("{}.tmp.{}.{:016x}", path, process_id(), random_u64());
    Result<void> written = write_new_file(temporary, text, path);
    if (written.ok()) written = rename(temporary, path);
    if (!written.ok()) {
      unlink(temporary.c_str());
      return written;
    }
    return sync_directory(parent_of(path));
  }

  Result<void> append_line(const std::string& path, std::string_view line) override {
    Descriptor descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW);
    if (descriptor.value() < 0 && errno == ELOOP)
      return fail(ExitCode::checkpoint, "cannot append to {}: it is a link, expected a file; remove it",
                  path);
    if (descriptor.value() < 0) return write_error("append to", path, errno);
    // iovec has no const; writev does not write to it.
    std::array<iovec, 2> parts = {{{.iov_base = const_cast<char*>(line.data()), .iov_len = line.size()},
                                   {.iov_base = const_cast<char*>("\n"), .iov_len = 1}}};
    ssize_t put = 0;
    do {
      put = writev(descriptor.value(), parts.data(), parts.size());
    } while (put < 0 && errno == EINTR);
    if (put < 0) return write_error("append to", path, errno);
    // A short write to a regular file happens only when the disk fills up.
    if (static_cast<std::size_t>(put) != line.size() + 1) return write_error("append to", path, ENOSPC);
    if (const int reason = descriptor.close(); reason != 0) return write_error("append to", path, reason);
    return {};
  }

  Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                         std::int64_t timeout_ms) override {
    return lock_posix_file(*this, path, content, timeout_ms);
  }

  Result<std::unique_ptr<FileLock>> replace_lock(const std::string& path,
                                                 const std::string& content) override {
    return replace_posix_lock(*this, path, content);
  }

  Result<bool> is_locked(const std::string& path) override { return is_posix_locked(path); }

  Result<std::uint64_t> free_bytes(const std::string& path) override {
    struct statvfs space {};
    if (statvfs(path.c_str(), &space) != 0) return read_error("get the free space of", path, errno);
    return static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  }

  Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions& options) override {
    return make_posix_io_engine(options);
  }

  Result<std::unique_ptr<SharedMemory>> create_shared_memory(const std::string& name,
                                                             std::uint64_t bytes) override {
    return create_posix_shared_memory(name, bytes);
  }

  Result<std::unique_ptr<SharedMemory>> open_shared_memory(const std::string& name) override {
    return open_posix_shared_memory(name);
  }

  Result<void> remove_shared_memory(const std::string& name) override {
    return remove_posix_shared_memory(name);
  }

  Result<std::vector<std::string>> list_shared_memory() override { return list_posix_shared_memory(); }
  std::string shared_memory_path(const std::string& name) override { return posix_shared_memory_path(name); }
  Result<std::string> make_shared_directory(const std::string& name) override {
    return make_posix_shared_directory(name);
  }

  std::int64_t monotonic_ns() override {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::int64_t thread_processor_ns() override {
    timespec taken{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &taken);  // every Linux has it
    return std::int64_t{taken.tv_sec} * 1'000'000'000 + taken.tv_nsec;
  }

  std::int64_t wall_time_us() override {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  }

  void sleep_us(std::int64_t microseconds) override {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }

  Result<std::unique_ptr<Thread>> start_thread(const std::string& name, std::function<void()> work) override {
    return start_posix_thread(name, std::move(work));
  }
  std::unique_ptr<Condition> make_condition() override { return make_posix_condition(); }
  void yield() override { std::this_thread::yield(); }

  std::int64_t process_id() override { return getpid(); }

  std::string host_name() override {
    std::array<char, 256> buffer{};
    if (gethostname(buffer.data(), buffer.size() - 1) != 0) return "unknown";
    return buffer.data();
  }

  // The boot tells kernels apart, and the device of /dev/shm those hosts of one kernel (containers) that do
  // not share their snapshots.
  std::string machine_id() override {
    const std::string boot = text_or_empty("/proc/sys/kernel/random/boot_id");
    struct stat memory {};
    const bool has_memory = stat("/dev/shm", &memory) == 0;
    return fmt::format("{}-{:x}", boot.empty() ? "unknown" : boot.substr(0, boot.find('\n')),
                       has_memory ? std::uint64_t{memory.st_dev} : 0);
  }

  std::string variable(const std::string& name) override {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? "" : value;
  }

  std::vector<std::string> variable_names(const std::string& prefix) override {
    std::vector<std::string> names;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      if (text.starts_with(prefix)) names.emplace_back(text.substr(0, text.find('=')));
    }
    std::ranges::sort(names);
    return names;
  }

  std::uint64_t random_u64() override {
    std::uint64_t value = 0;
    // Up to 256 bytes come whole or not at all, once the kernel's pool is ready.
    while (getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value))) {
      HF_CHECK(errno == EINTR, "getrandom failed with errno {}", errno);
    }
    return value;
  }

  Result<void> die_with_parent() override {
    const pid_t parent = getppid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
      return fail(ExitCode::communication,
                  "the kernel refused to end this process with its parent (prctl, errno {})", errno);
    }
    // A parent that died between the two calls sends no signal any more.
    if (getppid() != parent) return fail(ExitCode::communication, "the parent process {} has died", parent);
    return {};
  }

  Result<CommandEnd> run_command(const Command& command) override {
    return run_posix_command(*this, command);
  }
  [[noreturn]] void kill_self() override {
    kill(getpid(), SIGKILL);
    while (true) pause();
  }

  int processor_count() override { return available_processors(); }

  // Linux gives every thread a nice value and an I/O class of its own. Both calls may be refused, which
  // changes no result.
  void lower_thread_priority() override {
    constexpr int tenth_of_a_share = 10;  // the nice value of a thread that gets that of what others get
    constexpr int io_who_process = 1;
    constexpr int io_class_best_effort = 2 << 13, io_lowest_level = 7;
    const auto thread = static_cast<id_t>(syscall(SYS_gettid));
    setpriority(PRIO_PROCESS, thread, tenth_of_a_share);
    syscall(SYS_ioprio_set, io_who_process, 0, io_class_best_effort | io_lowest_level);
  }

  Processes& processes() override { return posix_processes(); }
  Network& network() override { return posix_network(); }

 private:
  Result<void> write_new_file(const std::string& path, const std::string& text, const std::string& replaced) {
    HF_TRY(const std::unique_ptr<File> file, open(path, OpenMode::create));
    keep_mode(*file, replaced);
    HF_TRY_VOID(file->write_at(0, std::as_bytes(std::span(text.data(), text.size()))));
    return file->sync();
  }
};

}  // namespace

Env& posix_env() {
  static PosixEnv env;  // stateless
  return env;
}

}  // namespace holdfast::os
