#include "tools/kernel_kit/counter_clock.h"

#include <fmt/format.h>

#include <cmath>

namespace holdfast::bench::kernel_kit {
namespace {

constexpr double apart = 0.02;  // rates of two clocks that nobody has touched are much nearer

}  // namespace

CounterClock::CounterClock(Env& env) : env_(env), begin_ns_(env.monotonic_ns()), begin_ticks_(now()) {
  constexpr std::int64_t duration_ns = 50'000'000;
  std::int64_t end_ns = begin_ns_;
  while (end_ns - begin_ns_ < duration_ns) end_ns = env.monotonic_ns();
  seconds_per_tick_ =
      static_cast<double>(end_ns - begin_ns_) * 1e-9 / static_cast<double>(now() - begin_ticks_);
}

std::string CounterClock::problem_of_clock() const {
  return problem_of_clocks(static_cast<double>(env_.monotonic_ns() - begin_ns_) * 1e-9,
                           seconds_since(begin_ticks_));
}

std::string problem_of_clocks(double by_clock, double by_counter) {
  if (std::abs(by_clock - by_counter) <= apart * by_counter) return {};
  return fmt::format(
      "the clock of the process counted {:.3g} s while the processor counted {:.3g} s: the plug-in has "
      "changed it (or the "
      "machine was suspended); the times here are by the processor's counter",
      by_clock, by_counter);
}

}  // namespace holdfast::bench::kernel_kit
