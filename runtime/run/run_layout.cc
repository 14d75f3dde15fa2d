#include "runtime/run/run_layout.h"

#include <fmt/core.h>

#include <algorithm>

#include "parallel/group/buddies.h"
#include "runtime/config/loader.h"

namespace holdfast::run {
namespace {

Layout layout_of(const Config& config, int ranks, std::int64_t spares = 0) {
  const ParallelConfig& parallel = config.parallel;
  return {.ranks = ranks,
          .data = parallel.data,
          .pipeline = parallel.pipeline,
          .tensor = parallel.tensor,
          .spares = spares,
          .schedule = schedule_kind_of(parallel.pipeline_schedule).value(),
          .chunks = parallel.pipeline_chunks};
}

LayoutFacts layout_facts(const Config& config) {
  const ModelConfig& model = config.model;
  return {.layers = model.layers,
          .heads = model.heads,
          .kv_heads = model.kv_heads,
          .feed_forward = model.feed_forward,
          .vocabulary = padded_vocabulary(model),
          .sequence_length = config.training.sequence_length,
          .lanes = config.parallel.lanes,
          .lane_block = config.parallel.lane_block,
          .tensor_lanes = config.parallel.tensor_lanes};
}

}  // namespace

Result<void> check_layout(const Config& config, int ranks, std::int64_t spares) {
  std::string sentences;
  for (const LayoutProblem& problem :
       layout_problems(layout_of(config, ranks, spares), layout_facts(config))) {
    if (!sentences.empty()) sentences += "\n";
    sentences += problem.sentence;
  }
  // The list of actions of a stage is held in memory, which limits the microbatches.
  constexpr std::int64_t microbatches_max = 1 << 20;
  const std::int64_t microbatches = config.parallel.lanes * config.training.microbatches_per_lane;
  if (sentences.empty() && config.parallel.pipeline > 1 && microbatches > microbatches_max) {
    sentences = fmt::format(
        "parallel.lanes x training.microbatches_per_lane = {} x {} = {} microbatches in a step, of which a "
        "pipeline takes at most {}: raise training.microbatch_size instead",
        config.parallel.lanes, config.training.microbatches_per_lane, microbatches, microbatches_max);
  }
  if (sentences.empty()) return {};
  return fail(ExitCode::config, "{}", sentences);
}

Mesh mesh_of(const Config& config, int ranks) {
  return Mesh(mesh_shape(layout_of(config, ranks)));
}

Result<Mesh> mesh_of(const Config& config, std::span<const std::string> host_of_rank) {
  const auto ranks = static_cast<int>(host_of_rank.size());
  return Mesh::placed(mesh_shape(layout_of(config, ranks, config.elastic.spares)), host_of_rank);
}

AssignmentRequest assignment_request(const Config& config, int launched_ranks) {
  const MeshShape shape = mesh_shape(layout_of(config, launched_ranks, config.elastic.spares));
  const auto least = static_cast<int>(std::min<std::int64_t>(config.elastic.min_data_parallel, shape.data));
  return {.data_max = shape.data, .data_min = least, .pipeline = shape.pipeline, .tensor = shape.tensor};
}

std::vector<int> replica_buddies(const Config& config, const Mesh& mesh,
                                 std::span<const std::string> host_of_rank) {
  const std::string& replicas = config.checkpoint.replicas;
  if (config.checkpoint.ram_every_steps == 0 || replicas == "off" || mesh.shape().data == 1) return {};
  std::vector<int> buddies = buddies_of(mesh, host_of_rank);
  if (replicas == "auto" && !any_crosses_hosts(buddies, host_of_rank)) return {};
  return buddies;
}

}  // namespace holdfast::run
