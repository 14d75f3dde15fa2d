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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/group/mesh.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/core/result.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::run {

// Clock offset: measures how far the monotonic clocks of a run's hosts are apart. Every host starts its own
// clock when it boots.
//
// Rank 0 asks the first rank of every other host for the time, several times, and takes the answer with the
// shortest round trip: the clock was read at some moment between question and answer, so half of that time
// bounds the error (Cristian 1989, "Probabilistic clock synchronization"). Clocks drift apart by some
// microseconds a second, so the offset is measured just before the times that need it.
struct ClockOffset {
  std::int64_t offset_ns = 0;  // clock of rank 0's host minus that of this rank's host
  std::int64_t error_ns = 0;   // maximum error, in either direction
};

// Returns the offset of this rank's host, whose name is `host`. All ranks call it together. The result is
// exact on the host of rank 0.
Result<ClockOffset> find_clock_offset(Communicator& communicator, const Waiter& waiter,
                                      const std::string& host);

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

// Returns the kind that name_of() calls so, or nothing.
std::optional<SpanKind> span_kind_named(std::string_view name);

std::string to_text(const RankTrace& trace);
// ExitCode::data when it is not whole or no such file; `path` is for the sentence.
Result<RankTrace> parse_trace(std::string_view text, const std::string& path);

}  // namespace holdfast::run
