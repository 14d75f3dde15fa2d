// Derives what one rank of a run computes, and when: pure functions of the resolved config, whose layout must
// pass check_layout() (runtime/run/run_layout.h). A planner gets the same answers without a device.
#pragma once

#include <string>
#include <vector>

#include "parallel/group/mesh.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/config/config.h"
#include "runtime/model/spec.h"

namespace holdfast::rank {

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

}  // namespace holdfast::rank
