// StepClock says in which step of a run something happened, by the times of its events. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/json.h"
#include "tools/chaos/chaos_record.h"

namespace holdfast::chaos {

class StepClock {
 public:
  // Takes the events of a log in its order.
  void read(const Json& event);
  // Sets `step`, unless it is set, and `before_first_update` from the time of the fault. The step is the one
  // after the newest that was over; where the fault came with the end of a step it may be the next one.
  void place(ChaosInjected& injected) const;

 private:
  struct EndOfStep {
    std::int64_t time_us = 0;
    std::uint64_t step = 0;
  };
  std::vector<EndOfStep> ends_;
  std::vector<std::int64_t>
      loads_us_;  // from when on ranks have had another state than that of the last step
};

}  // namespace holdfast::chaos
