#define FUSE_USE_VERSION 35
#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <fuse3/fuse.h>
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/os/posix_file.h"
#include "runtime/os/posix_thread.h"
#include "runtime/os/slow_files.h"

namespace holdfast::os {
namespace {

Error no_slow_files(const std::string& what, int reason) {
  return fail(ExitCode::config, "cannot {}: {}", what, std::strerror(reason));
}

// Raises the limit of open files: each one that is open in the view is open here.
void allow_many_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &files));
}

// The functions below make a call of the view on the files below it, as libfuse's fuse_operations describe them. Each
// returns 0 or what was asked for, or an errno as a negative number.

// Returns the path of the file below; `path` is that in the view, and "/" the directory or the file itself.
std::string below(const char* path) {
  const int root = *static_cast<const int*>(::fuse_get_context()->private_data);
  return fmt::format("/proc/self/fd/{}{}", root, std::strcmp(path, "/") == 0 ? "" : path);
}

int outcome(long result) {
  return result < 0 ? -errno : static_cast<int>(result);
}

int descriptor_of(const fuse_file_info* file) {
  return static_cast<int>(file->fh);
}

DIR* directory_of(const fuse_file_info* file) {
  return reinterpret_cast<DIR*>(file->fh);  // NOLINT(performance-no-int-to-ptr)
}

// Opens the file below. Buffers of requests are not aligned as O_DIRECT wants them.
int open_below(const char* path, int flags, mode_t mode, fuse_file_info* file) {
  const int descriptor = ::open(below(path).c_str(), (flags & ~O_DIRECT) | O_CLOEXEC, mode);
  if (descriptor < 0) return -errno;
  file->fh = static_cast<std::uint64_t>(descriptor);
  return 0;
}

int get_attributes(const char* path, struct stat* attributes, fuse_file_info* file) {
  if (file != nullptr) return outcome(::fstat(descriptor_of(file), attributes));
  const bool is_root = std::strcmp(path, "/") == 0;  // a link in /proc, which leads to it
  return outcome(::fstatat(AT_FDCWD, below(path).c_str(), attributes, is_root ? 0 : AT_SYMLINK_NOFOLLOW));
}

int read_link(const char* path, char* target, std::size_t bytes) {
  const ssize_t count = ::readlink(below(path).c_str(), target, bytes - 1);
  if (count < 0) return -errno;
  target[count] = '\0';
  return 0;
}

int list(const char*, void* entries, fuse_fill_dir_t fill, off_t, fuse_file_info* file, fuse_readdir_flags) {
  DIR* const directory = directory_of(file);
  ::rewinddir(directory);
  errno = 0;
  while (const dirent* each = ::readdir(directory)) {
    struct stat known {};
    known.st_ino = each->d_ino;
    known.st_mode = static_cast<mode_t>(DTTOIF(each->d_type));
    if (fill(entries, each->d_name, &known, 0, fuse_fill_dir_flags(0)) != 0) return -ENOMEM;
  }
  return -errno;
}

int open_directory(const char* path, fuse_file_info* file) {
  DIR* const directory = ::opendir(below(path).c_str());
  if (directory == nullptr) return -errno;
  file->fh = reinterpret_cast<std::uint64_t>(directory);
  return 0;
}

int truncate_below(const char* path, off_t bytes, fuse_file_info* file) {
  return outcome(file != nullptr ? ::ftruncate(descriptor_of(file), bytes)
                                 : ::truncate(below(path).c_str(), bytes));
}

// Has each read and write be a request of its own, and no entry asked for again: all changes come through the view.
void* begin(fuse_conn_info* connection, fuse_config* config) {
  constexpr double valid_s = 3600;
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ);  // requests are read into memory
  config->use_ino = config->direct_io = config->hard_remove = 1;
  config->entry_timeout = config->attr_timeout = valid_s;
  return ::fuse_get_context()->private_data;
}

fuse_operations calls_below() {
  fuse_operations calls{};
  calls.init = begin;
  calls.getattr = get_attributes;
  calls.readlink = read_link;
  calls.readdir = list;
  calls.opendir = open_directory;
  calls.truncate = truncate_below;
  calls.mkdir = [](const char* path, mode_t mode) { return outcome(::mkdir(below(path).c_str(), mode)); };
  calls.unlink = [](const char* path) { return outcome(::unlink(below(path).c_str())); };
  calls.rmdir = [](const char* path) { return outcome(::rmdir(below(path).c_str())); };
  calls.symlink = [](const char* target, const char* path) {
    return outcome(::symlink(target, below(path).c_str()));
  };
  calls.rename = [](const char* from, const char* to, unsigned flags) {
    return outcome(::renameat2(AT_FDCWD, below(from).c_str(), AT_FDCWD, below(to).c_str(), flags));
  };
  calls.link = [](const char* from, const char* to) {
    return outcome(::link(below(from).c_str(), below(to).c_str()));
  };
  calls.chmod = [](const char* path, mode_t mode, fuse_file_info*) {
    return outcome(::chmod(below(path).c_str(), mode));
  };
  calls.chown = [](const char* path, uid_t user, gid_t group, fuse_file_info*) {
    return outcome(::lchown(below(path).c_str(), user, group));
  };
  calls.utimens = [](const char* path, const timespec times[2], fuse_file_info*) {
    return outcome(::utimensat(AT_FDCWD, below(path).c_str(), times, 0));
  };
  calls.open = [](const char* path, fuse_file_info* file) { return open_below(path, file->flags, 0, file); };
  calls.create = [](const char* path, mode_t mode, fuse_file_info* file) {
    return open_below(path, file->flags | O_CREAT, mode, file);
  };
  calls.read = [](const char*, char* bytes, std::size_t count, off_t offset, fuse_file_info* file) {
    return outcome(::pread(descriptor_of(file), bytes, count, offset));
  };
  calls.write = [](const char*, const char* bytes, std::size_t count, off_t offset, fuse_file_info* file) {
    return outcome(::pwrite(descriptor_of(file), bytes, count, offset));
  };
  calls.fsync = [](const char*, int only_data, fuse_file_info* file) {
    return outcome(only_data != 0 ? ::fdatasync(descriptor_of(file)) : ::fsync(descriptor_of(file)));
  };
  calls.fallocate = [](const char*, int mode, off_t offset, off_t length, fuse_file_info* file) {
    return outcome(::fallocate(descriptor_of(file), mode, offset, length));
  };
  calls.release = [](const char*, fuse_file_info* file) { return outcome(::close(descriptor_of(file))); };
  calls.fsyncdir = [](const char*, int, fuse_file_info* file) {
    return outcome(::fsync(::dirfd(directory_of(file))));
  };
  calls.releasedir = [](const char*, fuse_file_info* file) {
    return outcome(::closedir(directory_of(file)));
  };
  calls.statfs = [](const char* path, struct statvfs* space) {
    return outcome(::statvfs(below(path).c_str(), space));
  };
  return calls;
}

// Request is one call as the kernel sends it, in memory of libfuse.
struct Request {
  fuse_buf buffer{};
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() { std::free(buffer.mem); }

  fuse_in_header head() const {
    fuse_in_header head{};
    std::memcpy(&head, buffer.mem, std::min(sizeof head, buffer.size));
    return head;
  }
  // Returns whether a program makes the call; others are the kernel's own, which nobody waits for.
  bool can_be_slow() const {
    const std::uint32_t opcode = head().opcode;
    return opcode != FUSE_INIT && opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET &&
           opcode != FUSE_RELEASE && opcode != FUSE_RELEASEDIR && opcode != FUSE_INTERRUPT &&
           opcode != FUSE_DESTROY && opcode != FUSE_FLUSH;
  }
};

class FuseFiles final : public SlowFiles {
 public:
  FuseFiles(std::string path, Descriptor root)
      : path_(std::move(path)),
        root_(std::move(root)),
        root_number_(root_.value()),
        stop_(::eventfd(0, EFD_CLOEXEC)),
        changed_(make_posix_condition()) {}

  ~FuseFiles() override {
    slow_down(0);
    ::umount2(path_.c_str(), MNT_DETACH);
    {
      std::unique_lock lock(mutex_);
      changed_->wait(lock, [&] { return waiting_ == 0; });
    }
    const std::uint64_t one = 1;
    static_cast<void>(::write(stop_.value(), &one, sizeof(one)));
    reader_.reset();
    if (fuse_ != nullptr) ::fuse_destroy(fuse_);
  }

  Result<void> start() {
    static const fuse_operations calls = calls_below();
    std::array<char*, 4> words = {const_cast<char*>("holdfast"), const_cast<char*>("-o"),
                                  const_cast<char*>("allow_other,default_permissions,fsname=holdfast"),
                                  nullptr};
    fuse_args options{.argc = 3, .argv = words.data(), .allocated = 0};
    fuse_ = ::fuse_new(&options, &calls, sizeof(calls), &root_number_);
    ::fuse_opt_free_args(&options);
    if (fuse_ == nullptr || ::fuse_mount(fuse_, path_.c_str()) != 0)
      return no_slow_files("mount a slow file system at " + path_, errno);
    session_ = ::fuse_get_session(fuse_);
    HF_TRY(reader_, start_posix_thread("slow files", [this] { serve(); }));
    return {};
  }

  void slow_down(std::int64_t call_ms) override {
    {
      const std::lock_guard guard(mutex_);
      call_ms_ = call_ms;
    }
    changed_->notify();
  }

 private:
  void serve() {
    while (wait_for_request()) {
      const auto request = std::make_shared<Request>();
      const int count = ::fuse_session_receive_buf(session_, &request->buffer);
      if (count == -EINTR || count == -EAGAIN) continue;
      if (count <= 0) return;  // nothing has the view any more
      if (const std::int64_t delay_ms = delay_of(*request); delay_ms > 0) {
        answer_later(request, delay_ms);
      } else {
        answer(*request);
      }
    }
  }

  bool wait_for_request() {
    std::array polled = {pollfd{.fd = ::fuse_session_fd(session_), .events = POLLIN, .revents = 0},
                         pollfd{.fd = stop_.value(), .events = POLLIN, .revents = 0}};
    while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
    return polled[1].revents == 0 && (polled[0].revents & POLLERR) == 0;
  }

  // This process looks at the files to watch others, and must not be late itself.
  std::int64_t delay_of(const Request& request) {
    const bool is_own = request.head().pid == static_cast<std::uint32_t>(::getpid());
    const std::lock_guard guard(mutex_);
    return is_own || !request.can_be_slow() ? 0 : call_ms_;
  }

  void answer_later(const std::shared_ptr<Request>& request, std::int64_t delay_ms) {
    {
      const std::lock_guard guard(mutex_);
      ++waiting_;
    }
    const auto wait_and_answer = [this, request, delay_ms] {
      std::unique_lock lock(mutex_);
      changed_->wait_at_most(lock, delay_ms, [&] { return call_ms_ == 0; });
      lock.unlock();
      answer(*request);
      lock.lock();
      --waiting_;
      changed_->notify();  // under the mutex: the object may be gone once waiting_ can be seen
    };
    Result<std::unique_ptr<Thread>> thread = start_posix_thread("slow call", wait_and_answer);
    thread.ok() ? (*thread)->leave() : wait_and_answer();
  }

  void answer(const Request& request) { ::fuse_session_process_buf(session_, &request.buffer); }

  std::string path_;
  Descriptor root_;  // O_PATH descriptor of the directory or file
  int root_number_;
  fuse* fuse_ = nullptr;
  fuse_session* session_ = nullptr;
  Descriptor stop_;
  std::mutex mutex_;  // guards the next two
  std::int64_t call_ms_ = 0;
  int waiting_ = 0;
  std::unique_ptr<Condition> changed_;
  std::unique_ptr<Thread> reader_;  // last: it ends before what it uses
};

}  // namespace

Result<std::unique_ptr<SlowFiles>> mount_slow_files(const std::string& path) {
  allow_many_files();
  Descriptor root(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (root.value() < 0) return no_slow_files("open " + path, errno);
  auto files = std::make_unique<FuseFiles>(path, std::move(root));
  HF_TRY_VOID(files->start());
  return std::unique_ptr<SlowFiles>(std::move(files));
}

std::string why_no_slow_files() {
  constexpr const char* device_path = "/dev/fuse";
  const Descriptor device(::open(device_path, O_RDWR | O_CLOEXEC));
  return device.value() >= 0 ? "" : no_slow_files(fmt::format("open {}", device_path), errno).message;
}

}  // namespace holdfast::os
