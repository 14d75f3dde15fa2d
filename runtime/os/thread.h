// Threads of this process and the waits between them, as an Env makes them (Env::start_thread and
// Env::make_condition). Code above runtime/os takes no others, so that a simulated Env decides when each
// thread runs, and no wait lasts longer than its clock says (tests/support/simulated_env.h).
//
//   const std::unique_ptr<Condition> changed = env.make_condition();
//   HF_TRY(const std::unique_ptr<Thread> thread, env.start_thread("uploader", [&] { work(); }));
//   ... changed->notify();                                        // after a change under the mutex
//   ... changed->wait(lock, [&] { return stops || has_work; });   // in work()
//
// A std::mutex protects values, and is not held while its holder sleeps, waits or calls the system; where that
// cannot be avoided, take a LongMutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/os/env.h"

namespace holdfast::os {

// A thread that runs one function to its end. The destructor waits for that end.
class Thread {
 public:
  static constexpr std::size_t name_bytes_max = 15;  // of Env::start_thread, as the kernel keeps it

  Thread() = default;
  virtual ~Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  // Waits until the function has returned; at once if it has, or after leave(). One thread calls it.
  virtual void wait() = 0;
  // Lets the thread end alone: nobody waits for it any more, and what it uses must live as long as it runs.
  virtual void leave() = 0;
};

// A condition variable. The mutex of `lock` protects what `done` looks at; it is held when these functions are
// called, when `done` is, and when they return, and it is free while they wait.
class Condition {
 public:
  Condition() = default;
  virtual ~Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  // Wakes all that wait, who look again.
  virtual void notify() = 0;
  // Waits until done() is true.
  virtual void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) = 0;
  // Waits until done() is true, at most `timeout_ms` of the Env's clock. Returns what done() returned last.
  virtual bool wait_at_most(std::unique_lock<std::mutex>& lock, std::int64_t timeout_ms,
                            const std::function<bool()>& done) = 0;
};

// A mutex whose holder may sleep, wait and call the system: others wait for it as for a Condition. It is for
// std::lock_guard.
class LongMutex {
 public:
  explicit LongMutex(Env& env) : freed_(env.make_condition()) {}
  void lock() {
    std::unique_lock guard(mutex_);
    freed_->wait(guard, [this] { return !is_held_; });
    is_held_ = true;
  }
  void unlock() {
    {
      const std::lock_guard guard(mutex_);
      is_held_ = false;
    }
    freed_->notify();
  }

 private:
  std::mutex mutex_;  // guards the next one
  bool is_held_ = false;
  std::unique_ptr<Condition> freed_;
};

}  // namespace holdfast::os
