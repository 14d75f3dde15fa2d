#include "runtime/report/axis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace holdfast::report {
namespace {

// Returns the distance of about `count` ticks: 1, 2 or 5 times a power of ten.
double tick_step(AxisRange range, double count) {
  const double rough = (range.high - range.low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10.0 * power;
}

// Returns the smallest distance with at most ten intervals.
std::int64_t time_step_ms(std::int64_t end_ms) {
  constexpr std::int64_t second = 1'000, minute = 60'000, hour = 3'600'000;
  for (const std::int64_t tick :
       {second / 5, second, 2 * second, 5 * second, 10 * second, 30 * second, minute, 2 * minute, 5 * minute,
        10 * minute, 30 * minute, hour, 2 * hour, 6 * hour, 12 * hour}) {
    if (end_ms / tick < 10) return tick;
  }
  constexpr std::int64_t day = 24 * hour;
  return std::max(day, end_ms / 10 / day * day);
}

}  // namespace

std::vector<double> linear_ticks(AxisRange range, double count) {
  std::vector<double> ticks;
  const double step = tick_step(range, count);
  const double tolerance = step * 1e-9;
  const double first = std::ceil((range.low - tolerance) / step);
  // Counted, because adding a step to a huge value may not change it.
  for (int i = 0; i <= count && (first + i) * step <= range.high + tolerance; ++i)
    ticks.push_back((first + i) * step);
  return ticks;
}

std::vector<double> log_ticks(AxisRange range) {
  std::vector<double> ticks;
  const double decades = std::log10(range.high / range.low);
  for (double power = std::floor(std::log10(range.low)); power <= std::log10(range.high); power += 1.0) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (decades > 3.0 && factor > 1.0) continue;
      const double tick = factor * std::pow(10.0, power);
      if (tick >= range.low * 0.999 && tick <= range.high * 1.001) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::vector<std::int64_t> time_ticks_ms(std::int64_t end_ms) {
  std::vector<std::int64_t> ticks;
  const std::int64_t step_ms = time_step_ms(end_ms);
  for (std::int64_t at_ms = 0; at_ms <= end_ms; at_ms += step_ms) ticks.push_back(at_ms);
  return ticks;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size <= 0.0) return "0";
  if (size >= 1e9) return fmt::format("{:.4g}B", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  if (size >= 1e-2) return fmt::format("{:.4g}", value);
  const double exponent = std::floor(std::log10(size * 1.0000001));
  return fmt::format("{:.3g}e{:.0f}", value / std::pow(10.0, exponent), exponent);
}

}  // namespace holdfast::report
