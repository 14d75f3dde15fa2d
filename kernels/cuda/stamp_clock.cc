#include "kernels/cuda/stamp_clock.h"

#include <cmath>

#include "runtime/core/env.h"

namespace holdfast::cuda {

StampClock::StampClock(Context& context) {
  constexpr std::int64_t patience_ns = 1'000'000'000;
  last_ = events_.record(context);
  const std::int64_t end_ns = posix_env().monotonic_ns() + patience_ns;
  while (!find_origin() && posix_env().monotonic_ns() < end_ns) posix_env().sleep_us(20);
}

// False while the stream has not got to the first event. After an error of the device it never does.
bool StampClock::find_origin() {
  if (origin_ns_ == 0 && cudaEventQuery(last_) == cudaSuccess) origin_ns_ = posix_env().monotonic_ns();
  return origin_ns_ != 0;
}

StampClock::~StampClock() {
  cudaEventDestroy(last_);
  for (const Pending& pending : pending_) cudaEventDestroy(pending.event);
}

void StampClock::stamp(Context& context, Stamp& target) {
  pending_.push_back({.event = events_.record(context), .target = &target});
}

void StampClock::tell() {
  if (!find_origin()) return;
  while (!pending_.empty() && cudaEventQuery(pending_.front().event) == cudaSuccess) {
    const Pending next = pending_.front();
    float milliseconds = 0.0F;
    if (cudaEventElapsedTime(&milliseconds, last_, next.event) != cudaSuccess) return;
    pending_.pop_front();
    events_.give_back(last_);
    last_ = next.event;
    last_ns_ += static_cast<double>(milliseconds) * 1e6;
    const std::int64_t time_ns = origin_ns_ + std::llround(last_ns_);
    *next.target = {.time_ns = time_ns, .worked_ns = time_ns};
  }
}

}  // namespace holdfast::cuda
