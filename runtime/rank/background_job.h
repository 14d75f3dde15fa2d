// BackgroundJob: one piece of work at a time on a thread of its own, for what may be slow and must not hold a
// step up: copies and disks.
//
//   BackgroundJob<ShardFile> job;
//   job.start([&] { return write(); });
//   if (job.finished()) { const Result<ShardFile> result = job.take(); ... }
//
// Threads: one owner; the work runs on another thread, and what it uses stays until it has finished. The
// destructor waits for it. A thread that the system refuses is a std::system_error of start().
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
  // Nothing is under way, and the result of what was before is taken.
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
  // Until it has finished, if it was started.
  void wait() {
    if (thread_.joinable()) thread_.join();
  }
  // Of work that has finished.
  const Result<T>& result() const {
    HF_CHECK(finished());
    return *result_;
  }
  // Waits; then the next work may start.
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
  std::jthread thread_;  // the last member: it uses the others until it is joined
};

// Threads that do the same work as the one that made them, until the end of the scope. Where the system
// refuses one there are fewer: work that is shared out as it is done needs none of them.
class BackgroundHelpers {
 public:
  BackgroundHelpers(int count, const std::function<void()>& work) {
    try {
      for (int i = 0; i < count; ++i) threads_.emplace_back(work);
    } catch (const std::system_error&) {
      // The others do it.
    }
  }

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace holdfast::inline rank
