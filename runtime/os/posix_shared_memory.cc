#include "runtime/os/posix_parts.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "runtime/core/units.h"
#include "runtime/os/machine_facts.h"
#include "runtime/os/posix_file.h"
#include "runtime/os/resizable_memory.h"

namespace holdfast::os {
namespace {

class PosixSharedMemory final : public ResizableSharedMemory {
 public:
  PosixSharedMemory(Descriptor descriptor, std::string path, std::span<std::byte> bytes)
      : descriptor_(std::move(descriptor)), path_(std::move(path)), bytes_(bytes) {}
  ~PosixSharedMemory() override { munmap(bytes_.data(), bytes_.size()); }
  PosixSharedMemory(const PosixSharedMemory&) = delete;
  PosixSharedMemory& operator=(const PosixSharedMemory&) = delete;
  std::span<std::byte> bytes() override { return bytes_; }
  // Systems without such locks let every process hold it shared and none alone.
  bool hold(Hold how) override {
    const bool alone = how == Hold::alone;
    if (flock(descriptor_.value(), (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) return true;
    return !alone && errno != EWOULDBLOCK;
  }
  Result<void> resize(std::uint64_t bytes) override;

 private:
  Descriptor descriptor_;
  std::string path_;  // that it had when it was mapped; for sentences
  std::span<std::byte> bytes_;
};

Result<std::unique_ptr<SharedMemory>> map(Descriptor descriptor, const std::string& path,
                                          std::uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.value(), 0);
  if (base == MAP_FAILED) return read_error("map the shared memory", path, errno);
  return std::unique_ptr<SharedMemory>(std::make_unique<PosixSharedMemory>(
      std::move(descriptor), path, std::span(static_cast<std::byte*>(base), bytes)));
}

Error too_small(const std::string& path, std::uint64_t bytes, std::uint64_t free_bytes) {
  return fail(ExitCode::does_not_fit,
              "cannot reserve {} of shared memory for {}: /dev/shm has {} free; remove what is not needed "
              "there, or make it larger (mount -o remount,size=..., or --shm-size of a container)",
              format_bytes(bytes), path, format_bytes(free_bytes));
}

// The free space is looked at first, because a reservation that fails takes all there is for a moment; only
// the reservation is a promise, because others take space at the same time.
Result<void> reserve(const Descriptor& descriptor, const std::string& path, std::uint64_t begin,
                     std::uint64_t bytes) {
  struct statvfs space {};
  if (fstatvfs(descriptor.value(), &space) != 0) return read_error("get the free space of", path, errno);
  const std::uint64_t free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  const bool limited = space.f_blocks > 0;
  if (limited && bytes > free_bytes) return too_small(path, bytes, free_bytes);
  int reason = 0;
  do {  // the library writes to every page where the system cannot reserve
    reason = posix_fallocate(descriptor.value(), static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (reason == EINTR);
  if (reason == ENOSPC) return too_small(path, bytes, free_bytes);
  if (reason != 0) return write_error("reserve shared memory for", path, reason);
  return {};
}

// Resizes the mapping first when it shrinks, last when it grows: no page of it is ever after the file's end.
Result<void> PosixSharedMemory::resize(std::uint64_t bytes) {
  HF_CHECK(bytes > 0);
  const std::uint64_t before = bytes_.size();
  const auto file_ends_at = [&](std::uint64_t end) {
    return ftruncate(descriptor_.value(), static_cast<off_t>(end)) == 0;
  };
  if (bytes > before) {
    const Result<void> reserved = reserve(descriptor_, path_, before, bytes - before);
    if (!reserved.ok()) static_cast<void>(file_ends_at(before));
    HF_TRY_VOID(reserved);
  }
  void* const base = mremap(bytes_.data(), before, bytes, MREMAP_MAYMOVE);
  if (base == MAP_FAILED) {
    const int reason = errno;
    if (bytes > before) static_cast<void>(file_ends_at(before));
    return read_error("map the shared memory", path_, reason);
  }
  bytes_ = {static_cast<std::byte*>(base), bytes};
  // Memory that cannot be freed stays after the end of the mapping, and goes with the name.
  if (bytes < before) static_cast<void>(file_ends_at(bytes));
  return {};
}

// The directory of this user has the first of these names, unless somebody else has it.
constexpr int directory_names = 8;
constexpr mode_t own_directory_mode = 0700, own_memory_mode = 0600, of_others = 0077;

std::string directory_path(int number) {
  const std::string first = fmt::format("{}/holdfast-{}", shared_memory_directory, geteuid());
  return number == 0 ? first : fmt::format("{}-{}", first, number);
}

struct OwnDirectory {
  Descriptor descriptor{-1};
  std::string path;
};

// The directory of that path if it is this user's alone; else, or where there is none, no descriptor.
OwnDirectory open_own(const std::string& path) {
  OwnDirectory own{.descriptor = open_descriptor(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW), .path = path};
  struct stat info {};
  if (own.descriptor.value() < 0 || fstat(own.descriptor.value(), &info) != 0 || info.st_uid != geteuid() ||
      (info.st_mode & of_others) != 0)
    return {};
  return own;
}

OwnDirectory find_own() {
  for (int number = 0; number < directory_names; ++number) {
    OwnDirectory own = open_own(directory_path(number));
    if (own.descriptor.value() >= 0) return own;
  }
  return {.path = directory_path(0)};
}

// Does what find_own() does, and makes the directory where there is none, so there is always a descriptor.
Result<OwnDirectory> find_or_make_own() {
  if (OwnDirectory own = find_own(); own.descriptor.value() >= 0) return own;
  for (int number = 0; number < directory_names; ++number) {
    const std::string path = directory_path(number);
    if (mkdir(path.c_str(), own_directory_mode) != 0 && errno != EEXIST)
      return write_error("create the directory of shared memory", path, errno);
    // Another process of this user may have made it.
    errno = 0;
    if (OwnDirectory own = open_own(path); own.descriptor.value() >= 0) return own;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
      return write_error("open the directory of shared memory", path, errno);
  }
  return fail(
      ExitCode::config,
      "no directory for shared memory: {} and all names up to {} are there and are not directories that "
      "user {} alone may enter (mode 700); let their owners or the administrator remove them",
      directory_path(0), directory_path(directory_names - 1), geteuid());
}

std::string path_in(const OwnDirectory& own, const std::string& name) {
  HF_CHECK(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos,
           "'{}' is no name of shared memory", name);
  return own.path + "/" + name;
}

Descriptor open_in(const OwnDirectory& own, const std::string& name, int flags) {
  int value = -1;
  do {
    value = openat(own.descriptor.value(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                   own_memory_mode);
  } while (value < 0 && errno == EINTR);
  return Descriptor(value);
}

Error not_own(const std::string& path, const std::string& why) {
  return fail(
      ExitCode::data,
      "the shared memory {} is not used: {}; it has to be a file of user {} that nobody else may open "
      "(mode 600); remove it",
      path, why, geteuid());
}

// Returns the length if this is memory that this program has made for this user alone.
Result<std::uint64_t> expect_own(const Descriptor& descriptor, const std::string& path) {
  struct stat info {};
  if (fstat(descriptor.value(), &info) != 0) return read_error("get the size of", path, errno);
  if (!S_ISREG(info.st_mode)) return not_own(path, "it is no file");
  if (info.st_uid != geteuid()) return not_own(path, fmt::format("it belongs to user {}", info.st_uid));
  if ((info.st_mode & of_others) != 0)
    return not_own(path, fmt::format("others may open it (mode {:o})", info.st_mode & 07777));
  if (info.st_nlink > 1) return not_own(path, fmt::format("it has {} names", info.st_nlink));
  if (info.st_size == 0) {
    return fail(
        ExitCode::data,
        "the shared memory {} is empty: the process that made it has not finished, or died on the way", path);
  }
  return static_cast<std::uint64_t>(info.st_size);
}

}  // namespace

std::string posix_shared_memory_path(const std::string& name) {
  return path_in(find_own(), name);
}

Result<std::unique_ptr<SharedMemory>> create_posix_shared_memory(const std::string& name,
                                                                 std::uint64_t bytes) {
  HF_CHECK(bytes > 0);
  HF_TRY(const OwnDirectory own, find_or_make_own());
  const std::string path = path_in(own, name);
  Descriptor descriptor = open_in(own, name, O_RDWR | O_CREAT | O_EXCL);
  if (descriptor.value() < 0) return write_error("create the shared memory", path, errno);
  Result<void> reserved = reserve(descriptor, path, 0, bytes);
  Result<std::unique_ptr<SharedMemory>> memory =
      reserved.ok() ? map(std::move(descriptor), path, bytes)
                    : Result<std::unique_ptr<SharedMemory>>(reserved.error());
  if (!memory.ok()) unlinkat(own.descriptor.value(), name.c_str(), 0);
  return memory;
}

Result<std::unique_ptr<SharedMemory>> open_posix_shared_memory(const std::string& name) {
  const OwnDirectory own = find_own();
  const std::string path = path_in(own, name);
  if (own.descriptor.value() < 0) return read_error("open the shared memory", path, ENOENT);
  Descriptor descriptor = open_in(own, name, O_RDWR);
  if (descriptor.value() < 0 && errno == ELOOP) return not_own(path, "it is a link");
  if (descriptor.value() < 0) return read_error("open the shared memory", path, errno);
  HF_TRY(const std::uint64_t bytes, expect_own(descriptor, path));
  return map(std::move(descriptor), path, bytes);
}

Result<void> remove_posix_shared_memory(const std::string& name) {
  const OwnDirectory own = find_own();
  const std::string path = path_in(own, name);
  if (own.descriptor.value() < 0) return {};
  if (unlinkat(own.descriptor.value(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return write_error("remove", path, errno);
}

Result<std::vector<std::string>> list_posix_shared_memory() {
  OwnDirectory own = find_own();
  if (own.descriptor.value() < 0) return std::vector<std::string>();
  return names_in(std::move(own.descriptor), own.path);
}

Result<std::string> make_posix_shared_directory(const std::string& name) {
  HF_TRY(const OwnDirectory own, find_or_make_own());
  const std::string path = path_in(own, name);
  const bool made = mkdirat(own.descriptor.value(), name.c_str(), own_directory_mode) == 0;
  if (!made && errno != EEXIST) return lock_error("create the directory", path, errno);
  if (open_own(path).descriptor.value() >= 0) return path;
  return fail(ExitCode::config, "{} is no directory that user {} alone may enter (mode 700); remove it", path,
              geteuid());
}

}  // namespace holdfast::os
