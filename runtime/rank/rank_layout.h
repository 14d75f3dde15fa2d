// What one rank of a run computes, and when: pure functions of the resolved config and the number of ranks. A
// planner comes to the same answers without a device.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/data/lanes.h"
#include "parallel/group/layout.h"
#include "parallel/group/mesh.h"
#include "parallel/group/rank_assignment.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/config/config.h"
#include "runtime/model/spec.h"

namespace holdfast::inline rank {

// Whether so many ranks, some of them spares, can run it; ExitCode::config with every rule that is broken
// (parallel/group/layout.h). The other functions are asked about layouts that can.
Result<void> check_layout(const Config& config, int ranks, std::int64_t spares = 0);
// Who sits where, of ranks that all compute and are all on one host.
Mesh mesh_of(const Config& config, int ranks);
// The same of ranks with elastic.spares among them whose hosts have these names: Mesh::placed(), so every
// tensor group is inside a host.
// Where a rank sits decides what it computes and holds, never a bit of the run. ExitCode::config when the
// hosts have no room for the tensor groups.
Result<Mesh> mesh_of(const Config& config, std::span<const std::string> host_of_rank);

// What a run that was started with so many ranks wants of those that are there, however many are left.
AssignmentRequest assignment_request(const Config& config, int launched_ranks);

// By rank, who keeps the replicas of its RAM snapshots (parallel/group/buddies.h); empty where nobody does.
// checkpoint.replicas: "auto" = where some rank's buddy is on another host.
std::vector<int> replica_buddies(const Config& config, const Mesh& mesh,
                                 std::span<const std::string> host_of_rank);

// The parts of the model that a stage computes, by chunk. Layers are shared out by what they and the head
// cost; the embedding, which copies, counts as nothing.
std::vector<ModelPart> parts_of_stage(const ModelSpec& spec, const Config& config, int stage);

// What the pipeline of a data-parallel rank runs in one step: this schedule once, or once for each lane.
struct PipelineSchedule {
  ScheduleShape shape;
  int runs = 1;
};
PipelineSchedule pipeline_schedule(const Config& config, const LaneSchedule& lanes, int data_rank);

// The same for one stage of it.
struct StageSchedule {
  ScheduleShape shape;  // of one run
  std::vector<Action> actions;
  std::vector<int> activation_buffers;       // by chunk
  std::vector<int> weight_gradient_buffers;  // by chunk
  int runs = 1;                              // of the list in a step
};
StageSchedule stage_schedule(const Config& config, const LaneSchedule& lanes, int data_rank, int stage);

// Places in which the gradients of a rank's buckets take turns (optimizer.shard_gradients); 0: each has its
// own. It needs other ranks to send to, and lanes that write each gradient once.
int gradient_places(const Config& config, int data_ranks);
// Why optimizer.shard_gradients saves nothing in this layout; empty where it does, and where it is off.
std::string why_gradients_are_whole(const Config& config, int data_ranks);

// The lanes of a data-parallel rank, in the order of waves.
std::vector<int> lanes_of_rank(const LaneSchedule& lanes, int data_rank);

}  // namespace holdfast::inline rank
