// Clock offset: measures how far the monotonic clocks of a run's hosts are apart. Every host starts its own
// clock when it boots.
//
// Rank 0 asks the first rank of every other host for the time, several times, and takes the answer with the
// shortest round trip: the clock was read at some moment between question and answer, so half of that time
// bounds the error (Cristian 1989, "Probabilistic clock synchronization"). Clocks drift apart by some
// microseconds a second, so the offset is measured just before the times that need it.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/comm/collectives.h"

namespace holdfast::parallel {

struct ClockOffset {
  std::int64_t offset_ns = 0;  // clock of rank 0's host minus that of this rank's host
  std::int64_t error_ns = 0;   // maximum error, in either direction
};

// Returns the offset of this rank's host, whose name is `host`. All ranks call it together. The result is
// exact on the host of rank 0.
Result<ClockOffset> find_clock_offset(Communicator& communicator, const Waiter& waiter,
                                      const std::string& host);

}  // namespace holdfast::parallel
