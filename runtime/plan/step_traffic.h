// Computes the traffic that one rank sends and receives in a step. What a model part exchanges in its tensor
// group, and what a vote exchanges, is counted as a planned rank (planned_rank.h) launches it; the rest is
// read from the plans that a running rank executes: its buckets, its waves and its schedule. The counters of
// a running rank must show the same. It covers a step that is committed; evaluations, checkpoints and
// agreements about errors come on top.
//
// Message counts are those of a Communicator; NCCL moves the same bytes on each axis.
#pragma once

#include <array>
#include <span>

#include "parallel/comm/traffic.h"
#include "parallel/group/mesh.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/config/config.h"
#include "runtime/model/layers.h"
#include "runtime/os/env.h"

namespace holdfast::train {
class Worker;
}  // namespace holdfast::train

namespace holdfast::plan {

// Traffic of one microbatch of a model part in its tensor group: none where a rank has all slices.
class PartTraffic {
 public:
  PartTraffic() = default;
  // Counts it for chunk `chunk` of a planned worker, which launches every kind of forward and backward once.
  PartTraffic(Worker& worker, int chunk);
  // `follows_forward`: the previous action was the forward of the same microbatch.
  const Traffic& of(const Action& action, bool follows_forward) const;

 private:
  static std::size_t index(BackwardPart part, bool follows_forward, bool completes_lane);

  Traffic forward_;
  std::array<Traffic, 12> backward_{};
};

struct StepTraffic {
  Traffic gradients;  // data axis: the lanes' gradients to the owners of the optimizer's shards, in fp32
  Traffic gradients_between_hosts;   // part of `gradients` that goes to and comes from ranks of other hosts
  Traffic parameters;                // data axis: the updated weights to all ranks
  Traffic parameters_between_hosts;  // part of `parameters`, likewise
  Traffic boundaries;  // pipeline axis: activations and their gradients between neighbouring stages
  Traffic tied;        // pipeline axis: gradient and weight between the two ends of a tied weight
  Traffic slices;      // tensor axis: rows gathered, parts of sums scattered, statistics of losses and norms
  Traffic votes;       // all ranks: the verdict on the step
  Traffic data() const { return gradients + parameters; }
  Traffic pipeline() const { return boundaries + tied; }
  Traffic all() const { return data() + pipeline() + slices + votes; }
};

// Returns the traffic of rank `rank`, which must not be a spare of the mesh. `parts` are those of its stage,
// by chunk. The layout must be one that can run (rank_layout.h).
StepTraffic step_traffic(Env& env, const Config& config, const Mesh& mesh, int rank,
                         std::span<const PartTraffic> parts);

}  // namespace holdfast::plan
