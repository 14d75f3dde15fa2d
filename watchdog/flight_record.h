// Flight records: the state of each rank when something happened, one JSON file per rank. The guard writes
// them from the board, so ranks that hang or are dead have them, too.
//
//   RUN/flight/20261122T163000.125Z-rank-0003.json
//
// Records that were taken together have the same time in their names on one host, and about the same on
// others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "watchdog/board.h"

namespace holdfast::watchdog {

struct FlightSpan {
  std::string kind;
  std::uint64_t step = 0, bytes = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  // 0: the span goes on
  std::int32_t chunk = -1, microbatch = -1, bucket = -1, wave = -1, peer = -1;
  bool operator==(const FlightSpan&) const = default;
};

struct FlightRecord {
  std::string host, reason;
  std::int64_t wall_time_us = 0;  // time of the record
  std::int64_t now_ns = 0;        // the same time by the clock of the spans, which is the host's own
  SlotView slot;
  char state = '?';  // ProcessFacts; 'X': it had ended
  std::uint64_t lost_spans = 0;
  std::vector<FlightSpan> spans;  // in the order in which they began
};

// Takes the flight record of a slot as it is now. `state` is the state of its process.
FlightRecord take_flight_record(Env& env, Board& board, std::uint32_t slot, char state,
                                const std::string& reason);

std::string flight_json(const FlightRecord& record);
Result<FlightRecord> parse_flight(const std::string& text, const std::string& path);
std::string flight_file_name(const FlightRecord& record);

// Writes a record into `directory`, which is made. The newest eight records of the rank stay.
Result<void> write_flight_record(Env& env, const std::string& directory, const FlightRecord& record);
// Returns the newest record of each rank, except those that are a minute older than the newest of all; in the
// order of ranks. `directory`: that of a run, or that of the files. Error: there are none, or one cannot be
// read.
Result<std::vector<FlightRecord>> read_flight_records(Env& env, const std::string& directory);
// Returns of each rank the record that was taken nearest to a time, at most 10 s from it; empty where there is none.
std::vector<FlightRecord> flight_records_near(Env& env, const std::string& directory, std::int64_t time_us);

}  // namespace holdfast::watchdog
