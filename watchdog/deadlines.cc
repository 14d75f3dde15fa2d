#include "watchdog/deadlines.h"

#include <algorithm>
#include <cmath>

#include "runtime/core/check.h"

namespace holdfast::watchdog {
namespace {

constexpr double first_times = 4, beside_save_times = 2;  // the deadline of the usual kind
constexpr double unknown_floors = 12;                     // of watchdog.floor

bool has_kinds(Phase phase) {
  return phase == Phase::step || phase == Phase::evaluation;
}

double times_usual(WorkKind kind) {
  if (kind == WorkKind::first) return first_times;
  return kind == WorkKind::beside_save ? beside_save_times : 1;
}

}  // namespace

Deadlines::Deadlines(const DeadlineLimits& limits) : limits_(limits) {
  limits_.ceiling_ns = std::max(limits_.ceiling_ns, limits_.floor_ns);
}

std::size_t Deadlines::place(Phase phase, WorkKind kind) {
  HF_CHECK(phase < Phase::count && kind < WorkKind::count);
  const WorkKind kept_as = has_kinds(phase) ? kind : WorkKind::usual;
  return static_cast<std::size_t>(phase) * kinds + static_cast<std::size_t>(kept_as);
}

void Deadlines::took(Phase phase, WorkKind kind, std::int64_t duration_ns) {
  History& history = histories_[place(phase, kind)];
  history.durations_ns[static_cast<std::size_t>(history.next)] = std::max<std::int64_t>(duration_ns, 0);
  history.next = (history.next + 1) % kept;
  history.count = std::min(history.count + 1, kept);
  find_median(history);
}

void Deadlines::find_median(History& history) {
  auto sorted = history.durations_ns;
  const auto middle = sorted.begin() + history.count / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + history.count);
  history.median_ns = history.count > 0 ? *middle : 0;
}

std::int64_t Deadlines::usual(Phase phase, WorkKind kind) const {
  const History& history = histories_[place(phase, kind)];
  return history.is_known() ? history.median_ns : 0;
}

// Compared before it is an integer again: a large factor may leave their range.
std::int64_t Deadlines::clamped(double wanted_ns) const {
  if (wanted_ns >= static_cast<double>(limits_.ceiling_ns)) return limits_.ceiling_ns;
  return std::max(limits_.floor_ns, static_cast<std::int64_t>(wanted_ns));
}

std::int64_t Deadlines::learned(const History& history) const {
  return clamped(limits_.factor * static_cast<double>(history.median_ns));
}

// A run that saves beside every step knows only that kind: then the other steps resemble it.
std::int64_t Deadlines::of(Phase phase, WorkKind kind) const {
  const History& own = histories_[place(phase, kind)];
  if (!has_kinds(phase)) return own.is_known() ? learned(own) : limits_.ceiling_ns;
  const History& usual = histories_[place(phase, WorkKind::usual)];
  const History& resembled = usual.is_known() ? usual : histories_[place(phase, WorkKind::beside_save)];
  const std::int64_t base_ns = resembled.is_known() ? learned(resembled) : 0;
  if (own.is_known()) return std::max(learned(own), base_ns);
  if (base_ns > 0) return clamped(times_usual(kind) * static_cast<double>(base_ns));
  return clamped(unknown_floors * static_cast<double>(limits_.floor_ns));
}

void Deadlines::rescale(double times) {
  HF_CHECK(times > 0 && std::isfinite(times), "{} times the work", times);
  constexpr double longest_ns = 1e18;
  for (History& history : histories_) {
    for (std::int64_t& duration_ns : history.durations_ns) {
      duration_ns = static_cast<std::int64_t>(std::min(static_cast<double>(duration_ns) * times, longest_ns));
    }
    find_median(history);
  }
}

const char* name_of(Phase phase) {
  constexpr std::array<const char*, static_cast<std::size_t>(Phase::count)> names = {
      "start-up", "load", "step", "evaluation", "save", "recovery", "spare", "end"};
  return phase < Phase::count ? names[static_cast<std::size_t>(phase)] : "unknown";
}

}  // namespace holdfast::watchdog
