#include "runtime/core/posix_shared_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "runtime/core/posix_file.h"
#include "runtime/core/resizable_memory.h"
#include "runtime/core/units.h"

namespace holdfast {
namespace {

class PosixSharedMemory final : public ResizableSharedMemory {
 public:
  PosixSharedMemory(Descriptor descriptor, std::string path, std::span<std::byte> bytes)
      : descriptor_(std::move(descriptor)), path_(std::move(path)), bytes_(bytes) {}
  ~PosixSharedMemory() override { munmap(bytes_.data(), bytes_.size()); }
  PosixSharedMemory(const PosixSharedMemory&) = delete;
  PosixSharedMemory& operator=(const PosixSharedMemory&) = delete;
  std::span<std::byte> bytes() override { return bytes_; }
  // Where the system has no such locks everybody holds it shared and nobody alone.
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

// The mapping first when it becomes smaller, last when it grows: no page of it is ever behind the file's end.
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
  // What cannot be freed stays behind the end of the mapping, and goes with the name.
  if (bytes < before) static_cast<void>(file_ends_at(bytes));
  return {};
}

}  // namespace

std::string shared_memory_path(const std::string& name) {
  HF_CHECK(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos,
           "'{}' is no name of shared memory", name);
  return "/dev/shm/" + name;
}

Result<std::unique_ptr<SharedMemory>> create_posix_shared_memory(const std::string& name,
                                                                 std::uint64_t bytes) {
  HF_CHECK(bytes > 0);
  const std::string path = shared_memory_path(name);
  Descriptor descriptor = open_descriptor(path, O_RDWR | O_CREAT | O_EXCL);
  if (descriptor.value() < 0) return write_error("create the shared memory", path, errno);
  Result<void> reserved = reserve(descriptor, path, 0, bytes);
  Result<std::unique_ptr<SharedMemory>> memory =
      reserved.ok() ? map(std::move(descriptor), path, bytes)
                    : Result<std::unique_ptr<SharedMemory>>(reserved.error());
  if (!memory.ok()) unlink(path.c_str());
  return memory;
}

Result<std::unique_ptr<SharedMemory>> open_posix_shared_memory(const std::string& name) {
  const std::string path = shared_memory_path(name);
  Descriptor descriptor = open_descriptor(path, O_RDWR);
  if (descriptor.value() < 0) return read_error("open the shared memory", path, errno);
  struct stat info {};
  if (fstat(descriptor.value(), &info) != 0) return read_error("get the size of", path, errno);
  if (info.st_size == 0) {
    return fail(
        ExitCode::data,
        "the shared memory {} is empty: the process that made it has not finished, or died on the way", path);
  }
  return map(std::move(descriptor), path, static_cast<std::uint64_t>(info.st_size));
}

}  // namespace holdfast
