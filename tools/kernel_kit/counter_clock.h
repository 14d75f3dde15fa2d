// CounterClock: time by the processor's own counter (TSC), which no library of the process can replace. It is set before a
// plug-in is loaded, and tells afterwards whether the clock of the process still agrees with it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/os/env.h"

namespace holdfast::bench::kernel_kit {

class CounterClock {
 public:
  // Compares the counter with the clock for some time.
  explicit CounterClock(Env& env);

  // Returns the counter, when all that came before has been done.
  static std::uint64_t now() {
    __builtin_ia32_lfence();
    const std::uint64_t ticks = __builtin_ia32_rdtsc();
    __builtin_ia32_lfence();
    return ticks;
  }
  double seconds(std::uint64_t ticks) const { return static_cast<double>(ticks) * seconds_per_tick_; }
  double seconds_since(std::uint64_t begin) const { return seconds(now() - begin); }

  // Returns a sentence where the clock of the process has gone at another rate since this object was made; empty: it has
  // not.
  std::string problem_of_clock() const;

  void sleep(double seconds) const { env_.sleep_us(static_cast<std::int64_t>(seconds * 1e6)); }

 private:
  struct Moment {
    std::int64_t ns = 0;
    std::uint64_t ticks = 0;
  };
  Moment moment() const;

  Env& env_;
  Moment begin_;
  double seconds_per_tick_ = 0.0;
};

// Returns that sentence for seconds by the clock of the process and by the counter. Pure.
std::string problem_of_clocks(double by_clock, double by_counter);

}  // namespace holdfast::bench::kernel_kit
