#include "runtime/os/posix_io_engine.h"

#include <fmt/core.h>
#include <liburing.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/os/posix_file.h"

namespace holdfast::os {

void PosixIoEngine::start(const IoOperation& operation) {
  const bool is_sync = operation.kind == IoKind::sync;
  const TransferDescriptor transfer =
      is_sync ? TransferDescriptor{.value = sync_descriptor(*operation.file), .direct = false}
              : transfer_descriptor(*operation.file);
  started_[operation.slot] = {.operation = operation, .direct = transfer.direct};
  submit(operation, transfer.value);
}

IoOutcome PosixIoEngine::wait() {
  while (true) {
    const IoOutcome outcome = reap();
    const Started& started = started_[outcome.slot];
    if (outcome.result != -EINVAL || !started.direct) return outcome;
    stop_direct(*started.operation.file, EINVAL);
    start(IoOperation(started.operation));  // a copy: it is written over
  }
}

Result<std::unique_ptr<IoEngine>> make_posix_io_engine(const IoQueueOptions& options) {
  if (options.backend == IoBackend::threads) return make_thread_io_engine(options.depth, "");
  Result<std::unique_ptr<IoEngine>> engine = make_io_uring_engine(options.depth);
  if (engine.ok()) return engine;
  if (options.backend == IoBackend::automatic)
    return make_thread_io_engine(options.depth, engine.error().message);
  return fail(ExitCode::config, "io_uring cannot be used: {}; take \"auto\" or \"threads\"",
              engine.error().message);
}

// The I/O engine without io_uring: a thread for each operation in flight, blocked in pread, pwrite or fsync.
// The threads wait for the disk and compute nothing, so there may be more of them than processors.

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

// io_uring, by liburing. One ring for one thread; what completes is taken up when that thread waits
// (IORING_SETUP_DEFER_TASKRUN, which man io_uring_setup recommends), not by interrupting it.

namespace {

constexpr std::chrono::milliseconds pause{1};
constexpr std::uint64_t largest_registered_bytes = std::uint64_t{1} << 30;  // the kernel's, of one buffer

// The kernel is short of something for the moment, or was interrupted. What was to be submitted stays in the
// ring and goes with the next attempt.
bool is_passing(int error) {
  return error == -EINTR || error == -EAGAIN || error == -EBUSY;
}

std::string refusal_of(int reason) {
  if (reason == ENOSYS) return "this kernel has no io_uring";
  if (reason != EPERM && reason != EACCES) return std::strerror(reason);
  const Result<std::string> disabled = posix_env().read_text("/proc/sys/kernel/io_uring_disabled");
  if (disabled.ok() && !disabled->empty() && disabled->front() != '0')
    return fmt::format("kernel.io_uring_disabled is {}", disabled->front());
  return fmt::format("{}, as in most containers", std::strerror(reason));
}

class IoUringEngine final : public PosixIoEngine {
 public:
  explicit IoUringEngine(int depth) : PosixIoEngine(depth, "") {}
  IoUringEngine(const IoUringEngine&) = delete;
  IoUringEngine& operator=(const IoUringEngine&) = delete;
  ~IoUringEngine() override {
    if (is_set_up_) io_uring_queue_exit(&ring_);
  }

  // 0, or an errno.
  int set_up(int depth) {
    // Kernels before 6.1 do not know the flags.
    for (const unsigned flags : {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0U}) {
      io_uring_params parameters{};
      parameters.flags = flags;
      const int result = io_uring_queue_init_params(static_cast<unsigned>(depth), &ring_, &parameters);
      is_set_up_ = result == 0;
      if (result != -EINVAL) return -result;
    }
    return EINVAL;
  }

  bool knows_operations() {
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    bool known = true;
    for (const int operation :
         {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC})
      known = known && io_uring_opcode_supported(probe, operation) != 0;
    io_uring_free_probe(probe);
    return known;
  }

  // A sandbox may let a ring be made and forbid its use.
  int try_out() {
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    int result = 0;
    do {
      result = io_uring_submit_and_wait(&ring_, 1);
    } while (result == -EINTR);
    if (result < 0) return -result;
    return -static_cast<int>(take().result);
  }

  // RLIMIT_MEMLOCK on older kernels and memory that cannot be pinned are reasons why not; neither matters.
  bool register_buffers(std::span<const std::span<std::byte>> buffers) override {
    std::vector<iovec> vectors;
    for (const std::span<std::byte> buffer : buffers) {
      if (buffer.size() > largest_registered_bytes) return false;
      vectors.push_back({.iov_base = buffer.data(), .iov_len = buffer.size()});
    }
    if (io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size())) != 0)
      return false;
    registered_.assign(buffers.begin(), buffers.end());
    return true;
  }

  IoBackend backend() const override { return IoBackend::io_uring; }

 private:
  void submit(const IoOperation& operation, int descriptor) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    HF_CHECK(entry != nullptr, "more operations in flight than the ring's depth");
    prepare(entry, operation, descriptor);
    io_uring_sqe_set_data64(entry, operation.slot);
    const int result = io_uring_submit(&ring_);
    HF_CHECK(result >= 0 || is_passing(result), "io_uring_submit: {}", std::strerror(-result));
  }

  void prepare(io_uring_sqe* entry, const IoOperation& operation, int descriptor) {
    std::byte* const data = operation.bytes.data();
    const auto bytes = static_cast<unsigned>(operation.bytes.size());
    const int registered = registered_index(operation.bytes);
    switch (operation.kind) {
      case IoKind::sync:
        return io_uring_prep_fsync(entry, descriptor, 0);
      case IoKind::read:
        if (registered < 0) return io_uring_prep_read(entry, descriptor, data, bytes, operation.offset);
        return io_uring_prep_read_fixed(entry, descriptor, data, bytes, operation.offset, registered);
      case IoKind::write:
        if (registered < 0) return io_uring_prep_write(entry, descriptor, data, bytes, operation.offset);
        return io_uring_prep_write_fixed(entry, descriptor, data, bytes, operation.offset, registered);
    }
  }

  int registered_index(std::span<const std::byte> bytes) const {
    for (std::size_t i = 0; i < registered_.size(); ++i) {
      const std::span<std::byte> buffer = registered_[i];
      if (bytes.data() >= buffer.data() && bytes.data() + bytes.size() <= buffer.data() + buffer.size())
        return static_cast<int>(i);
    }
    return -1;
  }

  IoOutcome reap() override {
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) != 0) {
      const int result = io_uring_submit_and_wait(&ring_, 1);
      HF_CHECK(result >= 0 || is_passing(result), "io_uring_enter: {}", std::strerror(-result));
      if (result < 0 && result != -EINTR) std::this_thread::sleep_for(pause);
    }
    return take();
  }

  IoOutcome take() {
    io_uring_cqe* entry = nullptr;
    HF_CHECK(io_uring_peek_cqe(&ring_, &entry) == 0);
    const IoOutcome outcome{.slot = static_cast<unsigned>(io_uring_cqe_get_data64(entry)),
                            .result = entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return outcome;
  }

  io_uring ring_{};
  bool is_set_up_ = false;
  std::vector<std::span<std::byte>> registered_;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> make_io_uring_engine(int depth) {
  auto engine = std::make_unique<IoUringEngine>(depth);
  int reason = engine->set_up(depth);
  if (reason == 0 && !engine->knows_operations())
    return fail(ExitCode::config, "this kernel is older than Linux 5.6");
  if (reason == 0) reason = engine->try_out();
  if (reason != 0) return fail(ExitCode::config, "{}", refusal_of(reason));
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace holdfast::os
