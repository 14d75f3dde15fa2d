#include "runtime/device/cuda/stamp_clock.h"

#include <cmath>

#include "runtime/os/env.h"

namespace holdfast::device {

// Other work on the machine can keep this thread from looking for milliseconds: it looks at a few events, and
// takes the one about which it knows best when the stream got there.
StampClock::StampClock(cuda::Context& context) {
  constexpr int most = 16;
  constexpr std::int64_t close_ns = 20'000, patience_ns = 1'000'000'000;
  const std::int64_t end_ns = posix_env().monotonic_ns() + patience_ns;
  for (int events = 0; events < most && (events == 0 || origin_.doubt_ns > close_ns); ++events) {
    const Origin seen = look_at_event(context, end_ns);
    const bool better = events == 0 || (seen.known && seen.doubt_ns < origin_.doubt_ns);
    if (events > 0) events_.give_back(better ? origin_.event : seen.event);
    if (better) origin_ = seen;
    if (!seen.known) break;
  }
  last_ = origin_.event;
}

// Records an event and looks until the stream is there, which it was between the last look in vain, or the
// recording, and the first one that saw it. Not known: the stream has not got there at `end_ns`.
StampClock::Origin StampClock::look_at_event(cuda::Context& context, std::int64_t end_ns) {
  constexpr std::int64_t spin_ns = 200'000;
  const std::int64_t begin_ns = posix_env().monotonic_ns();
  Origin origin{.event = events_.record(context)};
  for (std::int64_t before_ns = begin_ns, now_ns = begin_ns; now_ns < end_ns; before_ns = now_ns) {
    now_ns = posix_env().monotonic_ns();
    if (cudaEventQuery(origin.event) == cudaSuccess) {
      origin.known = true;
      origin.doubt_ns = posix_env().monotonic_ns() - before_ns;
      origin.time_ns = before_ns + origin.doubt_ns / 2;
      return origin;
    }
    if (now_ns - begin_ns > spin_ns) posix_env().sleep_us(20);
  }
  return origin;
}

// False while the stream has not got to the first event. After an error of the device it never does.
bool StampClock::find_origin() {
  if (!origin_.known && cudaEventQuery(origin_.event) == cudaSuccess) {
    origin_.known = true;
    origin_.time_ns = posix_env().monotonic_ns();
  }
  return origin_.known;
}

StampClock::~StampClock() {
  cudaEventDestroy(last_);
  for (const Pending& pending : pending_) cudaEventDestroy(pending.event);
}

void StampClock::stamp(cuda::Context& context, Stamp& target) {
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
    const std::int64_t time_ns = origin_.time_ns + std::llround(last_ns_);
    *next.target = {.time_ns = time_ns, .worked_ns = time_ns};
  }
}

}  // namespace holdfast::device
