// find_suspects() finds the rank that the watchdog named for each hang and livelock of a run. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/chaos/chaos_record.h"

namespace holdfast::chaos {

enum class NamedRank : std::uint8_t {
  right,   // the first verdict about it names the rank that hung
  other,   // the first one names a rank that did not
  nobody,  // no verdict names a rank, but the run noticed, or made no progress until its time was over
};
inline constexpr std::size_t named_ranks = 3;
std::string_view name_of(NamedRank named);

struct NamedHang {
  // Result of the verdicts. None: the fault is no hang, or it was over before it had to be noticed: another
  // fault ended it, or the run had no need of that rank any more.
  std::optional<NamedRank> named = {};
  std::int64_t verdict_us = 0;  // time of the verdict that names the right rank; 0: none
};

struct Suspects {
  std::vector<NamedHang> each;         // one for each of run.injected
  std::int64_t baseless_verdicts = 0;  // verdicts that name a rank while none hung
  // First of these after storage had become slow, which no rank may be ended for; none: there is none.
  std::optional<ReportedHang> on_slow_storage = {};
};

// Finds them by the guards' own messages; `run.verdicts` and `run.injected` are in the order of time.
Suspects find_suspects(const ChaosRun& run);

// Tolerance for comparing times that two clocks read at the same moment.
inline constexpr std::int64_t same_moment_us = 10'000;
// Returns the first entry of the log that was not over when the fault came; null: there is none.
const FaultEntry* entry_of(const IncidentLog& ledger, std::int64_t time_us);

}  // namespace holdfast::chaos
