// Pipeline schedules are pure data: what every stage of a pipeline does, in order, and which messages it
// sends to which stage. One executor runs any of them, schedule_time.h computes their durations, and
// tests/support/schedule_check.h proves them.
//
// A model is cut into stages x chunks parts (stage_split.h). Part number c * stages + s is chunk c of stage
// s, so that activations go from stage to stage and, after the last stage, to the next chunk of the first.
//
//   gpipe        all forwards, then all backwards (Huang et al. 2019). Backwards too go from the first
//                microbatch to the last, which changes no time.
//   1f1b         after a warm-up every stage alternates forward and backward (PipeDream-flush; Narayanan et
//                al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training"): the time of gpipe, with at
//                most `stages` microbatches in memory.
//   interleaved  1f1b with several chunks on every stage (Narayanan et al. 2021, "Efficient Large-Scale
//                Language Model Training on GPU Clusters Using Megatron-LM"): the pipeline fills in the time
//                of one chunk. Microbatches go through the chunks in groups. Megatron-LM requires groups of
//                `stages` and so a multiple of it; here groups of at least `stages` share the remainder, the
//                first ones having one more: any number of microbatches that is no less than `stages` has
//                the bubble of the formula.
//   zero_bubble  ZB-H1 of Qi et al. 2024, "Zero Bubble Pipeline Parallelism": 1f1b whose weight gradients
//                are computed separately from the input gradients, on stage s delayed by s microbatches,
//                which fills most of the bubble: every stage keeps the activations of as many microbatches as
//                1f1b's first one, and for the delayed ones also the gradients of its layers.
//
// In every schedule the weight gradients of a chunk are added in the order of microbatches: the bits of a run
// do not depend on its schedule (DESIGN: "Lanes").
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace holdfast::parallel {

enum class ScheduleKind { gpipe, one_forward_one_backward, interleaved, zero_bubble };
const char* name_of(ScheduleKind kind);  // name in the table above
std::optional<ScheduleKind> schedule_kind_of(std::string_view name);

// A pipeline runs the microbatches of its lanes one lane after another, without draining between them. All
// pipelines of a run use the schedule for as many lanes as the run has waves (mesh.h). A pipeline that has
// no lane in the last wave leaves out the actions of that wave's microbatches: that never blocks, and the
// lanes of all pipelines are completed in the same order, the order in which their gradient buckets are
// exchanged.
struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_forward_one_backward;
  int stages = 1;
  int chunks = 1;  // per stage; more than 1 only when interleaved
  int microbatches_per_lane = 1;
  int waves = 1;
  int lanes = 1;  // of this pipeline: `waves`, or one less
  int microbatches() const { return lanes * microbatches_per_lane; }
  int parts() const { return stages * chunks; }
};

enum class Work {
  forward,
  backward,         // inputs and weights
  backward_input,   // inputs only: writes no gradient of a weight
  backward_weight,  // weights only, some time after backward_input
};

inline constexpr int no_stage = -1;

// One action of one stage. It waits for its message if it has a source, runs, and sends its result if it has
// a target; it does not wait for the target to receive. A forward's message and result are activations, those
// of backward and backward_input gradients of activations. A source or target that is the stage itself (a
// pipeline of one stage with several chunks) is no message: the result stays in its buffer.
struct Action {
  Work work = Work::forward;
  int chunk = 0;
  int microbatch = 0;
  int source = no_stage;
  int target = no_stage;
  // True if this action completes the lane's weight gradients of this chunk: its buckets may leave. The next
  // action that adds to them belongs to the next lane and starts from zero.
  bool completes_lane = false;
  bool operator==(const Action&) const = default;
};

// The actions of all stages. Running only the forwards of a schedule never blocks either.
struct Schedule {
  ScheduleShape shape;
  std::vector<std::vector<Action>> actions;  // [stage]
};

// Makes the schedule of a shape whose numbers are at least 1, with lanes = waves or waves - 1, and one chunk
// unless interleaved (layout.h).
Schedule make_schedule(const ScheduleShape& shape);
std::vector<Action> actions_of_stage(const ScheduleShape& shape, int stage);

// Returns the maximum number of microbatches whose activations a stage keeps at once, all chunks together:
// from the start of a forward to the end of its backward (backward_weight where it is split). This is the
// bound that the kind promises: 2 (p - s - 1) + (v - 1) g + 1 for interleaved, where g is the size of the
// first group, min(m, p) for zero_bubble, min(m, p - s) for 1f1b and m for gpipe.
int activations_in_flight_max(const ScheduleShape& shape, int stage);

// Returns the number of activation buffers that the actions need, by chunk. Forwards and backwards of a chunk
// are in the order of microbatches, so microbatch i may use buffer i mod this number.
std::vector<int> activation_buffers(const ScheduleShape& shape, const std::vector<Action>& actions);

// Returns the number of microbatches that the actions hold between the start of backward_input and the end of
// backward_weight, for which a stage keeps the gradients that the latter reads, by chunk; 0 where backwards are
// whole. Both parts are in the order of microbatches, so microbatch i may use buffer i mod this number.
std::vector<int> weight_gradient_buffers(const ScheduleShape& shape, const std::vector<Action>& actions);

}  // namespace holdfast::parallel
