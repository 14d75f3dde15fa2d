#include "runtime/os/posix_output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace holdfast::os {
namespace {

using namespace std::chrono_literals;

constexpr auto written_wait = 100ms;  // limit of a write to stderr
constexpr auto drain_patience = 2s;   // with nothing that moves
constexpr std::size_t chunk_bytes = 64 << 10;

bool same_file(int one, int other) {
  struct stat a = {}, b = {};
  if (::fstat(one, &a) != 0 || ::fstat(other, &b) != 0) return false;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Starts a thread that gets no signals of the process, because code that waits for signals blocks them only
// later.
std::thread quiet_thread(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace

// Holds the text that waits for one file, and the thread that writes it. The thread shares ownership, and may
// outlive the object that made it: a stalled write ends only with the process.
class OutputThread::Channel : public std::enable_shared_from_this<Channel> {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  ~Channel() { ::close(descriptor_); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void start() {
    thread_ = quiet_thread([self = shared_from_this()] { self->work(); });
  }

  void put(std::string_view text, bool waits) {
    std::unique_lock guard(mutex_);
    if (stopping_) {
      if (!is_left_) write_all(text);  // else nobody reads, and what waits is in front of it
      return;
    }
    text_ += text;
    drop_oldest();
    changed_.notify_all();
    if (!waits || stalled_) return;
    stalled_ = !changed_.wait_for(guard, written_wait, [this] { return is_empty(); });
  }

  bool drain() {
    std::unique_lock guard(mutex_);
    while (!is_empty()) {
      const std::uint64_t before = moved_bytes_;
      const auto moved = [&] { return is_empty() || moved_bytes_ != before; };
      if (!changed_.wait_for(guard, drain_patience, moved)) return false;
    }
    return true;
  }

  // Stops the thread: from now on each caller that puts a text writes it itself.
  void stop() {
    bool idle = false;
    {
      const std::lock_guard guard(mutex_);
      stopping_ = true;
      idle = is_empty();
      is_left_ = !idle;
    }
    changed_.notify_all();
    if (idle) {
      thread_.join();
    } else {
      thread_.detach();  // it is stalled, and ends with the process
    }
  }

 private:
  bool is_empty() const { return text_.size() == begin_ && !writing_; }

  // Forgets whole lines from the front, some more than must be, so that this is not done for every line.
  void drop_oldest() {
    if (text_.size() - begin_ <= memory_bytes) return;
    const std::size_t least = text_.size() - memory_bytes + memory_bytes / 8;
    const std::size_t end = std::min(text_.find('\n', least), text_.size() - 1) + 1;
    dropped_ +=
        static_cast<std::uint64_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(begin_),
                                              text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    text_.erase(0, end);
    begin_ = 0;
  }

  // Whole lines, where there is one.
  std::string take_chunk() {
    std::string chunk;
    if (dropped_ > 0) {
      chunk = fmt::format("holdfast: {} lines are left out here: they could not be printed for a while\n",
                          std::exchange(dropped_, 0));
    }
    std::size_t bytes = std::min(text_.size() - begin_, chunk_bytes);
    const std::size_t newline = text_.rfind('\n', begin_ + bytes - 1);
    if (newline != std::string::npos && newline >= begin_) bytes = newline + 1 - begin_;
    chunk.append(text_, begin_, bytes);
    begin_ += bytes;
    if (begin_ == text_.size() || begin_ > memory_bytes) {
      text_.erase(0, begin_);
      begin_ = 0;
    }
    return chunk;
  }

  void work() {
    std::unique_lock guard(mutex_);
    while (true) {
      changed_.wait(guard, [this] { return stopping_ || text_.size() > begin_; });
      if (text_.size() == begin_) return;
      writing_ = true;
      const std::string chunk = take_chunk();
      for (std::string_view rest = chunk; !rest.empty();) {
        guard.unlock();
        const std::size_t written = write_some(rest);
        guard.lock();
        rest.remove_prefix(written);
        moved_bytes_ += written;
        changed_.notify_all();
      }
      writing_ = stalled_ = false;
      changed_.notify_all();
    }
  }

  void write_all(std::string_view text) const {
    while (!text.empty()) text.remove_prefix(write_some(text));
  }

  // Waits for room. Text that cannot be written, because it has no reader any more, counts as written.
  std::size_t write_some(std::string_view text) const {
    while (true) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written > 0) return static_cast<std::size_t>(written);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EAGAIN) {  // somebody who has the file too does not want to wait
        pollfd room{.fd = descriptor_, .events = POLLOUT, .revents = 0};
        static_cast<void>(::poll(&room, 1, -1));
        continue;
      }
      return text.size();
    }
  }

  const int descriptor_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;  // waits from begin_ on
  std::size_t begin_ = 0;
  std::uint64_t dropped_ = 0, moved_bytes_ = 0;
  bool writing_ = false, stopping_ = false;
  bool stalled_ = false;  // somebody has waited in vain
  bool is_left_ = false;  // its stalled thread is not waited for any more
};

namespace {

// State of a C stream that stands for a channel.
template <typename Channel>
struct Cookie {
  std::shared_ptr<Channel> channel;
  bool waits = false;
};

}  // namespace

OutputThread::Stream OutputThread::replace(std::FILE*& stream, std::shared_ptr<Channel> channel, bool waits) {
  if (channel == nullptr) return {};
  using Held = Cookie<Channel>;
  auto held = std::make_unique<Held>(Held{std::move(channel), waits});
  const cookie_io_functions_t functions = {
      .read = nullptr,
      .write = [](void* cookie, const char* text, std::size_t bytes) -> ssize_t {
        const auto* to = static_cast<Held*>(cookie);
        to->channel->put({text, bytes}, to->waits);
        return static_cast<ssize_t>(bytes);
      },
      .seek = nullptr,
      .close = [](void* cookie) -> int {
        delete static_cast<Held*>(cookie);
        return 0;
      }};
  std::FILE* const now = ::fopencookie(held.get(), "w", functions);
  if (now == nullptr) return {};
  static_cast<void>(held.release());  // of the stream now
  std::setvbuf(now, nullptr, waits ? _IONBF : _IOLBF, BUFSIZ);
  std::fflush(stream);
  return {.before = std::exchange(stream, now), .now = now};
}

OutputThread::OutputThread() {
  const auto channel_of = [](int stream) -> std::shared_ptr<Channel> {
    const int descriptor = ::fcntl(stream, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (descriptor < 0) return nullptr;
    auto channel = std::make_shared<Channel>(descriptor);
    channel->start();
    return channel;
  };
  try {
    out_ = channel_of(STDOUT_FILENO);
    err_ = out_ != nullptr && same_file(STDOUT_FILENO, STDERR_FILENO) ? out_ : channel_of(STDERR_FILENO);
  } catch (const std::system_error&) {
    // The streams stay as they are without a thread.
  }
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
  static_cast<void>(drain());
  // The stream is not closed: a library that was loaded meanwhile may have kept it, and the memory of a
  // closed stream is reused ("invalid stdio handle", seen at the end of a run on a GPU).
  const auto put_back = [](std::FILE*& stream, const Stream& replaced) {
    if (replaced.now == nullptr) return;
    stream = replaced.before;
    std::fflush(replaced.now);
  };
  put_back(stdout, out_stream_);
  put_back(stderr, err_stream_);
  if (out_ != nullptr) out_->stop();
  if (err_ != nullptr && err_ != out_) err_->stop();
}

}  // namespace holdfast::os
