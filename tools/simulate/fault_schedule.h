// FaultSchedule draws what happens to a fleet: a seed gives the same faults at the same times whatever the run does about
// them, so that two ways to run are compared on equal schedules (common random numbers). Pure.
//
// Each unit (a host, a rack, the run) and kind of fault has a stream of its own, so more hosts add their own faults and
// change no others.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/simulate/cluster.h"

namespace holdfast::launch::fleet {

struct FleetEvent {
  std::int64_t at_us = 0;
  int kind = 0;               // index of Cluster::faults
  int host = -1;              // that it is about; -1: none
  int hosts = 0;              // so many from there on: a rack
  bool is_second = false;     // the loss that follows a notice, the finding of wrong numbers
  std::int64_t lasts_us = 0;  // away, slow, without storage
};

// Returns the events before `end_us`, in their order.
std::vector<FleetEvent> draw_schedule(const Cluster& cluster, std::uint64_t seed, std::int64_t end_us);

}  // namespace holdfast::launch::fleet
