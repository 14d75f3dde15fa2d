#include "watchdog/deadlines.h"

#include <algorithm>
#include <cmath>

#include "runtime/core/check.h"

namespace holdfast {
namespace {

constexpr std::int64_t alone_floors = 6;     // of watchdog.floor
constexpr std::int64_t alone_factor = 10;    // times the slowest of the others
constexpr std::int64_t patience_parts = 10;  // and all of them but one may pass

}  // namespace

Deadlines::Deadlines(const DeadlineLimits& limits) : limits_(limits) {
  limits_.ceiling_ns = std::max(limits_.ceiling_ns, limits_.floor_ns);
}

void Deadlines::took(Phase phase, std::int64_t duration_ns) {
  HF_CHECK(phase < Phase::count);
  History& history = histories_[static_cast<std::size_t>(phase)];
  history.durations_ns[static_cast<std::size_t>(history.next)] = std::max<std::int64_t>(duration_ns, 0);
  history.next = (history.next + 1) % kept;
  history.count = std::min(history.count + 1, kept);
  history.longest_ns = std::max(history.longest_ns, duration_ns);
  find_median(history);
}

void Deadlines::find_median(History& history) {
  auto sorted = history.durations_ns;
  const auto middle = sorted.begin() + history.count / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + history.count);
  history.median_ns = history.count > 0 ? *middle : 0;
}

std::int64_t Deadlines::usual(Phase phase) const {
  HF_CHECK(phase < Phase::count);
  const History& history = histories_[static_cast<std::size_t>(phase)];
  return history.count < least ? 0 : history.median_ns;
}

std::int64_t Deadlines::of(Phase phase) const {
  HF_CHECK(phase < Phase::count);
  const History& history = histories_[static_cast<std::size_t>(phase)];
  if (history.count < least) return limits_.ceiling_ns;
  // Compared before it is an integer again: a large factor may leave their range.
  const double wanted_ns = limits_.factor * static_cast<double>(history.median_ns);
  if (wanted_ns >= static_cast<double>(limits_.ceiling_ns)) return limits_.ceiling_ns;
  return std::max(limits_.floor_ns, static_cast<std::int64_t>(wanted_ns));
}

std::int64_t Deadlines::alone(Phase phase) const {
  HF_CHECK(phase < Phase::count);
  const bool is_known = histories_[static_cast<std::size_t>(phase)].count >= least;
  if (is_known || (phase != Phase::step && phase != Phase::evaluation)) return 0;
  return limits_.floor_ns < limits_.ceiling_ns / alone_floors ? alone_floors * limits_.floor_ns
                                                              : limits_.ceiling_ns;
}

std::int64_t Deadlines::alone_among(std::int64_t alone_ns, std::int64_t slowest_ns) {
  return std::max(alone_ns, alone_factor * std::max<std::int64_t>(slowest_ns, 0));
}

std::int64_t Deadlines::alone_until(std::int64_t alone_ns, std::int64_t patience_ns) {
  return std::max(alone_ns, patience_ns - patience_ns / patience_parts);
}

std::int64_t Deadlines::longest(Phase phase) const {
  HF_CHECK(phase < Phase::count);
  return histories_[static_cast<std::size_t>(phase)].longest_ns;
}

void Deadlines::rescale(double times) {
  HF_CHECK(times > 0 && std::isfinite(times), "{} times the work", times);
  constexpr double longest_ns = 1e18;
  for (History& history : histories_) {
    for (std::int64_t& duration_ns : history.durations_ns) {
      duration_ns = static_cast<std::int64_t>(std::min(static_cast<double>(duration_ns) * times, longest_ns));
    }
    history.longest_ns = 0;
    find_median(history);
  }
}

}  // namespace holdfast
