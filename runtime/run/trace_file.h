// Trace file: the recording of one rank in RUN/trace/rank-00003.jsonl: a line about the rank, a line for each
// span, and a last line that says how many there are, by which a torn file is detected.
//
//   {"event":"trace","format":1,"recording":"00c5...","rank":3,"ranks":4,"host":"node7", ...}
//   {"kind":"forward","step":3,"begin_ns":81,"end_ns":95,"worked_ns":14,"chunk":0,"microbatch":2}
//   {"event":"end","spans":512}
//
// Times are of the rank's own clock; with clock_offset_ns added, they are of rank 0's. Fields of a span that
// do not apply or are not known are left out; worked_ns is of compute spans, and of a step's host. A span
// that was still going on has end_ns 0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/clock_offset.h"
#include "parallel/group/mesh.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/core/result.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::run {

struct TraceHeader {
  std::string recording = {};  // equal in all files that belong together
  int rank = 0;
  int ranks = 1;
  std::string host = {};
  std::string device = {};
  int threads = 1;
  MeshShape mesh = {};
  MeshCoordinate coordinate = {};
  ScheduleShape schedule = {};  // of one run of the list of actions
  int runs = 1;                 // of it in a step
  ClockOffset clock = {};
  std::uint64_t lost = 0;  // spans for which there was no room: the first ones
};

struct RankTrace {
  TraceHeader header;
  std::vector<Span> spans;  // in the order in which they were opened
};

std::string to_text(const RankTrace& trace);
// ExitCode::data when it is not whole or no such file; `path` is for the sentence.
Result<RankTrace> parse_trace(std::string_view text, const std::string& path);

}  // namespace holdfast::run
