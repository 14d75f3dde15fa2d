// TickClock tells whether a tick of a loop came late: whether this process, or the machine, was stopped between two
// ticks. The time that the loop itself works is no reason: looks that are slow, as at thousands of ranks or on a
// slow file system, would otherwise suspend all limits for ever. Pure.
#pragma once

#include <cstdint>

namespace holdfast::launch {

class TickClock {
 public:
  TickClock(std::int64_t late_ms, std::int64_t begin_ns)
      : late_ns_(late_ms * 1'000'000), ended_ns_(begin_ns) {}

  // Returns whether the tick that begins now came late.
  bool is_late(std::int64_t now_ns) const { return now_ns - ended_ns_ > late_ns_; }
  // Records that the work of the tick is done.
  void end_tick(std::int64_t now_ns) { ended_ns_ = now_ns; }

 private:
  std::int64_t late_ns_, ended_ns_;
};

}  // namespace holdfast::launch
