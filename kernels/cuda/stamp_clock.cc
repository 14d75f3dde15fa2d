#include "kernels/cuda/stamp_clock.h"

#include <cmath>

#include "runtime/core/env.h"

namespace holdfast::cuda {

StampClock::StampClock(Context& context) {
  last_ = events_.record(context);
  while (cudaEventQuery(last_) == cudaErrorNotReady) {
  }
  origin_ns_ = posix_env().monotonic_ns();
}

StampClock::~StampClock() {
  cudaEventDestroy(last_);
  for (const Pending& pending : pending_) cudaEventDestroy(pending.event);
}

void StampClock::stamp(Context& context, Stamp& target) {
  pending_.push_back({.event = events_.record(context), .target = &target});
}

void StampClock::tell() {
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
