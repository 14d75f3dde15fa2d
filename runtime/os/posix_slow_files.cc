#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "runtime/os/posix_file_calls.h"
#include "runtime/os/posix_thread.h"
#include "runtime/os/slow_files.h"

namespace holdfast::inline os {
namespace {

constexpr const char* device_path = "/dev/fuse";

Error no_slow_files(const std::string& what, int reason) {
  return fail(ExitCode::config, "cannot {}: {}", what, std::strerror(reason));
}

// Every file that the kernel knows is open here.
void allow_many_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &files));
}

// The calls that a program makes; others are the kernel's own, which nobody waits for.
bool can_be_slow(std::uint32_t opcode) {
  return opcode != FUSE_INIT && opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET &&
         opcode != FUSE_RELEASE && opcode != FUSE_RELEASEDIR && opcode != FUSE_INTERRUPT &&
         opcode != FUSE_DESTROY && opcode != FUSE_FLUSH;
}

class FuseFiles final : public SlowFiles {
 public:
  FuseFiles(std::string path, Descriptor device, Descriptor root)
      : path_(std::move(path)),
        device_(std::move(device)),
        calls_(std::move(root)),
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
  }

  Result<void> start() {
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
      std::optional<FileRequest> request = receive();
      if (!request.has_value()) continue;
      if (const std::int64_t delay_ms = delay_of(*request); delay_ms > 0) {
        answer_later(std::move(*request), delay_ms);
      } else {
        answer(*request);
      }
    }
  }

  bool wait_for_request() {
    std::array polled = {pollfd{.fd = device_.value(), .events = POLLIN, .revents = 0},
                         pollfd{.fd = stop_.value(), .events = POLLIN, .revents = 0}};
    while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
    return polled[1].revents == 0 && (polled[0].revents & POLLERR) == 0;
  }

  std::optional<FileRequest> receive() {
    const ssize_t count = ::read(device_.value(), buffer_.data(), buffer_.size());
    if (count < static_cast<ssize_t>(sizeof(fuse_in_header))) return std::nullopt;
    FileRequest request;
    std::memcpy(&request.head, buffer_.data(), sizeof(request.head));
    request.body.assign(buffer_.begin() + sizeof(request.head), buffer_.begin() + count);
    return request;
  }

  // This process looks at the files to watch others, and must not be late itself.
  std::int64_t delay_of(const FileRequest& request) {
    const bool is_own = request.head.pid == static_cast<std::uint32_t>(::getpid());
    const std::lock_guard guard(mutex_);
    return is_own || !can_be_slow(request.head.opcode) ? 0 : call_ms_;
  }

  void answer_later(FileRequest request, std::int64_t delay_ms) {
    {
      const std::lock_guard guard(mutex_);
      ++waiting_;
    }
    const auto kept = std::make_shared<FileRequest>(std::move(request));
    const auto wait_and_answer = [this, kept, delay_ms] {
      std::unique_lock lock(mutex_);
      changed_->wait_at_most(lock, delay_ms, [&] { return call_ms_ == 0; });
      lock.unlock();
      answer(*kept);
      lock.lock();
      --waiting_;
      changed_->notify();  // under the mutex: the object may be gone once waiting_ can be seen
    };
    Result<std::unique_ptr<Thread>> thread = start_posix_thread("slow call", wait_and_answer);
    thread.ok() ? (*thread)->leave() : wait_and_answer();
  }

  void answer(const FileRequest& request) {
    const FileReply reply = calls_.answer(request);
    if (!FileCalls::wants_reply(request)) return;
    fuse_out_header head{};
    head.len = static_cast<std::uint32_t>(sizeof(head) + (reply.reason == 0 ? reply.body.size() : 0));
    head.error = -reply.reason;
    head.unique = request.head.unique;
    std::array parts = {
        iovec{.iov_base = &head, .iov_len = sizeof(head)},
        iovec{.iov_base = const_cast<std::byte*>(reply.body.data()), .iov_len = head.len - sizeof(head)}};
    // A caller that was killed meanwhile takes no reply.
    static_cast<void>(::writev(device_.value(), parts.data(), static_cast<int>(parts.size())));
  }

  static constexpr std::size_t head_bytes_max = 64 << 10;
  std::string path_;
  Descriptor device_;
  FileCalls calls_;
  Descriptor stop_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(FileCalls::transfer_bytes_max + head_bytes_max);
  std::mutex mutex_;  // guards the next two
  std::int64_t call_ms_ = 0;
  int waiting_ = 0;
  std::unique_ptr<Condition> changed_;
  std::unique_ptr<Thread> reader_;  // last: it ends before what it uses
};

}  // namespace

Result<std::unique_ptr<SlowFiles>> mount_slow_files(const std::string& path) {
  constexpr unsigned long flags = MS_NOSUID | MS_NODEV;
  allow_many_files();
  Descriptor root(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat file {};
  if (root.value() < 0 || ::fstat(root.value(), &file) != 0) return no_slow_files("open " + path, errno);
  Descriptor device(::open(device_path, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (device.value() < 0) return no_slow_files(fmt::format("open {}", device_path), errno);
  const std::string options =
      fmt::format("fd={},rootmode={:o},user_id={},group_id={},default_permissions,allow_other",
                  device.value(), file.st_mode & S_IFMT, ::geteuid(), ::getegid());
  if (::mount("holdfast", path.c_str(), "fuse", flags, options.c_str()) != 0)
    return no_slow_files("mount a slow file system at " + path, errno);
  auto files = std::make_unique<FuseFiles>(path, std::move(device), std::move(root));
  HF_TRY_VOID(files->start());
  return std::unique_ptr<SlowFiles>(std::move(files));
}

std::string why_no_slow_files() {
  const Descriptor device(::open(device_path, O_RDWR | O_CLOEXEC));
  return device.value() >= 0 ? "" : no_slow_files(fmt::format("open {}", device_path), errno).message;
}

}  // namespace holdfast::inline os
