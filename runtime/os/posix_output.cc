#include "runtime/os/posix_output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"

namespace holdfast::os {

std::optional<TerminalSize> terminal_size(std::FILE* stream) {
  const int descriptor = ::fileno(stream);
  if (descriptor < 0 || ::isatty(descriptor) == 0) return std::nullopt;
  winsize size = {};
  const bool is_known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  return is_known ? TerminalSize{.columns = size.ws_col, .rows = size.ws_row} : TerminalSize{};
}

namespace {

constexpr std::int64_t written_wait_ms = 100;  // limit of a write to stderr
constexpr std::size_t line_bytes = 64 << 10;   // a longer line is written in pieces

bool same_file(int one, int other) {
  struct stat a = {}, b = {};
  if (::fstat(one, &a) != 0 || ::fstat(other, &b) != 0) return false;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Waits for room. Text that cannot be written, because it has no reader any more, counts as written.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {  // somebody who has the file too does not want to wait
      pollfd room{.fd = descriptor, .events = POLLOUT, .revents = 0};
      static_cast<void>(::poll(&room, 1, -1));
    } else if (written == 0 || errno != EINTR) {
      return;
    }
  }
}

class StreamSink final : public LineSink {
 public:
  explicit StreamSink(int descriptor) : descriptor_(descriptor) {}
  std::weak_ptr<void> lifetime() const { return lifetime_; }
  Result<void> append(std::string_view line) override {
    text_.assign(line) += '\n';
    write_all(descriptor_, text_);
    return {};
  }
  void lost(std::uint64_t lines) override {
    static_cast<void>(append(
        fmt::format("holdfast: {} lines are left out here: they could not be printed for a while", lines)));
  }

 private:
  const int descriptor_;
  std::string text_;
  std::shared_ptr<void> lifetime_ = std::make_shared<char>();
};

}  // namespace

// The text of one file on its way to the thread that writes it. The descriptor stays open: a stalled write, and
// a library that has kept the stream, end only with the process.
class OutputThread::Channel {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {
    auto sink = std::make_unique<StreamSink>(descriptor);
    sink_ = sink->lifetime();
    lines_ = std::make_shared<LineThread>(posix_env(), std::move(sink), "",
                                          LineThread::Memory{.bytes = memory_bytes, .drops_oldest = true});
  }

  void put(std::string_view text, bool waits) {
    std::unique_lock guard(mutex_);
    if (lines_ == nullptr) {
      if (sink_.expired())
        write_all(descriptor_, text);  // else nobody reads, and what waits is in front of it
      return;
    }
    rest_ += text;
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1)
      append(std::string_view(rest_).substr(begin, end - begin));
    rest_.erase(0, begin);
    if (rest_.size() >= line_bytes) append(std::exchange(rest_, {}));
    if (!waits) return;
    const std::shared_ptr<LineThread> lines = lines_;
    guard.unlock();
    static_cast<void>(lines->wait_until_written(written_wait_ms));
  }

  bool drain() {
    std::unique_lock guard(mutex_);
    if (lines_ == nullptr) return sink_.expired();
    if (!rest_.empty()) append(std::exchange(rest_, {}));
    const std::shared_ptr<LineThread> lines = lines_;
    guard.unlock();
    return lines->flush(LineThread::short_patience_ms).ok();
  }

  // Ends the thread: from now on each caller that puts a text writes it itself.
  void end() {
    const std::lock_guard guard(mutex_);
    if (lines_ != nullptr && !rest_.empty()) append(std::exchange(rest_, {}));
    lines_.reset();
  }

 private:
  void append(std::string_view line) {
    if (!lines_->append(line).ok()) write_all(descriptor_, std::string(line) + '\n');  // there is no thread
  }

  const int descriptor_;
  std::mutex mutex_;
  std::shared_ptr<LineThread> lines_;  // null: ended
  std::weak_ptr<void> sink_;           // expired: all is written
  std::string rest_;                   // of a line that is not whole
};

// State of a C stream that stands for a channel.
struct OutputThread::Cookie {
  std::shared_ptr<Channel> channel;
  bool waits = false;
};

OutputThread::Stream OutputThread::replace(std::FILE*& stream, std::shared_ptr<Channel> channel, bool waits) {
  if (channel == nullptr) return {};
  auto held = std::make_unique<Cookie>(Cookie{std::move(channel), waits});
  const cookie_io_functions_t functions = {
      .read = nullptr,
      .write = [](void* cookie, const char* text, std::size_t bytes) -> ssize_t {
        const auto* to = static_cast<Cookie*>(cookie);
        to->channel->put({text, bytes}, to->waits);
        return static_cast<ssize_t>(bytes);
      },
      .seek = nullptr,
      .close = [](void* cookie) -> int {
        delete static_cast<Cookie*>(cookie);
        return 0;
      }};
  std::FILE* const now = ::fopencookie(held.get(), "w", functions);
  if (now == nullptr) return {};
  static_cast<void>(held.release());  // of the stream now
  std::setvbuf(now, nullptr, waits ? _IONBF : _IOLBF, BUFSIZ);
  std::fflush(stream);
  return {.before = std::exchange(stream, now), .now = now};
}

// The threads get no signals of the process, because code that waits for signals blocks them only later.
OutputThread::OutputThread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto channel_of = [](int stream) -> std::shared_ptr<Channel> {
    const int descriptor = ::fcntl(stream, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    return descriptor < 0 ? nullptr : std::make_shared<Channel>(descriptor);
  };
  out_ = channel_of(STDOUT_FILENO);
  err_ = out_ != nullptr && same_file(STDOUT_FILENO, STDERR_FILENO) ? out_ : channel_of(STDERR_FILENO);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  out_stream_ = replace(stdout, out_, /*waits=*/false);
  err_stream_ = replace(stderr, err_, /*waits=*/true);
}

bool OutputThread::drain() {
  std::fflush(stdout);
  const bool out = out_ == nullptr || out_->drain();
  const bool err = err_ == nullptr || err_ == out_ || err_->drain();
  return out && err;
}

OutputThread::~OutputThread() {
  std::fflush(stdout);
  // The stream is not closed: a library that was loaded meanwhile may have kept it, and the memory of a
  // closed stream is reused ("invalid stdio handle", seen at the end of a run on a GPU).
  const auto put_back = [](std::FILE*& stream, const Stream& replaced) {
    if (replaced.now == nullptr) return;
    stream = replaced.before;
    std::fflush(replaced.now);
  };
  put_back(stdout, out_stream_);
  put_back(stderr, err_stream_);
  if (out_ != nullptr) out_->end();
  if (err_ != nullptr && err_ != out_) err_->end();
}

}  // namespace holdfast::os
