#include "tools/kernel_kit/counter_clock.h"

#include <fmt/format.h>

#include <cmath>

namespace holdfast::bench::kernel_kit {
namespace {

constexpr double apart = 0.02;  // rates of two clocks that nobody has touched are much nearer

}  // namespace

CounterClock::CounterClock(Env& env) : env_(env), begin_(moment()) {
  constexpr std::int64_t duration_us = 50'000;
  env.sleep_us(duration_us);
  const Moment end = moment();
  seconds_per_tick_ =
      static_cast<double>(end.ns - begin_.ns) * 1e-9 / static_cast<double>(end.ticks - begin_.ticks);
}

// Takes of several pairs the one between whose readings the least time has gone: this thread may lose its processor there.
CounterClock::Moment CounterClock::moment() const {
  constexpr int tries = 20;
  Moment best;
  std::uint64_t least = ~std::uint64_t{0};
  for (int i = 0; i < tries; ++i) {
    const std::uint64_t before = now();
    const std::int64_t ns = env_.monotonic_ns();
    const std::uint64_t between = now() - before;
    if (between >= least) continue;
    least = between;
    best = {.ns = ns, .ticks = before + between / 2};
  }
  return best;
}

std::string CounterClock::problem_of_clock() const {
  const Moment end = moment();
  return problem_of_clocks(static_cast<double>(end.ns - begin_.ns) * 1e-9, seconds(end.ticks - begin_.ticks));
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
