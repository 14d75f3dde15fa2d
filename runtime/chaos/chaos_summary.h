// What came of the runs of a campaign: for each fault how it was mended, and how long that took. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chaos/chaos_run.h"
#include "runtime/chaos/cost_promise.h"
#include "runtime/chaos/culprits.h"

namespace holdfast::inline chaos {

enum class ChaosOutcome : std::uint8_t {
  in_place,          // level 1: the ranks that were left went on
  restarted,         // level 2: `holdfast launch` started the run again
  launched_again,    // by the campaign, which had killed the launcher
  nothing_to_mend,   // the run did not need what was lost, or it was over
  ended_truthfully,  // with exit code 76 and a sentence; the next launch went on
  wrong,             // the run ended with other bits, not at all, or not as it says
  count
};
inline constexpr std::size_t chaos_outcomes = static_cast<std::size_t>(ChaosOutcome::count);
std::string_view name_of(ChaosOutcome outcome);

struct JudgedFault {
  ChaosFault fault = ChaosFault::kill;
  ChaosOutcome outcome = ChaosOutcome::nothing_to_mend;
  bool in_recovery = false;  // it came while another one was being mended
  // Until it was noticed, a hang until the verdict; -1: nobody did, or together with another.
  double notice_ms = -1.0;
  double mend_ms = -1.0;                // until the first step behind it was made
  std::optional<NamedRank> named = {};  // for a hang, by the watchdog (culprits.h)
};
// One for each of run.injected, by what the log says.
std::vector<JudgedFault> judge(const ChaosRun& run);

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
  // By the campaign: all launches, those after it had killed the launcher, and those after a run had ended
  // truthfully.
  std::int64_t launches = 0, launched_again = 0, ended_truthfully = 0;
  std::int64_t faults = 0;                           // injected
  std::int64_t in_recovery = 0;                      // of them
  std::int64_t kills = 0;                            // by signal 9, of ranks, mpirun and launchers
  std::int64_t hangs = 0;                            // and livelocks
  std::array<std::int64_t, named_ranks> named = {};  // of them, by whom the watchdog named
  std::int64_t baseless_verdicts = 0;
  std::uint64_t lost_steps = 0;
  CostTally costs = {};  // what was lost, beside what was promised
  std::array<ChaosTally, chaos_fault_kinds> tallies = {};
  // Detection, the parts of a recovery in place, and from fault to step by who mended it.
  std::vector<ChaosDistribution> times = {};

  std::int64_t count_of(NamedRank rank) const { return named[static_cast<std::size_t>(rank)]; }
  // Hangs that somebody had to notice; the others were over before.
  std::int64_t judged_hangs() const { return std::accumulate(named.begin(), named.end(), std::int64_t{0}); }
};
ChaosSummary summarize(std::span<const ChaosRun> runs);

// The table of a terminal.
std::string to_text(const ChaosSummary& summary);

}  // namespace holdfast::inline chaos
