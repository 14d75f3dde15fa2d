// Computes the traffic that one rank sends and receives in a step, as a pure function of the resolved config.
// A planner adds it up, and the counters of a running rank must show the same. It covers a step that is
// committed; evaluations, checkpoints and agreements about errors come on top.
//
// Message counts are those of a Communicator; NCCL moves the same bytes on each axis.
#pragma once

#include "parallel/comm/traffic.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"

namespace holdfast::inline train {

struct StepTraffic {
  Traffic gradients;   // data axis: the lanes' gradients to the owners of the optimizer's shards, in fp32
  Traffic parameters;  // data axis: the updated weights to all ranks
  Traffic boundaries;  // pipeline axis: activations and their gradients between neighbouring stages
  Traffic tied;        // pipeline axis: gradient and weight between the two ends of a tied weight
  Traffic slices;      // tensor axis: rows gathered, parts of sums scattered, statistics of losses and norms
  Traffic votes;       // all ranks: the verdict on the step
  Traffic data() const { return gradients + parameters; }
  Traffic pipeline() const { return boundaries + tied; }
  Traffic all() const { return data() + pipeline() + slices + votes; }
};

// Returns the traffic of rank `rank`, which must not be a spare of the mesh. The layout must be one that can
// run (rank_layout.h).
StepTraffic step_traffic(const Config& config, const Mesh& mesh, int rank);

}  // namespace holdfast::inline train
