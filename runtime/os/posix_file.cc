#include "runtime/os/posix_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/os/aligned_buffer.h"
#include "runtime/os/errno_reason.h"
#include "runtime/os/paths.h"

namespace holdfast::os {
namespace {

constexpr std::size_t largest_transfer_bytes = std::size_t{1} << 30;  // the kernel stops short of 2 GiB

Error os_error(ExitCode code, std::string_view action, const std::string& path, int reason) {
  const std::string text = reason_text(reason);
  Error error = is_full_disk(reason)
                    ? fail(code, "cannot {} {}: the disk is full ({}); free space there and start again",
                           action, path, text)
                    : fail(code, "cannot {} {}: {}", action, path, text);
  error.reach = reach_of_reason(reason);
  error.reason = reason;
  return error;
}

// A second descriptor of an open file, for direct I/O, or why there is none.
struct DirectDescriptor {
  Descriptor descriptor{-1};
  std::string refusal = "it was not opened for direct I/O";
};

// The alignment that the file system asks for, if it says so (Linux 6.1 and later), must be one that
// io_alignment_bytes satisfies.
std::string alignment_refusal(int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx facts {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) != 0) return "";
  if ((facts.stx_mask & STATX_DIOALIGN) == 0) return "";
  if (facts.stx_dio_offset_align == 0) return "the file system does no direct I/O on this file";
  const std::uint64_t needed = std::max(facts.stx_dio_mem_align, facts.stx_dio_offset_align);
  if (needed <= io_alignment_bytes) return "";
  return fmt::format("the file system wants direct I/O in multiples of {} bytes, and a checkpoint's are {}",
                     needed, io_alignment_bytes);
#else
  static_cast<void>(descriptor);
  return "";
#endif
}

// Opens the file a second time for direct I/O. It goes by way of /proc, so that it is the same file whatever
// happens to its name meanwhile.
DirectDescriptor open_direct(int descriptor, int flags) {
  Descriptor direct = open_descriptor(fmt::format("/proc/self/fd/{}", descriptor), flags | O_DIRECT);
  if (direct.value() < 0)
    return {.refusal = fmt::format("the file system refuses direct I/O ({})", reason_text(errno))};
  std::string refusal = alignment_refusal(direct.value());
  if (!refusal.empty()) return {.refusal = std::move(refusal)};
  return {.descriptor = std::move(direct), .refusal = ""};
}

class PosixFile final : public File {
 public:
  PosixFile(Descriptor descriptor, DirectDescriptor direct, std::string path)
      : descriptor_(std::move(descriptor)), direct_(std::move(direct)), path_(std::move(path)) {}

  TransferDescriptor transfer_descriptor() const {
    const bool direct = direct_.descriptor.value() >= 0 && stopped_by_ == 0;
    return {.value = direct ? direct_.descriptor.value() : descriptor_.value(), .direct = direct};
  }
  int sync_descriptor() const { return descriptor_.value(); }
  void stop_direct(int reason) { stopped_by_ = reason; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
    std::size_t done = 0;
    while (done < target.size()) {
      const std::size_t bytes = std::min(target.size() - done, largest_transfer_bytes);
      const ssize_t got =
          pread(descriptor_.value(), target.data() + done, bytes, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return read_error("read", path_, errno);
      if (got == 0) {
        const Result<std::uint64_t> now = size();  // which may be far before the place
        return fail(ExitCode::data,
                    "cannot read {} bytes at offset {} of {}: the file ends at {}; it is incomplete",
                    target.size(), offset, path_, now.ok() ? std::min(*now, offset + done) : offset + done);
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

  Result<void> truncate(std::uint64_t bytes) override {
    int result = 0;
    do {
      result = ftruncate(descriptor_.value(), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0) return write_error("set the size of", path_, errno);
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

  std::string buffered_reason() const override {
    const int reason = stopped_by_;
    if (reason == 0) return direct_.refusal;
    return fmt::format("the file system refused a direct operation ({})", reason_text(reason));
  }

  const std::string& path() const override { return path_; }

 private:
  Descriptor descriptor_;
  DirectDescriptor direct_;
  std::atomic<int> stopped_by_ = 0;  // the errno after which direct_ is no longer used; 0: none
  std::string path_;
};

Result<Descriptor> open_new(const std::string& path) {
  Descriptor descriptor = open_descriptor(path, O_RDWR | O_CREAT | O_EXCL);
  if (descriptor.value() < 0) return write_error("create", path, errno);
  return descriptor;
}

PosixFile& posix_file(File& file) {
  auto* const posix = dynamic_cast<PosixFile*>(&file);
  HF_CHECK(posix != nullptr, "{} was opened by another Env", file.path());
  return *posix;
}

}  // namespace

Error read_error(std::string_view action, const std::string& path, int reason) {
  return os_error(ExitCode::data, action, path, reason);
}

Error write_error(std::string_view action, const std::string& path, int reason) {
  return os_error(ExitCode::checkpoint, action, path, reason);
}

Error lock_error(std::string_view action, const std::string& path, int reason) {
  // The last three: the file system has no locks.
  constexpr std::array lasting = {EACCES, EPERM,        EROFS,  ENOENT,     ENOTDIR, EISDIR,
                                  ELOOP,  ENAMETOOLONG, ENOSYS, EOPNOTSUPP, EINVAL};
  const bool lasts = std::ranges::find(lasting, reason) != lasting.end();
  return os_error(lasts ? ExitCode::config : ExitCode::checkpoint, action, path, reason);
}

Descriptor::~Descriptor() {
  close();
}

int Descriptor::close() {
  const int value = std::exchange(value_, -1);
  return value < 0 || ::close(value) == 0 ? 0 : errno;
}

Descriptor open_descriptor(const std::string& path, int flags, unsigned mode) {
  int value = -1;
  do {
    value = open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (value < 0 && errno == EINTR);
  return Descriptor(value);
}

Result<std::vector<std::string>> names_in(Descriptor directory, const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(
      directory.value() < 0 ? nullptr : fdopendir(directory.value()), closedir);
  if (stream == nullptr) return read_error("list", path, errno);
  directory.release();  // it is the stream's
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr && errno != 0) return read_error("list", path, errno);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// A stream that the user names himself, as in a shell's <(command), is taken as it is. Anything else is looked
// at before it is opened, because opening alone has effects on some devices.
Result<Descriptor> open_to_read(const std::string& path, int flags) {
  const bool is_stream = is_stream_path(path);
  struct stat info {};
  const auto is_file_or_directory = [&] { return S_ISREG(info.st_mode) || S_ISDIR(info.st_mode); };
  const auto is_no_file = [&] {
    return fail(ExitCode::data, "cannot open {}: it is a pipe, a device or a socket, expected a file", path);
  };
  const int as_link = (flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0;
  if (!is_stream && fstatat(AT_FDCWD, path.c_str(), &info, as_link) == 0 && !S_ISLNK(info.st_mode) &&
      !is_file_or_directory())
    return is_no_file();
  Descriptor descriptor = open_descriptor(path, O_RDONLY | (is_stream ? 0 : O_NONBLOCK) | flags);
  const int reason = errno;
  if (descriptor.value() < 0 && reason == ENXIO) return is_no_file();  // a socket
  if (descriptor.value() < 0) return read_error("open", path, reason);
  if (is_stream) return descriptor;
  if (fstat(descriptor.value(), &info) != 0) return read_error("look at", path, errno);
  if (!is_file_or_directory()) return is_no_file();
  // Reads block from here on: io_uring may give up at once where a descriptor has O_NONBLOCK.
  if (fcntl(descriptor.value(), F_SETFL, 0) != 0) return read_error("open", path, errno);
  return descriptor;
}

Result<std::string> read_all_of(const Descriptor& descriptor, const std::string& path,
                                std::uint64_t max_bytes) {
  std::string text;
  std::array<char, 16384> buffer{};
  while (true) {
    const ssize_t got = read(descriptor.value(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return read_error("read", path, errno);
    if (got == 0) return text;
    if (static_cast<std::uint64_t>(got) > max_bytes - text.size())
      return fail(ExitCode::data, "{} has more than {} bytes", path, max_bytes);
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

Result<std::unique_ptr<File>> open_posix_file(const std::string& path, OpenMode mode) {
  const int access = is_read(mode) ? O_RDONLY : O_RDWR;
  HF_TRY(Descriptor descriptor, is_read(mode) ? open_to_read(path) : open_new(path));
  const bool wants_direct = mode == OpenMode::read_direct || mode == OpenMode::create_direct;
  DirectDescriptor direct = wants_direct ? open_direct(descriptor.value(), access) : DirectDescriptor{};
  return std::unique_ptr<File>(std::make_unique<PosixFile>(std::move(descriptor), std::move(direct), path));
}

TransferDescriptor transfer_descriptor(File& file) {
  return posix_file(file).transfer_descriptor();
}

int sync_descriptor(File& file) {
  return posix_file(file).sync_descriptor();
}

void stop_direct(File& file, int reason) {
  posix_file(file).stop_direct(reason);
}

}  // namespace holdfast::os
