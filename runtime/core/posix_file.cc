#include "runtime/core/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace holdfast {
namespace {

constexpr mode_t file_mode = 0644;
constexpr std::size_t largest_transfer_bytes = std::size_t{1} << 30;  // the kernel stops short of 2 GiB

Error os_error(ExitCode code, std::string_view action, const std::string& path, int reason) {
  std::array<char, 256> buffer{};
  const char* text = strerror_r(reason, buffer.data(), buffer.size());
  if (reason == ENOSPC || reason == EDQUOT) {
    return fail(code, "cannot {} {}: the disk is full ({}); free space there and start again", action, path,
                text);
  }
  return fail(code, "cannot {} {}: {}", action, path, text);
}

class PosixFile final : public File {
 public:
  PosixFile(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
    std::size_t done = 0;
    while (done < target.size()) {
      const std::size_t bytes = std::min(target.size() - done, largest_transfer_bytes);
      const ssize_t got =
          pread(descriptor_.value(), target.data() + done, bytes, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return read_error("read", path_, errno);
      if (got == 0) {
        return fail(ExitCode::data,
                    "cannot read {} bytes at offset {} of {}: the file ends at {}; it is incomplete",
                    target.size(), offset, path_, offset + done);
      }
      done += static_cast<std::size_t>(got);
    }
    return {};
  }

  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> source) override {
    std::size_t done = 0;
    while (done < source.size()) {
      const std::size_t bytes = std::min(source.size() - done, largest_transfer_bytes);
      const ssize_t put =
          pwrite(descriptor_.value(), source.data() + done, bytes, static_cast<off_t>(offset + done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return write_error("write", path_, errno);
      done += static_cast<std::size_t>(put);
    }
    return {};
  }

  Result<void> allocate(std::uint64_t bytes) override {
    if (bytes == 0) return {};
    int result = 0;
    do {
      result = fallocate(descriptor_.value(), 0, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS) return write_error("reserve space for", path_, errno);
    // A file system that cannot reserve can still say how much is free.
    struct statvfs space {};
    if (fstatvfs(descriptor_.value(), &space) != 0) return write_error("reserve space for", path_, errno);
    if (bytes > space.f_bavail * space.f_frsize) return write_error("reserve space for", path_, ENOSPC);
    return {};
  }

  Result<void> sync() override {
    int result = 0;
    do {
      result = fsync(descriptor_.value());
    } while (result != 0 && errno == EINTR);
    if (result != 0) return write_error("make durable", path_, errno);
    return {};
  }

  Result<std::uint64_t> size() override {
    struct stat info {};
    if (fstat(descriptor_.value(), &info) != 0) return read_error("get the size of", path_, errno);
    return static_cast<std::uint64_t>(info.st_size);
  }

  void will_need(std::uint64_t offset, std::uint64_t bytes) override {
    posix_fadvise(descriptor_.value(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_WILLNEED);
  }

  void drop_cached() override { posix_fadvise(descriptor_.value(), 0, 0, POSIX_FADV_DONTNEED); }

  const std::string& path() const override { return path_; }

 private:
  Descriptor descriptor_;
  std::string path_;
};

}  // namespace

Error read_error(std::string_view action, const std::string& path, int reason) {
  return os_error(ExitCode::data, action, path, reason);
}

Error write_error(std::string_view action, const std::string& path, int reason) {
  return os_error(ExitCode::checkpoint, action, path, reason);
}

Descriptor::~Descriptor() {
  if (value_ >= 0) close(value_);
}

Descriptor open_descriptor(const std::string& path, int flags) {
  int value = -1;
  do {
    value = open(path.c_str(), flags | O_CLOEXEC, file_mode);
  } while (value < 0 && errno == EINTR);
  return Descriptor(value);
}

Result<std::unique_ptr<File>> open_posix_file(const std::string& path, OpenMode mode) {
  Descriptor descriptor =
      open_descriptor(path, mode == OpenMode::read ? O_RDONLY : O_RDWR | O_CREAT | O_EXCL);
  if (descriptor.value() < 0) {
    return mode == OpenMode::read ? read_error("open", path, errno) : write_error("create", path, errno);
  }
  return std::unique_ptr<File>(std::make_unique<PosixFile>(std::move(descriptor), path));
}

}  // namespace holdfast
