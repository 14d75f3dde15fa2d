// SimulatedEnv: an Env on a clock of its own, whose threads run one at a time. A thread runs until it sleeps,
// waits or yields; then the one goes on whose time comes first, and the clock jumps to that time. So ten minutes
// take milliseconds, and the same test makes the same choices every time.
//
//   MemoryEnv files;
//   SimulatedEnv env(files);
//   const auto thread = env.start_thread("work", [&] { env.sleep_us(600'000'000); }).value();
//   thread->wait();                        // at once
//   EXPECT_GE(env.now_s(), 600);
//
// The thread that makes it is the first of its threads, and outlives the others. What goes around the Env is not
// simulated: a thread that blocks elsewhere keeps all others from running. All threads waiting for ever is a bug of
// the test, which ends the process with their names.
//
// Files take no time, unless the test says so: storage_takes() makes each read and each sync sleep.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/os/io_engine.h"
#include "tests/support/forwarding_env.h"

namespace holdfast::test {

// Time that storage takes for files whose path has `path_contains`.
struct StorageTime {
  std::int64_t read_us = 0, sync_us = 0;  // for each call
  std::int64_t read_us_per_mib = 0;
  std::string path_contains = {};
};

class SimulatedEnv : public ForwardingEnv {
 public:
  explicit SimulatedEnv(Env& inner) : ForwardingEnv(inner) { current_ = add_runner("test"); }
  ~SimulatedEnv() override { wait_for_all(); }
  // Runs what threads that were left have to do, to its end. Called by the first of the threads.
  void wait_for_all() {
    for (std::size_t i = 1; i < runners_.size(); ++i) wait_for_end(*runners_[i]);
  }
  SimulatedEnv(const SimulatedEnv&) = delete;
  SimulatedEnv& operator=(const SimulatedEnv&) = delete;

  std::int64_t now_s() {
    const std::lock_guard guard(mutex_);
    return (now_ns_ - begin_ns) / 1'000'000'000;
  }
  // The process ends with what the threads wait for when the clock comes to this second: something never ends.
  void ends_by(std::int64_t second) {
    const std::lock_guard guard(mutex_);
    limit_ns_ = begin_ns + second * 1'000'000'000;
  }
  // The system refuses every thread from now on.
  void refuse_threads() { refuses_threads_ = true; }
  // From now on, for all threads.
  void storage_takes(StorageTime time) {
    const std::lock_guard guard(mutex_);
    storage_time_ = std::move(time);
  }
  int threads_started() {
    const std::lock_guard guard(mutex_);
    return static_cast<int>(runners_.size()) - 1;
  }
  // How often another thread went on than the one that stopped; equal in equal tests.
  std::uint64_t switches() {
    const std::lock_guard guard(mutex_);
    return switches_;
  }

  std::int64_t monotonic_ns() override {
    const std::lock_guard guard(mutex_);
    return now_ns_ += look_takes_ns();
  }
  std::int64_t thread_processor_ns() override { return 0; }
  std::int64_t wall_time_us() override { return 1'700'000'000'000'000 + monotonic_ns() / 1'000; }
  void sleep_us(std::int64_t microseconds) override {
    std::unique_lock guard(mutex_);
    pause_until(guard, now_ns_ + 1'000 * std::max<std::int64_t>(microseconds, 0));
  }
  void yield() override { sleep_us(1); }

  Result<std::unique_ptr<Thread>> start_thread(const std::string& name, std::function<void()> work) override {
    HF_CHECK(name.size() <= Thread::name_bytes_max, "{}", name);
    if (refuses_threads_) return fail(ExitCode::does_not_fit, "the system refuses the thread \"{}\"", name);
    const std::lock_guard guard(mutex_);
    Runner* const runner = add_runner(name);
    runner->thread = std::thread([this, runner, work = std::move(work)] {
      {
        std::unique_lock turn(mutex_);
        runner->turn.wait(turn, [&] { return current_ == runner; });
      }
      work();
      end(*runner);
    });
    return std::unique_ptr<Thread>(std::make_unique<SimulatedThread>(*this, *runner));
  }
  std::unique_ptr<Condition> make_condition() override { return std::make_unique<SimulatedCondition>(*this); }

  // Who waits for a lock lets the others run, who may have it.
  Result<std::unique_ptr<FileLock>> lock(const std::string& path, const std::string& content,
                                         std::int64_t timeout_ms) override {
    constexpr std::int64_t pause_us = 20'000;
    const std::int64_t end_ns = monotonic_ns() + timeout_ms * 1'000'000;
    while (true) {
      Result<std::unique_ptr<FileLock>> taken = inner().lock(path, content, 0);
      if (taken.ok() || monotonic_ns() >= end_ns) return taken;
      sleep_us(pause_us);
    }
  }
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    HF_TRY(std::unique_ptr<File> file, inner().open(path, mode));
    return std::unique_ptr<File>(std::make_unique<SimulatedFile>(*this, std::move(file)));
  }
  Result<std::string> read_text(const std::string& path) override {
    Result<std::string> text = inner().read_text(path);
    wait_for_storage(IoKind::read, path, text.ok() ? text->size() : 0);
    return text;
  }
  Result<std::unique_ptr<IoEngine>> make_io_engine(const IoQueueOptions& options) override {
    HF_TRY(std::unique_ptr<IoEngine> engine, inner().make_io_engine(options));
    return std::unique_ptr<IoEngine>(std::make_unique<SimulatedIoEngine>(*this, std::move(engine)));
  }

 protected:
  // How far the clock moves when somebody looks at it.
  virtual std::int64_t look_takes_ns() { return 50; }

 private:
  static constexpr std::int64_t begin_ns = 1'000'000'000'000;
  static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

  struct Runner {
    std::string name;
    std::int64_t wakes_ns = 0;  // when it goes on; never: when something wakes it
    std::uint64_t order = 0;    // among those of one time
    const void* awaits = nullptr;
    bool ended = false;
    std::condition_variable turn = {};
    std::thread thread = {};
  };

  class SimulatedThread final : public Thread {
   public:
    SimulatedThread(SimulatedEnv& env, Runner& runner) : env_(&env), runner_(&runner) {}
    ~SimulatedThread() override { wait(); }
    void wait() override {
      if (runner_ != nullptr) env_->wait_for_end(*runner_);
    }
    void leave() override { runner_ = nullptr; }

   private:
    SimulatedEnv* env_;
    Runner* runner_;
  };

  class SimulatedCondition final : public Condition {
   public:
    explicit SimulatedCondition(SimulatedEnv& env) : env_(&env) {}
    void notify() override { env_->wake(this); }
    void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) override {
      while (!done()) pause(lock, never);
    }
    bool wait_at_most(std::unique_lock<std::mutex>& lock, std::int64_t timeout_ms,
                      const std::function<bool()>& done) override {
      const std::int64_t end_ns = env_->monotonic_ns() + timeout_ms * 1'000'000;
      while (!done()) {
        if (env_->monotonic_ns() >= end_ns) return false;
        pause(lock, end_ns);
      }
      return true;
    }

   private:
    // No other thread runs between done() and this, so that no notification is missed.
    void pause(std::unique_lock<std::mutex>& lock, std::int64_t until_ns) {
      lock.unlock();
      {
        std::unique_lock guard(env_->mutex_);
        env_->pause_until(guard, until_ns, this);
      }
      lock.lock();
    }

    SimulatedEnv* env_;
  };

  class SimulatedFile final : public ForwardingFile {
   public:
    SimulatedFile(SimulatedEnv& env, std::unique_ptr<File> inner)
        : ForwardingFile(std::move(inner)), env_(&env) {}
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
      env_->wait_for_storage(IoKind::read, path(), target.size());
      return ForwardingFile::read_at(offset, target);
    }
    Result<void> sync() override {
      env_->wait_for_storage(IoKind::sync, path(), 0);
      return ForwardingFile::sync();
    }

   private:
    SimulatedEnv* env_;
  };

  // The storage does one operation of a queue at a time.
  class SimulatedIoEngine final : public ForwardingIoEngine {
   public:
    SimulatedIoEngine(SimulatedEnv& env, std::unique_ptr<IoEngine> inner)
        : ForwardingIoEngine(std::move(inner)), env_(&env) {}
    void start(const IoOperation& operation) override {
      started_.insert_or_assign(operation.slot, operation);
      ForwardingIoEngine::start(operation);
    }
    IoOutcome wait() override {
      const IoOutcome outcome = ForwardingIoEngine::wait();
      const IoOperation& operation = started_.at(outcome.slot);
      env_->wait_for_storage(operation.kind, operation.file->path(), operation.bytes.size());
      return outcome;
    }

   private:
    SimulatedEnv* env_;
    std::map<unsigned, IoOperation> started_;  // by slot
  };

  void wait_for_storage(IoKind kind, const std::string& path, std::uint64_t bytes) {
    std::unique_lock guard(mutex_);
    const StorageTime& time = storage_time_;
    if (path.find(time.path_contains) == std::string::npos) return;
    std::int64_t us = kind == IoKind::sync ? time.sync_us : 0;
    if (kind == IoKind::read)
      us = time.read_us + time.read_us_per_mib * static_cast<std::int64_t>(bytes) / (1 << 20);
    if (us > 0) pause_until(guard, now_ns_ + 1'000 * us);
  }

  Runner* add_runner(const std::string& name) {
    auto runner = std::make_unique<Runner>();
    runner->name = name;
    runner->wakes_ns = now_ns_;
    runner->order = ++orders_;
    runners_.push_back(std::move(runner));
    return runners_.back().get();
  }

  // The running thread stops until that time, or until `awaited` wakes it.
  void pause_until(std::unique_lock<std::mutex>& guard, std::int64_t time_ns, const void* awaited = nullptr) {
    Runner* const self = current_;
    self->wakes_ns = time_ns;
    self->order = ++orders_;
    self->awaits = awaited;
    hand_over();
    self->turn.wait(guard, [&] { return current_ == self; });
    self->awaits = nullptr;
  }

  // Called with the mutex held.
  void hand_over() {
    Runner* next = nullptr;
    for (const std::unique_ptr<Runner>& each : runners_) {
      if (each->ended || each->wakes_ns == never) continue;
      if (next == nullptr || std::pair(each->wakes_ns, each->order) < std::pair(next->wakes_ns, next->order))
        next = each.get();
    }
    HF_CHECK(next != nullptr, "all simulated threads wait for ever: {}", waiting());
    now_ns_ = std::max(now_ns_, next->wakes_ns);
    HF_CHECK(now_ns_ < limit_ns_, "simulated threads go on after {} s: {}",
             (limit_ns_ - begin_ns) / 1'000'000'000, waiting());
    if (next != current_) ++switches_;
    current_ = next;
    next->turn.notify_one();
  }

  void wake(const void* awaited) {
    const std::lock_guard guard(mutex_);
    wake_locked(awaited);
  }
  void wake_locked(const void* awaited) {
    for (const std::unique_ptr<Runner>& each : runners_) {
      if (each->ended || each->awaits != awaited) continue;
      each->wakes_ns = now_ns_;
      each->order = ++orders_;
      each->awaits = nullptr;
    }
  }

  void wait_for_end(Runner& runner) {
    {
      std::unique_lock guard(mutex_);
      while (!runner.ended) pause_until(guard, never, &runner);
    }
    if (runner.thread.joinable()) runner.thread.join();  // it has nothing left to do
  }
  void end(Runner& runner) {
    const std::lock_guard guard(mutex_);
    runner.ended = true;
    wake_locked(&runner);
    hand_over();
  }

  std::string waiting() const {
    std::string names;
    for (const std::unique_ptr<Runner>& each : runners_) {
      if (!each->ended) names += (names.empty() ? "" : ", ") + each->name;
    }
    return names;
  }

  std::mutex mutex_;  // of what follows, but for the threads of the runners
  std::int64_t now_ns_ = begin_ns, limit_ns_ = never;
  std::uint64_t orders_ = 0, switches_ = 0;
  std::vector<std::unique_ptr<Runner>> runners_;  // the first is the test's
  Runner* current_ = nullptr;
  bool refuses_threads_ = false;
  StorageTime storage_time_ = {};
};

// ScheduleMachine lets time pass faster for a thread that looks at the clock again and again and never waits, so that what a
// run measures for some milliseconds takes few looks.
class ScheduleMachine final : public SimulatedEnv {
 public:
  using SimulatedEnv::SimulatedEnv;
  void sleep_us(std::int64_t microseconds) override {
    looks_ = 0;
    SimulatedEnv::sleep_us(microseconds);
  }

 private:
  std::int64_t look_takes_ns() override {
    constexpr std::int64_t first_ns = 50, most_ns = 1'200'000;
    constexpr int bits_of_a_look = 4, looks_max = 4;
    return std::min(first_ns << (bits_of_a_look * std::min(looks_++, looks_max)), most_ns);
  }

  int looks_ = 0;
};

}  // namespace holdfast::test
