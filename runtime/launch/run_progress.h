// How a run stands, from the end of its event log and the words of its guards.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "runtime/os/env.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/run_directory.h"

namespace holdfast::inline launch {

struct StepMade {
  std::uint64_t step = 0;
  std::int64_t time_us = 0;
};
// By the newest step event; zeros when there is none.
StepMade newest_step_made(Env& env, const RunPaths& paths);
inline std::uint64_t newest_step(Env& env, const RunPaths& paths) {
  return newest_step_made(env, paths).step;
}

// How many ranks a start had when it ended, by what it wrote to the log from `from_bytes` on: those behind
// its newest recovery or growth, else those that it began with. None: it did not come so far.
std::optional<int> ranks_at_end(Env& env, const RunPaths& paths, std::uint64_t from_bytes);

// How many ranks each host has by the newest start or recovery in the log from `from_bytes` on. None: nobody
// said so there.
std::optional<std::map<std::string, int>> newest_hosts(Env& env, const RunPaths& paths,
                                                       std::uint64_t from_bytes);

// The words of guards that came behind the newest step, of which the run has not recovered, in one line.
// Pure.
std::string verdicts_at_end(std::span<const ToldVerdict> verdicts, const StepMade& newest);

}  // namespace holdfast::inline launch
