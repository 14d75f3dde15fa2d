// Deadlines: how long a rank may show no sign of life in a phase, learned from the durations of that phase.
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace holdfast::watchdog {

// Phases of a rank, as the watchdog distinguishes them: each phase has a deadline of its own.
enum class Phase : std::uint8_t {
  start_up,    // the program, MPI, config, data, device: until the first step can begin
  load,        // state from RAM, disk or a peer
  step,        // from the end of one vote to the next
  evaluation,  // one batch of an evaluation
  save,        // a save that training waits for
  recovery,    // after a death: regrouping and planning
  spare,       // waits for a coordinate or the end; only its heartbeats count
  end,         // report and shutdown
  count
};
const char* name_of(Phase phase);

// Kinds of work that make a step, or a batch of an evaluation, take other times than usual. Each kind has a
// history of its own (deadlines.h).
enum class WorkKind : std::uint8_t {
  usual,
  first,        // the first one after a start, recovery, scale up or re-cut: all pages are new
  beside_save,  // a snapshot is copied or sent, or a save drained, meanwhile
  count
};

struct DeadlineLimits {
  double factor = 3.0;
  std::int64_t floor_ns = 5'000'000'000;
  std::int64_t ceiling_ns = 600'000'000'000;
};

// Keeps the last 63 durations of each phase, and for steps and batches of an evaluation those of each kind
// (WorkKind). The deadline is factor x the median, between floor and ceiling. With fewer than five durations
// it is
//   - 4 x the deadline of the usual kind for the first step of an epoch, 2 x for one beside a save (and the
//     median of such a kind never makes its deadline shorter than the usual kind's);
//   - 12 x floor for steps and evaluations of which no kind is known;
//   - the ceiling for every other phase, because phases without steps have no regular duration.
class Deadlines {
 public:
  explicit Deadlines(const DeadlineLimits& limits);
  const DeadlineLimits& limits() const { return limits_; }
  void took(Phase phase, WorkKind kind, std::int64_t duration_ns);
  std::int64_t of(Phase phase, WorkKind kind) const;
  std::int64_t usual(Phase phase, WorkKind kind) const;  // the median; 0 with fewer than five
  // Adapts to a change of the ranks, after which each has other work: learned durations count `times` as long
  // until as many were learned again.
  void rescale(double times);

 private:
  static constexpr int kept = 63, least = 5;
  static constexpr auto phases = static_cast<std::size_t>(Phase::count);
  static constexpr auto kinds = static_cast<std::size_t>(WorkKind::count);
  struct History {
    std::array<std::int64_t, kept> durations_ns{};
    int count = 0, next = 0;
    std::int64_t median_ns = 0;  // kept up to date, so of() costs nothing
    bool is_known() const { return count >= least; }
  };
  static void find_median(History& history);
  static std::size_t place(Phase phase, WorkKind kind);
  std::int64_t learned(const History& history) const;
  std::int64_t clamped(double wanted_ns) const;
  DeadlineLimits limits_;
  std::array<History, phases * kinds> histories_{};  // by place()
};

}  // namespace holdfast::watchdog
