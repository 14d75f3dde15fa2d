// The I/O engine without io_uring: a thread for each operation in flight, blocked in pread, pwrite or fsync.
// The threads wait for the disk and compute nothing, so there may be more of them than processors.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/os/posix_io_engine.h"

namespace holdfast::os {
namespace {

std::int64_t perform(const IoOperation& operation, int descriptor) {
  const auto offset = static_cast<off_t>(operation.offset);
  std::int64_t result = 0;
  switch (operation.kind) {
    case IoKind::read:
      result = pread(descriptor, operation.bytes.data(), operation.bytes.size(), offset);
      break;
    case IoKind::write:
      result = pwrite(descriptor, operation.bytes.data(), operation.bytes.size(), offset);
      break;
    case IoKind::sync:
      result = fsync(descriptor);
      break;
  }
  return result < 0 ? -errno : result;
}

class ThreadIoEngine final : public PosixIoEngine {
 public:
  ThreadIoEngine(int depth, std::string fallback_reason) : PosixIoEngine(depth, std::move(fallback_reason)) {}
  ThreadIoEngine(const ThreadIoEngine&) = delete;
  ThreadIoEngine& operator=(const ThreadIoEngine&) = delete;
  ~ThreadIoEngine() override {
    {
      const std::lock_guard guard(mutex_);
      ends_ = true;
    }
    submitted_.notify_all();
  }

  Result<void> start_threads(int count) {
    try {
      for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      return fail(ExitCode::does_not_fit,
                  "no thread can be started for the checkpoint's I/O ({}); allow this user more processes",
                  error.what());
    }
    return {};
  }

  bool register_buffers(std::span<const std::span<std::byte>>) override { return false; }
  IoBackend backend() const override { return IoBackend::threads; }

 private:
  struct Work {
    IoOperation operation;
    int descriptor = -1;
  };

  void submit(const IoOperation& operation, int descriptor) override {
    {
      const std::lock_guard guard(mutex_);
      work_.push_back({.operation = operation, .descriptor = descriptor});
    }
    submitted_.notify_one();
  }

  IoOutcome reap() override {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [&] { return !outcomes_.empty(); });
    const IoOutcome outcome = outcomes_.front();
    outcomes_.pop_front();
    return outcome;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      submitted_.wait(lock, [&] { return ends_ || !work_.empty(); });
      if (work_.empty()) return;
      const Work next = work_.front();
      work_.pop_front();
      lock.unlock();
      const std::int64_t result = perform(next.operation, next.descriptor);
      lock.lock();
      outcomes_.push_back({.slot = next.operation.slot, .result = result});
      completed_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable submitted_, completed_;
  std::deque<Work> work_;
  std::deque<IoOutcome> outcomes_;
  bool ends_ = false;
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace

Result<std::unique_ptr<IoEngine>> make_thread_io_engine(int depth, std::string fallback_reason) {
  auto engine = std::make_unique<ThreadIoEngine>(depth, std::move(fallback_reason));
  HF_TRY_VOID(engine->start_threads(depth));
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace holdfast::os
