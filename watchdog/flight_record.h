// Flight records: what a rank was at when something happened, as one JSON file each, written by the guard
// from the board, so also of ranks that hang or are dead.
//
//   RUN/flight/20261122T163000.125Z-rank-0003.json
//
// Those that were taken together have the same time in their names on one host, and about the same on others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "watchdog/board.h"

namespace holdfast::inline watchdog {

struct FlightSpan {
  std::string kind;
  std::uint64_t step = 0, bytes = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  // 0: it goes on
  std::int32_t chunk = -1, microbatch = -1, bucket = -1, wave = -1, peer = -1;
  bool operator==(const FlightSpan&) const = default;
};

struct FlightRecord {
  std::string host, reason;
  std::int64_t wall_time_us = 0;  // when it was taken,
  std::int64_t now_ns = 0;        // and by the clock of its times, which is the host's own
  SlotView slot;
  char state = '?';  // ProcessFacts; 'X': it had ended
  std::uint64_t lost_spans = 0;
  std::vector<FlightSpan> spans;  // in the order in which they began
};

// Of a slot, as it is now. `state` of its process.
FlightRecord take_flight_record(Env& env, Board& board, std::uint32_t slot, char state,
                                const std::string& reason);

std::string flight_json(const FlightRecord& record);
Result<FlightRecord> parse_flight(const std::string& text, const std::string& path);
std::string flight_file_name(const FlightRecord& record);

// Into `directory`, which is made; of the rank the newest eight stay.
Result<void> write_flight_record(Env& env, const std::string& directory, const FlightRecord& record);
// The newest of each rank, but none that is a minute older than the newest of all; in the order of ranks.
// `directory`: of a run, or that of the files. Error: there are none, or one cannot be read.
Result<std::vector<FlightRecord>> read_flight_records(Env& env, const std::string& directory);

}  // namespace holdfast::inline watchdog
