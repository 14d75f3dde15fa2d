// Reads the progress of a run from the end of its event log and from the reports of its guards.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "runtime/os/env.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"

namespace holdfast::launch {

struct StepMade {
  std::uint64_t step = 0;
  std::int64_t time_us = 0;
};
// Returns the step and time of the newest step event; zeros when there is none.
StepMade newest_step_made(Env& env, const RunPaths& paths);
inline std::uint64_t newest_step(Env& env, const RunPaths& paths) {
  return newest_step_made(env, paths).step;
}

// Returns the number of ranks that a start had when it ended, from its log lines after `from_bytes`: the
// ranks after its newest recovery or growth, else those that it began with. None if the start did not come
// that far.
std::optional<int> ranks_at_end(Env& env, const RunPaths& paths, std::uint64_t from_bytes);

struct RanksInLog {
  std::map<std::string, int> by_host = {};
  std::optional<int> spares = {};  // ranks that wait; a start does not say how many
};
// Returns the ranks by the newest start or recovery in the log after `from_bytes`.
// None if the log has no such line there.
std::optional<RanksInLog> newest_ranks(Env& env, const RunPaths& paths, std::uint64_t from_bytes);

// Returns the work that a lost job costs at most, as the newest event says (FailureCostEvent); none if there is no such
// event after `from_bytes`, or all of the work would be lost.
std::optional<double> lost_job_ms(Env& env, const RunPaths& paths, std::uint64_t from_bytes);

// Returns, in one line, the reports of guards that are newer than the newest step, from which the run has
// not recovered. Pure.
std::string hangs_at_end(std::span<const ReportedHang> hangs, const StepMade& newest);

// Returns what is known of how `dead` died, to follow "they died": ": signal 9 (SIGKILL)" where that is so of
// all, else each that is known with its rank; empty where nothing is.
std::string causes_of(std::span<const LaunchedRank> dead);

}  // namespace holdfast::launch
