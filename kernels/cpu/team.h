// Team: the fixed set of threads that the kernels of one device share. Member 0 is the thread that calls
// run() (the device's queue thread); the others wait: first they spin shortly, because ops follow each other
// within microseconds, then they sleep, because several ranks share the cores of a host.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/cpu/task_ref.h"

namespace holdfast::kernels::cpu {

class Team {
 public:
  // Starts the threads. `on_thread_start` runs first on every thread the team makes (not on member 0).
  Team(int threads, void (*on_thread_start)());
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs body(index, member) for every index in [0, count), handed out one at a time. Called by one thread,
  // not from inside a body. Waits only for members that took part: a member that the system has not scheduled
  // causes no delay.
  void run(std::int64_t count, TaskRef body);

 private:
  void serve(int member, void (*on_thread_start)());
  void stop();  // ends and joins the workers
  std::uint32_t await_call(std::uint32_t seen) const;
  void take_indices(int member);
  bool join();
  void leave();
  void close();

  // Counts calls of run() for sleeping members to watch (`calls_`). `members_` is open_bit while indices may
  // be left, plus the number of members inside; body_, count_ and next_ change only while it is 0.
  static constexpr std::uint32_t open_bit = 1U << 31U;
  const int threads_;
  alignas(64) std::atomic<std::uint32_t> calls_{0};
  alignas(64) std::atomic<std::uint32_t> members_{0};
  alignas(64) std::atomic<std::int64_t> next_{0};
  const TaskRef* body_ = nullptr;
  std::int64_t count_ = 0;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// Spins a few microseconds, yielding the core in between, until done() is true; returns false on timeout.
template <typename Done>
bool spin_until(const Done& done) {
  constexpr int rounds = 64;
  constexpr int pauses_before_yields = 16;
  for (int round = 0; round < rounds; ++round) {
    if (done()) return true;
    if (round < pauses_before_yields) {
      for (int pause = 0; pause < 16; ++pause) __builtin_ia32_pause();
    } else {
      std::this_thread::yield();
    }
  }
  return done();
}

}  // namespace holdfast::kernels::cpu
