// A summary of the runs of a campaign says for each fault how it was repaired, and how long that took. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chaos/chaos_run.h"
#include "tools/chaos/cost_promise.h"
#include "tools/chaos/number_check.h"
#include "tools/chaos/suspects.h"

namespace holdfast::chaos {

enum class ChaosOutcome : std::uint8_t {
  in_place,          // level 1: the remaining ranks went on
  restarted,         // level 2: `holdfast launch` started the run again
  launched_again,    // by the campaign, which had killed the launcher
  nothing_to_mend,   // the run did not need what was lost, or it was over
  ended_truthfully,  // with exit code 76 and a sentence; the next launch went on
  wrong,             // the run ended with other bits, not at all, or not as it says
  count
};
inline constexpr std::size_t chaos_outcomes = static_cast<std::size_t>(ChaosOutcome::count);
std::string_view name_of(ChaosOutcome outcome);

struct CheckedFault {
  ChaosFault fault = ChaosFault::kill;
  ChaosOutcome outcome = ChaosOutcome::nothing_to_mend;
  bool in_recovery = false;  // injected while another fault was being repaired
  // Time until the fault was noticed, for a hang until the verdict; -1: not noticed, or together with
  // another.
  double notice_ms = -1.0;
  double mend_ms = -1.0;                // time until the first step after it was made
  std::optional<NamedRank> named = {};  // hangs: whether the watchdog named it (suspects.h)
};
// Returns one for each of run.injected, checked by the log.
std::vector<CheckedFault> check(const ChaosRun& run);

struct ChaosTally {
  std::int64_t injected = 0;
  std::int64_t in_recovery = 0;
  std::array<std::int64_t, chaos_outcomes> outcomes = {};
};

struct ChaosDistribution {
  std::string name;
  std::vector<double> values_ms;          // ascending
  double percentile(double share) const;  // 0.5: the median; 0 of nothing
};

struct ChaosSummary {
  std::int64_t runs = 0, right = 0;
  std::int64_t excused = 0;  // runs with other bits by a wrong number that no check sees
  // Counts of launches by the campaign: all, those after it had killed the launcher, and those after a run
  // had ended truthfully.
  std::int64_t launches = 0, launched_again = 0, ended_truthfully = 0;
  std::int64_t faults = 0;                           // injected
  std::int64_t in_recovery = 0;                      // faults injected during a recovery
  std::int64_t kills = 0;                            // SIGKILLs of ranks, mpirun and launchers
  std::int64_t hangs = 0;                            // hangs and livelocks
  std::array<std::int64_t, named_ranks> named = {};  // hangs, by the rank that the watchdog named
  std::int64_t baseless_verdicts = 0;
  std::uint64_t lost_steps = 0;
  SpanTimes times_us = {};  // what the time of all runs was spent on
  CostTally costs = {};     // lost work compared with the promise
  NumberTallies numbers = {};
  std::array<ChaosTally, chaos_fault_kinds> tallies = {};
  // Largest growth of each program's processes.
  std::vector<ResourceGrowth> growths = {};
  // Distributions of the time to detection, the parts of a recovery in place, and from fault to step by
  // outcome.
  std::vector<ChaosDistribution> times = {};

  std::int64_t wrong_runs() const { return runs - right - excused; }
  std::int64_t count_of(NamedRank rank) const { return named[static_cast<std::size_t>(rank)]; }
  // Returns the hangs that had to be noticed; the others were over before.
  std::int64_t checked_hangs() const { return std::accumulate(named.begin(), named.end(), std::int64_t{0}); }
};
ChaosSummary summarize(std::span<const ChaosRun> runs);

// Returns the summary as a table for a terminal.
std::string to_text(const ChaosSummary& summary);

}  // namespace holdfast::chaos
