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
// the ceiling. The first times may be slow, and slower for one rank than for another: so what the others show
// counts late, and only where they have done the same work (alone()).
class Deadlines {
 public:
  explicit Deadlines(const DeadlineLimits& limits);
  const DeadlineLimits& limits() const { return limits_; }
  void took(Phase phase, std::int64_t duration_ns);
  std::int64_t of(Phase phase) const;
  std::int64_t usual(Phase phase) const;  // the median; 0 with fewer than five
  // With fewer than five, of a step or an evaluation: how long a rank may compute at least while all others
  // wait for it. 0: of() alone counts.
  std::int64_t alone(Phase phase) const;
  // And how long it may where the same work took up to `slowest_ns`: others now, or itself before.
  static std::int64_t alone_among(std::int64_t alone_ns, std::int64_t slowest_ns);
  // And how long where all others wait, when one of them gives up after `patience_ns`.
  static std::int64_t alone_until(std::int64_t alone_ns, std::int64_t patience_ns);
  // The longest duration since the last rescale(); 0: none. What came before it may be of other work, or of
  // a part of it.
  std::int64_t longest(Phase phase) const;
  // The ranks are others now, and each has other work: what was learned counts `times` as long until as much
  // was learned again.
  void rescale(double times);

 private:
  static constexpr int kept = 63, least = 5;
  struct History {
    std::array<std::int64_t, kept> durations_ns{};
    int count = 0, next = 0;
    std::int64_t median_ns = 0;  // kept up to date, so of() costs nothing
    std::int64_t longest_ns = 0;
  };
  static void find_median(History& history);
  DeadlineLimits limits_;
  std::array<History, static_cast<std::size_t>(Phase::count)> histories_{};
};

}  // namespace holdfast
