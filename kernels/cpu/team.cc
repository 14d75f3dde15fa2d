#include "kernels/cpu/team.h"

#include "runtime/core/check.h"

namespace holdfast::kernels::cpu {

Team::Team(int threads, void (*on_thread_start)()) : threads_(threads) {
  HF_CHECK(threads >= 1, "a team needs at least one thread, not {}", threads);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int member = 1; member < threads; ++member) {
      workers_.emplace_back([this, member, on_thread_start] { serve(member, on_thread_start); });
    }
  } catch (...) {  // the system has no more threads: those that run must end before their members go
    stop();
    throw;
  }
}

Team::~Team() {
  stop();
}

void Team::stop() {
  stop_.store(true, std::memory_order_relaxed);
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(std::int64_t count, TaskRef body) {
  if (count <= 0) return;
  if (count == 1 || threads_ == 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  HF_CHECK(members_.load(std::memory_order_relaxed) == 0, "a kernel's loop body called parallel_for");
  body_ = &body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  members_.store(open_bit, std::memory_order_release);
  calls_.fetch_add(1, std::memory_order_release);
  if (count >= threads_) {
    calls_.notify_all();
  } else {
    for (std::int64_t helper = 1; helper < count; ++helper) calls_.notify_one();
  }
  take_indices(0);
  close();
}

void Team::take_indices(int member) {
  const TaskRef& body = *body_;
  const std::int64_t count = count_;
  for (;;) {
    const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count) return;
    body(index, member);
  }
}

// Lets no more members in and waits for those inside.
void Team::close() {
  members_.fetch_and(~open_bit, std::memory_order_acq_rel);
  std::uint32_t inside = 0;
  const auto all_left = [&] {
    inside = members_.load(std::memory_order_acquire);
    return inside == 0;
  };
  while (!spin_until(all_left)) members_.wait(inside, std::memory_order_acquire);
}

bool Team::join() {
  std::uint32_t state = members_.load(std::memory_order_acquire);
  while ((state & open_bit) != 0) {
    if (members_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

void Team::leave() {
  members_.fetch_sub(1, std::memory_order_acq_rel);
  members_.notify_one();
}

std::uint32_t Team::await_call(std::uint32_t seen) const {
  std::uint32_t calls = seen;
  const auto called = [&] {
    calls = calls_.load(std::memory_order_acquire);
    return calls != seen;
  };
  while (!spin_until(called)) calls_.wait(seen, std::memory_order_acquire);
  return calls;
}

void Team::serve(int member, void (*on_thread_start)()) {
  on_thread_start();
  for (std::uint32_t seen = 0;;) {
    seen = await_call(seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!join()) continue;
    take_indices(member);
    leave();
  }
}

}  // namespace holdfast::kernels::cpu
