#include "runtime/os/posix_parts.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "runtime/os/posix_file.h"

namespace holdfast::os {
namespace {

constexpr std::int64_t lock_retry_us = 50'000;
constexpr std::int64_t longest_wait_ms = std::int64_t{1} << 40;  // keeps the deadline inside int64
constexpr int max_files = 100;                                   // that are replaced while one is locked
constexpr std::uint64_t holder_bytes_max = std::uint64_t{64} << 10;

// The content is changed in place: a rename would leave the lock on a file without a name, and what is
// emptied first may have no room again on a full disk.
Result<void> write_lock_content(int descriptor, const std::string& path, std::string_view content) {
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t put =
        pwrite(descriptor, content.data() + done, content.size() - done, static_cast<off_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return write_error("write", path, errno);
    done += static_cast<std::size_t>(put);
  }
  struct stat info {};
  if (fstat(descriptor, &info) == 0 && info.st_size == static_cast<off_t>(done)) return {};
  if (ftruncate(descriptor, static_cast<off_t>(done)) != 0) return write_error("write", path, errno);
  return {};
}

class HeldLock final : public FileLock {
 public:
  HeldLock(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  // The sync makes a network file system show it to other hosts.
  Result<void> rewrite(const std::string& content) override {
    HF_TRY_VOID(write_lock_content(descriptor_.value(), path_, content));
    int result = 0;
    do {
      result = fdatasync(descriptor_.value());
    } while (result != 0 && errno == EINTR);
    if (result != 0) return write_error("make durable", path_, errno);
    return {};
  }

 private:
  Descriptor descriptor_;  // the lock goes with the open file
  std::string path_;
};

bool has_name(const Descriptor& descriptor, const std::string& path) {
  struct stat open {
  }, named{};
  return fstat(descriptor.value(), &open) == 0 && stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

// Returns also when the file has lost its name meanwhile.
Result<void> wait_for_lock(Env& env, const Descriptor& descriptor, const std::string& path,
                           std::int64_t deadline_ns, std::int64_t timeout_ms) {
  while (flock(descriptor.value(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return lock_error("lock", path, errno);
    const std::int64_t left_us = (deadline_ns - env.monotonic_ns()) / 1000;
    if (left_us <= 0) {
      const Result<std::string> holder = read_all_of(descriptor, path, holder_bytes_max);
      return fail(
          ExitCode::communication,
          "{} is locked by another process ('{}') and was not released within {} ms; wait for that process "
          "or end it, then start again",
          path, holder.ok() ? *holder : holder.error().message, timeout_ms);
    }
    env.sleep_us(std::min(left_us, lock_retry_us));
    if (!has_name(descriptor, path)) return {};
  }
  return {};
}

// The lock of a file can be held by all who may open it. So those who may read it are those who may write it;
// of an older one, too, if it is this user's.
constexpr mode_t lock_mode = 0620, group_reads = 0040, group_writes = 0020, others_read = 0004,
                 others_write = 0002;

Error no_lock_file(const std::string& path) {
  return fail(ExitCode::config, "cannot lock {}: it is no file: remove it", path);
}

Result<void> expect_lock_file(const Descriptor& descriptor, const std::string& path) {
  struct stat info {};
  if (fstat(descriptor.value(), &info) != 0) return lock_error("look at the lock file", path, errno);
  if (!S_ISREG(info.st_mode)) return no_lock_file(path);
  return {};
}

void let_only_writers_read(const Descriptor& descriptor) {
  struct stat info {};
  if (fstat(descriptor.value(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) return;
  mode_t mode = info.st_mode & 07777 & ~(group_reads | others_read);
  if ((mode & group_writes) != 0) mode |= group_reads;
  if ((mode & others_write) != 0) mode |= others_read;
  // A file system without modes refuses that, and has nothing to keep.
  if (mode != (info.st_mode & 07777)) static_cast<void>(fchmod(descriptor.value(), mode));
}

}  // namespace

Result<std::unique_ptr<FileLock>> lock_posix_file(Env& env, const std::string& path,
                                                  const std::string& content, std::int64_t timeout_ms) {
  const std::int64_t deadline_ns = env.monotonic_ns() + std::min(timeout_ms, longest_wait_ms) * 1'000'000;
  for (int file = 0; file < max_files; ++file) {
    Descriptor descriptor = open_descriptor(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, lock_mode);
    if (descriptor.value() < 0 && (errno == ELOOP || errno == EISDIR)) return no_lock_file(path);
    if (descriptor.value() < 0) return lock_error("open the lock file", path, errno);
    HF_TRY_VOID(expect_lock_file(descriptor, path));
    let_only_writers_read(descriptor);
    HF_TRY_VOID(wait_for_lock(env, descriptor, path, deadline_ns, timeout_ms));
    if (!has_name(descriptor, path)) continue;  // replaced: the new one counts
    if (!content.empty()) HF_TRY_VOID(write_lock_content(descriptor.value(), path, content));
    return std::unique_ptr<FileLock>(std::make_unique<HeldLock>(std::move(descriptor), path));
  }
  return lock_error("lock", path, ESTALE);
}

Result<std::unique_ptr<FileLock>> replace_posix_lock(Env& env, const std::string& path,
                                                     const std::string& content) {
  const std::string temporary = fmt::format("{}.tmp.{}.{:016x}", path, env.process_id(), env.random_u64());
  Descriptor descriptor = open_descriptor(temporary, O_RDWR | O_CREAT | O_EXCL, lock_mode);
  if (descriptor.value() < 0) return lock_error("create", temporary, errno);
  let_only_writers_read(descriptor);
  if (flock(descriptor.value(), LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    unlink(temporary.c_str());
    return lock_error("lock", temporary, reason);
  }
  auto lock = std::make_unique<HeldLock>(std::move(descriptor), path);
  Result<void> done = lock->rewrite(content);
  if (done.ok()) done = env.rename(temporary, path);
  if (!done.ok()) {
    unlink(temporary.c_str());
    return done.error();
  }
  // The file has its name now, whether or not that is durable: a lock means nothing after a power cut.
  const std::string parent = std::filesystem::path(path).parent_path().string();
  static_cast<void>(env.sync_directory(parent.empty() ? "." : parent).ok());
  return std::unique_ptr<FileLock>(std::move(lock));
}

// A shared lock is got beside those of others who ask, and a network file system gives it to one that may
// only read.
Result<bool> is_posix_locked(const std::string& path) {
  HF_TRY(const Descriptor descriptor, open_to_read(path, O_NOFOLLOW));
  while (flock(descriptor.value(), LOCK_SH | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return true;
    if (errno != EINTR) return read_error("look at the lock of", path, errno);
  }
  return false;
}

}  // namespace holdfast::os
