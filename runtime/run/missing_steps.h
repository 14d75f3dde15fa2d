// Completes the log of a leader that died: lines of steps that were made, and that no rank computes again,
// waited in its memory (line_thread.h), and the log ends before them. The next leader, in place or after a
// restart, writes those that the state it goes on from still has (recent_steps.h), and a "gap" event for the
// others.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"
#include "runtime/run/recent_steps.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

struct StepInterval {
  std::uint64_t first = 0, last = 0;
  bool operator==(const StepInterval&) const = default;
};

// Returns the steps up to `step`, ascending, for which the end of a log has no line, and no gap event either,
// though it goes back before them. Each start is responsible for the steps missing before it. Pure.
std::vector<StepInterval> missing_steps(std::string_view log_end, std::uint64_t step);

// Newest step of which the end of the log has a line; 0: none, or the log cannot be read.
std::uint64_t newest_logged_step(Env& env, const RunPaths& paths);

// Reads the end of the log, whatever its length, and appends to `log` what it lacks up to `step`. A log that
// cannot be read stays as it is. Called on the log's thread.
void write_missing_steps(Env& env, const RunPaths& paths, std::uint64_t step, const RecentSteps& recent,
                         LineSink& log);

}  // namespace holdfast::run
