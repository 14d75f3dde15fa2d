// RunHistory: the content of a run's event log, put in order: the data behind the report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"
#include "runtime/run/event.h"
#include "runtime/run/incident_log.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/numbers_log.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

// One step. Numbers that the log has as null (not finite) or not at all are NaN.
struct StepRecord {
  std::uint64_t step = 0;
  double loss = 0.0, grad_norm = 0.0, learning_rate = 0.0, tokens_per_sec = 0.0;
};

struct HeldOutRecord {
  std::uint64_t step = 0;
  double loss = 0.0;
};

// An event other than a step, in the order of the log.
struct RunEvent {
  std::string name;          // "start", "checkpoint", "fault" ...
  std::int64_t time_us = 0;  // since 1970
  std::uint64_t step = 0;    // its own, or the last one before it
  bool resumed = false;      // a start that continues
  std::string details;       // its other fields, for people
};

struct RunHistory {
  std::string run_id;
  std::uint64_t parameters = 0;
  std::uint64_t ranks = 0;  // of the last start
  std::uint64_t planned_steps = 0;
  std::uint64_t tokens = 0;                   // at the last step
  std::vector<EventSource> sources;           // of the last start
  std::vector<std::uint64_t> source_samples;  // at the last step
  std::int64_t running_us = 0;                // from each start to its last event, added up
  std::int64_t failures = 0;                  // starts that died or failed, but the last; recoveries
  bool start_under_way = false;               // the last start has not recorded its end
  std::vector<StepRecord>
      steps;  // ascending; of a step that was computed again, the last; a start forgets what lies behind it
  std::vector<HeldOutRecord> held_out;  // likewise
  std::vector<RunEvent> events;
  IncidentLog ledger;
  NumbersLog numbers;
  std::vector<StragglerEvent> stragglers;  // all of them
  std::string missing_parts;               // of the log, in a sentence; empty: none
};

// Reads the lines of a log. Lines that are not whole are skipped: a killed run leaves one.
RunHistory parse_history(std::string_view event_lines);
// Reads the log of a directory. ExitCode::config when it has no event log.
Result<RunHistory> read_history(Env& env, const RunPaths& paths);
// Reads an opened log. `shown`: returns an event as it may be shown; null: as it is.
Result<RunHistory> read_history(const LogReader& log, const std::function<Json(const Json&)>& shown = {});
// Reads only what failed in the run.
Result<IncidentLog> read_incident_log(Env& env, const RunPaths& paths);

// The end of the event log.
struct LogTail {
  std::string lines;   // whole ones; the last may be torn
  bool whole = false;  // it is all of the log
};
// Reads at most `bytes_max`; the error is that there is no log, or none that can be read.
Result<LogTail> read_log_tail(Env& env, const RunPaths& paths, std::uint64_t bytes_max);
Result<LogTail> tail_of(const LogReader& log, std::uint64_t bytes_max);

struct StepInterval {
  std::uint64_t first = 0, last = 0;
  bool operator==(const StepInterval&) const = default;
};
// Returns the steps up to `step`, ascending, for which the end of a log has no line, and no gap event either,
// though it goes back before them. Each start is responsible for the steps missing before it. Pure.
std::vector<StepInterval> missing_steps(std::string_view log_end, std::uint64_t step);

// Newest step of which the end of the log has a line; 0: none, or the log cannot be read.
std::uint64_t newest_logged_step(Env& env, const RunPaths& paths);

// Appends to `log` a "gap" event for the steps up to `step` that the end of the log lacks: lines of steps that
// were made, and that no rank computes again, waited in the memory of a leader that died (line_thread.h). A
// log that cannot be read stays as it is. Called on the log's thread.
void note_missing_steps(Env& env, const RunPaths& paths, std::uint64_t step, LineSink& log);

double median_tokens_per_sec(const RunHistory& history);  // 0 without steps

}  // namespace holdfast::run
