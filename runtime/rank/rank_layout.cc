#include "runtime/rank/rank_layout.h"

#include <fmt/core.h>

#include "parallel/pipeline/stage_split.h"

namespace holdfast::rank {

std::vector<ModelPart> parts_of_stage(const ModelSpec& spec, const Config& config, int stage) {
  const auto stages = static_cast<int>(config.parallel.pipeline);
  const auto chunks = static_cast<int>(config.parallel.pipeline_chunks);
  const std::int64_t length = config.training.sequence_length;
  // Frozen layers count like others, and adapters not at all: a run keeps its stages whatever it trains.
  ModelSpec trained = spec;
  trained.freeze = {};
  trained.lora = {};
  ModelSpec deeper = trained;
  ++deeper.layers;
  const double layer = flops_per_token(deeper, length) - flops_per_token(trained, length);
  const double head = flops_per_token(trained, length) - static_cast<double>(spec.layers) * layer;
  const StageSplit split =
      split_layers(static_cast<int>(spec.layers), stages, chunks, {.embedding = 0.0, .head = head / layer});
  std::vector<ModelPart> parts;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const PartLayers layers = split.of(stage, chunk);
    parts.push_back({.first_layer = layers.first,
                     .end_layer = layers.end(),
                     .has_embedding = split.has_embedding(stage, chunk),
                     .has_head = split.has_head(stage, chunk)});
  }
  return parts;
}

// A pipeline runs its lanes without draining between them. An interleaved pipeline cannot: a chunk finishes a
// lane while another chunk still computes it, but the gradients of both are sent together. A single stage has
// nothing to drain.
PipelineSchedule pipeline_schedule(const Config& config, const LaneSchedule& lanes, int data_rank) {
  const int lanes_here = static_cast<int>(lanes_of_rank(lanes, data_rank).size());
  const auto chunks = static_cast<int>(config.parallel.pipeline_chunks);
  const bool lane_by_lane = chunks > 1 || config.parallel.pipeline == 1;
  // A single stage gains nothing by keeping microbatches.
  const ScheduleKind kind = config.parallel.pipeline == 1
                                ? ScheduleKind::one_forward_one_backward
                                : schedule_kind_of(config.parallel.pipeline_schedule).value();
  return {.shape = {.kind = kind,
                    .stages = static_cast<int>(config.parallel.pipeline),
                    .chunks = chunks,
                    .microbatches_per_lane = static_cast<int>(config.training.microbatches_per_lane),
                    .waves = lane_by_lane ? 1 : lanes.waves(),
                    .lanes = lane_by_lane ? 1 : lanes_here},
          .runs = lane_by_lane ? lanes_here : 1};
}

StageSchedule stage_schedule(const Config& config, const LaneSchedule& lanes, int data_rank, int stage) {
  const PipelineSchedule whole = pipeline_schedule(config, lanes, data_rank);
  StageSchedule schedule;
  schedule.shape = whole.shape;
  schedule.actions = actions_of_stage(whole.shape, stage);
  schedule.activation_buffers = activation_buffers(whole.shape, schedule.actions);
  schedule.weight_gradient_buffers = weight_gradient_buffers(whole.shape, schedule.actions);
  schedule.runs = whole.runs;
  return schedule;
}

std::string why_gradients_are_whole(const Config& config, int data_ranks) {
  if (!config.optimizer.shard_gradients) return {};
  if (config.training.microbatches_per_lane > 1) {
    return fmt::format(
        "optimizer.shard_gradients saves nothing with training.microbatches_per_lane = {}: a lane's "
        "gradients all stay until its last microbatch is added to them",
        config.training.microbatches_per_lane);
  }
  if (data_ranks == 1) {
    return "optimizer.shard_gradients saves nothing without data parallelism: a rank that has all lanes owns "
           "all gradients";
  }
  return {};
}

int gradient_slots(const Config& config, int data_ranks) {
  // The head and the embedding write two gradients at once, while the others are being sent.
  constexpr int shared = 4;
  const bool shares = config.optimizer.shard_gradients && why_gradients_are_whole(config, data_ranks).empty();
  return shares ? shared : 0;
}

std::vector<int> lanes_of_rank(const LaneSchedule& lanes, int data_rank) {
  std::vector<int> result;
  for (int wave = 0; wave < lanes.waves(); ++wave) {
    if (const int lane = lanes.lane_of(wave, data_rank); lane >= 0) result.push_back(lane);
  }
  return result;
}

}  // namespace holdfast::rank
