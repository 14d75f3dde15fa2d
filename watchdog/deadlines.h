// Deadlines: how long a phase may take, learned from how long it took. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "watchdog/phase.h"

namespace holdfast {

struct DeadlineLimits {
  double factor = 3.0;
  std::int64_t floor_ns = 5'000'000'000;
  std::int64_t ceiling_ns = 600'000'000'000;
};

// factor x the median of the last 63 durations of the phase, between floor and ceiling; with fewer than five,
// the ceiling.
class Deadlines {
 public:
  explicit Deadlines(const DeadlineLimits& limits);
  void limit(const DeadlineLimits& limits);  // what was learned stays
  const DeadlineLimits& limits() const { return limits_; }
  void took(Phase phase, std::int64_t duration_ns);
  std::int64_t of(Phase phase) const;
  std::int64_t usual(Phase phase) const;  // the median; 0 with fewer than five
  // The ranks are others now, and each has other work: what was learned counts `times` as long until as much
  // was learned again.
  void rescale(double times);

 private:
  static constexpr int kept = 63, least = 5;
  struct History {
    std::array<std::int64_t, kept> durations_ns{};
    int count = 0, next = 0;
    std::int64_t median_ns = 0;  // kept up to date, so of() costs nothing
  };
  static void find_median(History& history);
  DeadlineLimits limits_;
  std::array<History, static_cast<std::size_t>(Phase::count)> histories_{};
};

}  // namespace holdfast
