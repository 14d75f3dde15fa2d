// RUN/report.html: the run as one self-contained page (inline style and SVG, no scripts, nothing fetched),
// derived from events.jsonl, status.json and config.toml. Light and dark follow the reader's system.
#pragma once

#include "runtime/core/env.h"
#include "runtime/core/result.h"
#include "runtime/train/run_directory.h"

namespace holdfast {

// Replaces the report. May be called while the run goes on. ExitCode::config when there is no event log.
Result<void> write_report(Env& env, const RunPaths& paths);

}  // namespace holdfast
