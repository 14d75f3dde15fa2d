// estimate_step() computes how long a step takes when the parts of its stages are priced: it simulates the
// pipeline's schedule with them, and messages count as far as nothing hides them. Pure.
//
// Computation hides messages as follows, where messages move while the rank computes
// (PlannedMachine::overlaps_messages):
//   gradients    a lane's buckets leave while its last backward still computes, and while the next lane's
//                first forwards do; the bucket that is ready last leaves when nothing is left to compute
//   parameters   the next step's forwards wait for their own half layer; what is received before the first of
//                them, and what takes longer than all forwards before the first backward, is exposed
//   boundaries   a stage that has other microbatches to compute does not wait: the schedule is simulated with
//                and without them
//   slices       nothing: a layer waits for the rows of its tensor group
//   snapshots    the copy of the state is hidden by the next forward and backward
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/plan/planned_machine.h"
#include "runtime/plan/step_traffic.h"
#include "runtime/rank/rank_layout.h"

namespace holdfast::plan {

// Time of one microbatch through one part of a stage, in seconds.
struct PartTime {
  double forward = 0.0, backward = 0.0;
};

// Costs of the first rank of a stage of the first replica.
struct StageCosts {
  int rank = 0;
  std::vector<PartTime> parts = {};  // by chunk
  double sums = 0.0, update = 0.0;   // sums of gradients over the lanes; the optimizer's
  StepTraffic traffic = {};
  double first_gather_share = 0.0;    // first forward's bucket as a share of the parameters received
  double last_reduction_share = 0.0;  // last backward's bucket as a share of the gradients received
  std::uint64_t snapshot_bytes = 0;   // 0: the run takes none
};

struct HiddenSeconds {
  double gradients = 0.0, parameters = 0.0, boundaries = 0.0, snapshot = 0.0;
  double sum() const { return gradients + parameters + boundaries + snapshot; }
};

// Seconds of a step; the parts add up to it.
struct StepTime {
  double compute = 0.0;        // forwards and backwards of the busiest rank
  double bubble = 0.0;         // its waiting for the other stages
  double waiting = 0.0;        // waiting of ranks for a processor
  double sums = 0.0;           // sums of gradients over the lanes
  double update = 0.0;         // the optimizer's
  double communication = 0.0;  // the part that nothing hides
  HiddenSeconds hidden = {};   // overlapped with the rest: not part of the sum
  double seconds() const { return compute + bubble + waiting + sums + update + communication; }
};

struct StepEstimate {
  StepTime time;
  double bubble_share = 0.0;    // over all stages, in forward and backward
  double bytes_received = 0.0;  // maximum over the ranks that are timed
};

// Layout to be timed; `mesh` and `stages` (by stage) are those of `config`.
struct TimedLayout {
  const Config& config;
  const Mesh& mesh;
  const LaneSchedule& lanes;
  const std::vector<StageCosts>& stages;
};
StepEstimate estimate_step(const TimedLayout& layout, const PlannedMachine& machine);

}  // namespace holdfast::plan
