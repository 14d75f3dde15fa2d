// RUN/report.html: the run as one self-contained page (inline style and SVG, no scripts, nothing fetched),
// derived from events.jsonl, status.json, config.toml and recorded steps. Light and dark follow the reader's system.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_history.h"

namespace holdfast::report {

struct Report {
  std::string page;     // HTML
  std::string summary;  // of write_report()
};
// Makes the report from the history of the run, and writes nothing.
Report make_report(Env& env, const RunPaths& paths, RunHistory history);

// Replaces the report; may be called while the run goes on. Returns a line on the run's faults
// (incident_log.h), one on what it cost, where its price is known, one on its verdicts (numbers_log.h), and one
// on each source of the data, where there are several; empty without all of them. ExitCode::config when there is no event log.
Result<std::string> write_report(Env& env, const RunPaths& paths);

}  // namespace holdfast::report
