// The messages between stages of a pipeline, each as it left and as it arrived. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/timeline/timeline.h"

namespace holdfast::inline timeline {

struct Transfer {
  int source = 0, target = 0;  // ranks
  Span sent = {}, received = {};
  // Returns the time from when the sender handed the message over until it was seen to be there.
  std::int64_t duration_ns() const { return received.end.time_ns - sent.begin.time_ns; }
};

// Returns the transfers of a step, in no order. Messages of one direction between two ranks arrive in the
// order in which they were sent; one that has no other end is left out.
std::vector<Transfer> transfers_of(const Timeline& timeline, std::uint64_t step);

}  // namespace holdfast::inline timeline
