// How far the monotonic clocks of the hosts of a run are apart: every host starts its own at its boot.
//
// Rank 0 asks the first rank of every other host for the time, several times, and takes the answer that came
// back soonest: the clock was read at some moment between question and answer, so half of that time bounds
// the error (Cristian 1989, "Probabilistic clock synchronization"). Clocks drift apart by some microseconds a
// second, so it is done just before the times that it is for.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/comm/collectives.h"

namespace holdfast::inline parallel {

struct ClockOffset {
  std::int64_t offset_ns = 0;  // plus the clock of this rank's host = the clock of rank 0's
  std::int64_t error_ns = 0;   // at most, either way
};

// All ranks together. Exact where `host` is that of rank 0.
Result<ClockOffset> find_clock_offset(Communicator& communicator, const Waiter& waiter,
                                      const std::string& host);

}  // namespace holdfast::inline parallel
