// Incident: one fault of a run, or several that were mended together, with all that the run recorded of it:
// who and why, what was decided, what it cost, what would have been cheaper, and what to do. Pure, but for
// read_incident().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/report/playbook.h"
#include "runtime/run/incident_log.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_history.h"
#include "watchdog/flight_record.h"

namespace holdfast::report {

// IncidentCost is what the incident took from the run, in seconds of wall time.
struct IncidentCost {
  double unnoticed_s = 0.0;  // in the step before, until somebody noticed: for the most part a hang
  double pause_s = 0.0;      // from then until the run computed again
  double again_s = 0.0;      // steps that were computed before, and are again
  // Steps with fewer ranks that compute, beyond what they took before, until there were as many again.
  double slower_s = 0.0;
  double absent_s =
      0.0;  // until somebody started the run again: nothing ran, so that it is no part of all_s()
  double all_s() const { return unnoticed_s + pause_s + again_s + slower_s; }
};

struct Incident {
  std::size_t number = 1, count = 1;      // of the rows of the report's table of faults, the first is 1
  std::vector<FaultEntry> faults;         // mended together, in the order of the log; the last has the cost
  std::int64_t begin_us = 0, end_us = 0;  // noticed; the first step after it, or the end of the log
  int ranks_before = 0, ranks_after = 0;  // 0: not known
  std::vector<std::string> lost_hosts;    // that had ranks before and none after
  std::optional<VerdictEvent> verdict;    // for which a rank left
  std::optional<RecoveryEvent> recovery;  // in place
  std::vector<RunEvent> events;           // around it, without steps
  std::vector<std::string> decisions;     // sentences: what was done, and by which rule
  std::vector<GoodputSpan> spans;         // around it
  std::vector<IncidentSave> saves;        // likewise
  std::string missing_parts;  // of the log, in a sentence: numbers may be others then; empty: none
  double step_s = 0.0, step_after_s = 0.0;  // usual time of a step before, and after
  std::optional<double> snapshot_s;         // cost of a RAM snapshot, where the log has it
  double usual_pause_s = 0.0;               // median pause of other recoveries in place
  IncidentCost cost;
  RankPrice price = {};
  const FaultEntry& fault() const { return faults.back(); }
  // Returns the price of so many seconds of all ranks, "$0.12"; empty without a price.
  std::string price_of(double duration_s) const;
  const PlaybookEntry& playbook() const {
    return playbook_entry(faults.front(), verdict.has_value() ? &*verdict : nullptr, !lost_hosts.empty());
  }
};

// Reads the incident with this number. ExitCode::config where the run has none, or no log.
Result<Incident> read_incident(Env& env, const RunPaths& paths, std::size_t number);
// Reads those with the numbers from `first` to `last`, which are incidents of `history`, the history of `log`.
Result<std::vector<Incident>> read_incidents(const LogReader& log, const RunHistory& history,
                                             std::size_t first, std::size_t last);

// Returns sentences on what would have been cheaper, with the keys to set; never empty.
std::vector<std::string> cheaper_ways(const Incident& incident);

// Returns a few lines for a console.
std::string incident_text(const Incident& incident);
}  // namespace holdfast::report
