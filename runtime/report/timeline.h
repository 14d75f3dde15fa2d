// Timeline: the recorded steps of all ranks of a run, on one clock: the files of RUN/trace/ put together
// (runtime/run/trace_file.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/trace_file.h"

namespace holdfast::report {

struct Timeline {
  std::vector<RankTrace> ranks = {};      // by rank; times of rank 0's clock, every span of them over
  std::vector<std::uint64_t> steps = {};  // whole on every rank; ascending, not empty
  std::int64_t clock_error_ns = 0;        // the largest, between two hosts
};

struct StepRange {
  std::uint64_t first = 0, last = 0;  // both of them
};

// Parses "3" or "3..5". ExitCode::config for any other text.
Result<StepRange> parse_step_range(const std::string& text);

// Puts recordings together. Pure. Spans that never ended and steps that are not whole on every rank are left
// out. ExitCode::data when the ranks do not belong together or have no whole step.
Result<Timeline> merge_ranks(std::vector<RankTrace> ranks);

// Selects only these steps. ExitCode::config when none of them was recorded.
Result<Timeline> select_steps(Timeline timeline, const StepRange& range);

// Reads the timeline. ExitCode::config when nothing was recorded there, ExitCode::data when a file is damaged
// or missing.
Result<Timeline> read_timeline(Env& env, const RunPaths& paths);

// Transfer is a message between stages of a pipeline, as it left and as it arrived.
struct Transfer {
  int source = 0, target = 0;  // ranks
  Span sent = {}, received = {};
  // Returns the time from when the sender handed the message over until it was seen to be there.
  std::int64_t duration_ns() const { return received.end.time_ns - sent.begin.time_ns; }
};

// Returns the transfers of a step, in no order. Messages of one direction between two ranks arrive in the
// order in which they were sent; one that has no other end is left out.
std::vector<Transfer> transfers_of(const Timeline& timeline, std::uint64_t step);

}  // namespace holdfast::report
