// BackgroundJob runs one piece of work at a time on a thread of its own. It is for slow work that must not
// delay a step: copies and disk I/O.
//
//   BackgroundJob<ShardFile> job;
//   job.start([&] { return write(); });
//   if (job.finished()) { const Result<ShardFile> result = job.take(); ... }
//
// Threads: one owner calls the functions; the work runs on another thread, and everything that it uses must
// live until it has finished. The destructor waits for it. start() throws std::system_error if the system
// refuses a thread.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::inline rank {

template <typename T>
class BackgroundJob {
 public:
  // Starts the work. No other work may be under way, and the result of the one before must have been taken.
  void start(std::function<Result<T>()> work) {
    HF_CHECK(!started());
    finished_ = false;
    thread_ = std::jthread([this, work = std::move(work)] {
      result_.emplace(work());
      finished_.store(true, std::memory_order_release);
    });
  }
  bool started() const { return thread_.joinable() || result_.has_value(); }
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // Waits until the work has finished; returns at once if none was started.
  void wait() {
    if (thread_.joinable()) thread_.join();
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
  std::jthread thread_;  // last, because the thread uses the others until it is joined
};

// BackgroundHelpers runs the same work as its creator on further threads until the end of the scope. There
// are fewer threads if the system refuses one: work that is distributed dynamically does not depend on any of
// them.
class BackgroundHelpers {
 public:
  BackgroundHelpers(int count, const std::function<void()>& work) {
    try {
      for (int i = 0; i < count; ++i) threads_.emplace_back(work);
    } catch (const std::system_error&) {
      // The threads that exist do the work.
    }
  }

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace holdfast::inline rank
