#include "parallel/mpi/deadline.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace holdfast {

Deadline::Deadline(std::int64_t timeout_ms, std::string sentence) {
  thread_ = std::thread([this, timeout_ms, text = std::move(sentence)] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return done_; })) return;
    std::fprintf(stderr, "%s\n", text.c_str());
    std::fflush(stderr);
    _exit(static_cast<int>(ExitCode::communication));
  });
}

Deadline::~Deadline() {
  {
    const std::lock_guard guard(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

}  // namespace holdfast
