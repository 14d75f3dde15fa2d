#include "runtime/device/cuda/op_clock.h"

#include <cmath>
#include <cstring>

namespace holdfast::device {

OpClock::~OpClock() {
  for (const Timing& timing : timings_) {
    cudaEventDestroy(timing.begin);
    cudaEventDestroy(timing.end);
  }
}

void OpClock::begin(cuda::Context& context) {
  begin_ = events_.record(context);
}

void OpClock::end(cuda::Context& context, OpId id, const void* arguments, std::size_t bytes) {
  Timing& timing = timings_.emplace_back(
      Timing{.begin = begin_, .end = events_.record(context), .id = id, .arguments = {}});
  std::memcpy(timing.arguments.data(), arguments, bytes);
}

void OpClock::tell() {
  while (!timings_.empty() && cudaEventQuery(timings_.front().end) == cudaSuccess) {
    const Timing& timing = timings_.front();
    float milliseconds = 0.0F;
    if (cudaEventElapsedTime(&milliseconds, timing.begin, timing.end) != cudaSuccess) return;
    reported_(timing.id, timing.arguments.data(), std::llround(static_cast<double>(milliseconds) * 1e6));
    events_.give_back(timing.begin);
    events_.give_back(timing.end);
    timings_.pop_front();
  }
}

}  // namespace holdfast::device
