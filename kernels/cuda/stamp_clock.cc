#include "kernels/cuda/stamp_clock.h"

#include <cmath>

#include "runtime/core/env.h"

namespace holdfast::cuda {

StampClock::StampClock(Context& context) {
  last_ = record(context);
  while (cudaEventQuery(last_) == cudaErrorNotReady) {
  }
  origin_ns_ = posix_env().monotonic_ns();
}

StampClock::~StampClock() {
  cudaEventDestroy(last_);
  for (const Pending& pending : pending_) cudaEventDestroy(pending.event);
  for (const cudaEvent_t event : spare_events_) cudaEventDestroy(event);
}

cudaEvent_t StampClock::record(Context& context) {
  cudaEvent_t event = nullptr;
  if (spare_events_.empty()) {
    context.note(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreate");
  } else {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  context.note(cudaEventRecord(event, context.stream()), "cudaEventRecord");
  return event;
}

void StampClock::stamp(Context& context, Stamp& target) {
  pending_.push_back({.event = record(context), .target = &target});
}

void StampClock::tell() {
  while (!pending_.empty() && cudaEventQuery(pending_.front().event) == cudaSuccess) {
    const Pending next = pending_.front();
    float milliseconds = 0.0F;
    if (cudaEventElapsedTime(&milliseconds, last_, next.event) != cudaSuccess) return;
    pending_.pop_front();
    spare_events_.push_back(last_);
    last_ = next.event;
    last_ns_ += static_cast<double>(milliseconds) * 1e6;
    const std::int64_t time_ns = origin_ns_ + std::llround(last_ns_);
    *next.target = {.time_ns = time_ns, .worked_ns = time_ns};
  }
}

}  // namespace holdfast::cuda
