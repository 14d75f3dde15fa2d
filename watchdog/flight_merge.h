// Merges the flight records of all ranks into one picture. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "watchdog/flight_record.h"

namespace holdfast::watchdog {

struct FlightMerge {
  // Lowest step and number of an operation of all ranks that some have begun and others have not: "step 9,
  // all_reduce 77: begun by ranks 0, 1, 3; not by rank 2". Empty: the records hold none.
  std::string divergence;
  // Rank that caused the failure, and why: it died, or hangs by the rules of the guard (detector.h), or lags.
  // Empty: no rank stands out.
  std::string suspect;
};
FlightMerge merge_flights(std::span<const FlightRecord> records);

// Formats the flight records for a terminal: what each rank was at and waited for, and the merge.
std::string flight_text(std::span<const FlightRecord> records);

}  // namespace holdfast::watchdog
