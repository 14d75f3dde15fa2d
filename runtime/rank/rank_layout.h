// Derives what one rank of a run computes, and when: pure functions of the resolved config and the number of
// ranks. A planner gets the same answers without a device.
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

// Checks that `ranks` ranks, `spares` of them spares, can run the config; ExitCode::config with every rule
// that is broken (parallel/group/layout.h). The other functions require a layout that passes.
Result<void> check_layout(const Config& config, int ranks, std::int64_t spares = 0);
// Returns the mesh of ranks that all compute and are all on one host.
Mesh mesh_of(const Config& config, int ranks);
// Returns the mesh of ranks, elastic.spares among them, whose hosts have these names: Mesh::placed(), so
// every tensor group is inside a host. The coordinate of a rank decides what it computes and holds, never a
// bit of the run. ExitCode::config when the hosts have no room for the tensor groups.
Result<Mesh> mesh_of(const Config& config, std::span<const std::string> host_of_rank);

// Returns the assignment that a run which was started with `launched_ranks` ranks asks for, however many are
// left.
AssignmentRequest assignment_request(const Config& config, int launched_ranks);

// Returns, by rank, the rank that stores the replicas of its RAM snapshots (parallel/group/buddies.h); empty
// if there are no replicas. With checkpoint.replicas = "auto" there are replicas if the buddy of some rank is
// on another host.
std::vector<int> replica_buddies(const Config& config, const Mesh& mesh,
                                 std::span<const std::string> host_of_rank);

// Returns the parts of the model that a stage computes, by chunk. Layers are distributed by the cost of the
// layers and of the head; the embedding, which only copies, counts as nothing.
std::vector<ModelPart> parts_of_stage(const ModelSpec& spec, const Config& config, int stage);

// PipelineSchedule is what the pipeline of a data-parallel rank runs in one step: this schedule once, or once
// for each lane.
struct PipelineSchedule {
  ScheduleShape shape;
  int runs = 1;
};
PipelineSchedule pipeline_schedule(const Config& config, const LaneSchedule& lanes, int data_rank);

// StageSchedule is the part of one stage in a PipelineSchedule.
struct StageSchedule {
  ScheduleShape shape;  // shape of one run
  std::vector<Action> actions;
  std::vector<int> activation_buffers;       // by chunk
  std::vector<int> weight_gradient_buffers;  // by chunk
  int runs = 1;                              // runs of the list in a step
};
StageSchedule stage_schedule(const Config& config, const LaneSchedule& lanes, int data_rank, int stage);

// Returns the number of slots that the gradients of a rank's buckets use in turn (optimizer.shard_gradients);
// 0: each bucket has a slot of its own. Sharing needs other ranks to send to, and lanes that write each
// gradient once.
int gradient_slots(const Config& config, int data_ranks);
// Returns why optimizer.shard_gradients saves nothing in this layout; empty if it does save memory, or is
// off.
std::string why_gradients_are_whole(const Config& config, int data_ranks);

// Returns the lanes of a data-parallel rank, in the order of waves.
std::vector<int> lanes_of_rank(const LaneSchedule& lanes, int data_rank);

}  // namespace holdfast::inline rank
