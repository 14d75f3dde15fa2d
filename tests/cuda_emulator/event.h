// EmulatedEvent: an event of the emulated CUDA runtime. It is in a header because the double of NCCL (tests/parallel/nccl)
// makes events for which the emulated device waits, and waits for events that this records. A test and the emulated
// device that it loads both compile it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

struct EmulatedEvent {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;
  std::chrono::steady_clock::time_point when{};

  // Returns the number by which this recording is reached.
  std::uint64_t record() {
    const std::lock_guard lock(mutex);
    return ++recorded;
  }
  void reach(std::uint64_t count) {
    const std::lock_guard lock(mutex);
    if (count <= reached) return;
    reached = count;
    when = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  std::uint64_t last_recorded() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
  bool has_reached(std::uint64_t count) {
    const std::lock_guard lock(mutex);
    return reached >= count;
  }
  bool done() {
    const std::lock_guard lock(mutex);
    return reached == recorded;
  }
  void wait_for(std::uint64_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached >= count; });
  }
};
