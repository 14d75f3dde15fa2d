// BackgroundJob runs one piece of work at a time on a thread of its own. It is for slow work that must not
// delay a step: copies and disk I/O.
//
//   BackgroundJob<ShardFile> job;
//   job.start(env, "shard writer", [&] { return write(); });
//   if (job.finished()) { const Result<ShardFile> result = job.take(); ... }
//
// Threads: one owner calls the functions; the work runs on another thread, and everything that it uses must
// live until it has finished. The destructor waits for it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/thread.h"

namespace holdfast::os {

template <typename T>
class BackgroundJob {
 public:
  // Starts the work on a thread of this name (Env::start_thread). No other work may be under way, and the
  // result of the one before must have been taken. Where the system refuses the thread, returns false, and
  // the refusal is the result.
  bool start(Env& env, const std::string& name, std::function<Result<T>()> work) {
    HF_CHECK(!started());
    finished_ = false;
    Result<std::unique_ptr<Thread>> thread = env.start_thread(name, [this, work = std::move(work)] {
      result_.emplace(work());
      finished_.store(true, std::memory_order_release);
    });
    if (thread.ok()) {
      thread_ = std::move(thread).value();
    } else {
      result_.emplace(thread.error());
      finished_ = true;
    }
    return thread_ != nullptr;
  }
  bool started() const { return thread_ != nullptr || result_.has_value(); }
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // Waits until the work has finished; returns at once if none was started.
  void wait() {
    if (thread_ == nullptr) return;
    thread_->wait();
    thread_.reset();
  }
  // Returns the result of work that has finished, and keeps it for take().
  const Result<T>& result() const {
    HF_CHECK(finished());
    return *result_;
  }
  // Waits for the work, and returns its result; the next work may start then.
  Result<T> take() {
    wait();
    Result<T> result = std::move(result_).value();
    result_.reset();
    finished_ = false;
    return result;
  }

 private:
  std::optional<Result<T>> result_;
  std::atomic<bool> finished_ = false;
  std::unique_ptr<Thread> thread_;  // last, because the thread uses the others until it has ended
};

// BackgroundHelpers runs the same work as its creator on further threads until the end of the scope. There
// are fewer threads if the system refuses one: work that is distributed dynamically does not depend on any of
// them.
class BackgroundHelpers {
 public:
  BackgroundHelpers(Env& env, const std::string& name, int count, const std::function<void()>& work) {
    for (int i = 0; i < count; ++i) {
      Result<std::unique_ptr<Thread>> thread = env.start_thread(name, work);
      if (!thread.ok()) return;  // the threads that exist do the work
      threads_.push_back(std::move(thread).value());
    }
  }

 private:
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace holdfast::os
