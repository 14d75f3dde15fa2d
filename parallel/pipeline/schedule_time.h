// schedule_time() computes how long a schedule takes when the durations of its parts are known: every action
// starts as soon as its stage is free and its message is there. Pure; the planner estimates a step with it,
// and a timeline replays a recorded one.
//
// With equal parts and free transfers the share of the step that every stage idles is, for p stages, v chunks
// and m >= p microbatches,
//   gpipe, 1f1b   (p - 1) / (m + p - 1)        (for any m)
//   interleaved   (p - 1) / (v m + p - 1)
//   zero_bubble   (p - 1) (F + I - W) / (m (F + I + W) + (p - 1) (F + I - W)), F = I = W
// (the papers named in schedule.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace holdfast::parallel {

// Durations of one microbatch through one part, all in the same unit. A backward in one piece takes the sum
// of both.
struct PartDurations {
  double forward = 0.0;
  double backward_input = 0.0;
  double backward_weight = 0.0;
};

struct ScheduleTime {
  struct Span {
    double begin = 0.0, end = 0.0;
  };
  double duration = 0.0;                   // from the first begin to the last end, in the unit of the parts
  std::vector<std::vector<Span>> actions;  // [stage][index of its action]
  std::vector<double> bubble_shares;       // [stage]: idle share of the duration
  double bubble_share() const;             // over all stages
};

// Computes the times of all actions. `parts`: by part number (schedule.h). `transfer`: from the end of an
// action until its message is with another stage; transfers take no time from the work of either. The
// schedule is complete and free of deadlock.
ScheduleTime schedule_time(const Schedule& schedule, std::span<const PartDurations> parts, double transfer);
// Computes the same for links that differ: `transfers`, by stage, are those between it and the next one, in
// either direction; for the last stage between it and the first.
ScheduleTime schedule_time(const Schedule& schedule, std::span<const PartDurations> parts,
                           std::span<const double> transfers);

// Returns one line, such as "1f1b: 4 stages, 8 microbatches, bubble 27.3 %, activations in flight 4, 3, 2,
// 1".
std::string describe(const ScheduleShape& shape, const ScheduleTime& time);

}  // namespace holdfast::parallel
