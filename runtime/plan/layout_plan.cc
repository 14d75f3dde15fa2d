#include "runtime/plan/layout_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/optim/update_rule.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"

namespace holdfast::plan {
namespace {

constexpr int replicas_planned_max = 4;

// Returns the seconds of the ops that `launch` launches.
template <typename Launch>
double price(PlannedDevice& device, const OpPrices& prices, const Launch& launch) {
  double seconds = 0.0;
  device.observe([&](OpId id, const void* arguments) { seconds += prices.seconds(id, arguments); });
  launch();
  device.observe({});
  return seconds;
}

// A lane's first microbatch writes gradients, the others add to them.
PartTime price_part(Worker& worker, int chunk, PlannedDevice& device, const OpPrices& prices) {
  const auto microbatches = static_cast<double>(worker.workload().batch_shape.microbatches_per_lane);
  const TokenBatch tokens = worker.stage().tokens().at(0);
  const Model& model = worker.stage().model(chunk);
  // Nobody is at the other end, so nothing can go wrong there.
  const auto backward = [&](bool accumulate) {
    return price(device, prices, [&] {
      const bool follows_forward = worker.rank().mesh.shape().pipeline == 1;
      for (const BackwardPart part : model.backward_parts()) {
        HF_CHECK(model
                     .backward(device, tokens, 0, worker.stage().loss_sums().data(),
                               {.part = part, .accumulate = accumulate, .follows_forward = follows_forward})
                     .ok());
      }
    });
  };
  PartTime part;
  part.forward = price(device, prices, [&] { HF_CHECK(model.forward(device, tokens, 0).ok()); });
  part.backward = (backward(false) + (microbatches - 1.0) * backward(true)) / microbatches;
  return part;
}

// Every lane's part of what this rank owns is read and added to a sum that is read and written; a lane alone
// is only read, for the norm.
double price_sums(const BucketPlan& buckets, std::int64_t lanes, const OpPrices& prices) {
  const auto owned = static_cast<double>(buckets.accumulator_elements(0));
  const double passes = lanes == 1 ? 1.0 : 3.0 * static_cast<double>(lanes);
  return passes * owned * sizeof(float) / prices.memory_bytes_per_second();
}

double price_update(const BucketPlan& buckets, const Config& config, const OpPrices& prices) {
  BFloat16 copy;
  float average = 0;
  const OptimizerTensor shard{.ema = config.optimizer.ema > 0.0 ? &average : nullptr,
                              .copy = precision_of(config) == DType::bf16 ? &copy : nullptr,
                              .count = static_cast<std::int64_t>(buckets.shard_elements(0))};
  if (shard.count == 0) return 0.0;
  return optim::visit_update(config.optimizer, [&](auto update) {
    update.tensors = &shard;
    update.tensor_count = 1;
    return prices.seconds(update.id, &update);
  });
}

// Returns the share of the last bucket of a backward, which is the first that the next forward reads.
double last_bucket_share(const BucketPlan& buckets) {
  std::uint64_t all = 0, last = 0;
  for (int bucket = 0; bucket < buckets.local_count(); ++bucket) {
    last = 0;
    for (const BucketTensor& tensor : buckets.buckets()[static_cast<std::size_t>(bucket)].tensors) {
      last += tensor.elements();
    }
    all += last;
  }
  return all == 0 ? 0.0 : static_cast<double>(last) / static_cast<double>(all);
}

BucketPlan buckets_of(const Config& config, const Mesh& mesh, int stage) {
  const ModelSpec spec = make_model_spec(config);
  const std::vector<ModelPart> parts = parts_of_stage(spec, config, stage);
  return {backward_buckets(spec, parts, share_of(spec.tensor_lanes, 0, mesh.shape().tensor)),
          mesh.shape().data, gradient_slots(config, mesh.shape().data),
          static_cast<int>(config.parallel.lane_block)};
}

std::vector<int> replicas_to_plan(const Config& config, const Mesh& mesh, int stage) {
  const int replicas = mesh.shape().data;
  std::vector<int> result;
  if (replicas <= replicas_planned_max) {
    for (int replica = 0; replica < replicas; ++replica) result.push_back(replica);
    return result;
  }
  // The last wave may leave ranks without a lane, which hold less.
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), replicas);
  const BucketPlan buckets = buckets_of(config, mesh, stage);
  int largest = 0;
  for (int replica = 1; replica < lanes.lanes_in_wave(lanes.waves() - 1); ++replica) {
    if (buckets.accumulator_elements(replica) > buckets.accumulator_elements(largest)) largest = replica;
  }
  result = {0, largest, replicas - 1};
  result.erase(std::ranges::unique(result).begin(), result.end());
  return result;
}

std::vector<std::string> hosts_of(const PlannedMachine& machine, int ranks) {
  std::vector<std::string> hosts(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; machine.ranks_per_host > 0 && rank < hosts.size(); ++rank)
    hosts[rank] = std::to_string(rank / static_cast<std::size_t>(machine.ranks_per_host));
  return hosts;
}

Mesh mesh_on(const Config& config, int ranks, const PlannedMachine& machine) {
  return Mesh(mesh_of(config, ranks).shape(), hosts_of(machine, ranks));
}

// Returns each rank's buddy. Without --ranks-per-host all ranks are on one host, where replicas are kept only
// on request.
std::vector<int> buddies_on(const Config& config, const Mesh& mesh, const PlannedMachine& machine) {
  if (machine.ranks_per_host == 0 && config.checkpoint.replicas == "auto") return {};
  return replica_buddies(config, mesh, hosts_of(machine, mesh.shape().ranks()));
}

Result<void> check_hosts(const Config& config, int ranks, const PlannedMachine& machine) {
  const int tensor = static_cast<int>(config.parallel.tensor);
  const int on_host = machine.ranks_on_host(ranks);
  if (on_host % tensor == 0 || on_host == ranks) return {};
  return fail(
      ExitCode::config,
      "parallel.tensor = {} needs whole groups of {} ranks on every host, but --ranks-per-host is {}: "
      "lower parallel.tensor, or raise --ranks-per-host to a multiple of it",
      tensor, tensor, machine.ranks_per_host);
}

// All that the shapes of the ops of a run follow from, but for the parts of a stage.
std::string key_of(const Config& config) {
  return fmt::format("{} {} {} {} {} {} {}", config.training.microbatch_size,
                     config.training.microbatches_per_lane, config.training.recompute, config.parallel.tensor,
                     config.parallel.pipeline == 1, config.parallel.pipeline_schedule == "zero_bubble",
                     fmt::join(config.model.freeze, ", "));
}

// Parts of as many layers are alike, unless some layers are frozen.
std::string key_of(const ModelPart& part, const Config& config) {
  return fmt::format(", {} layers {} {} {}", part.layers(), part.has_embedding, part.has_head,
                     config.model.freeze.empty() ? 0 : part.first_layer);
}

// All layers need the same workspace, but for frozen ones and where kernels are chosen by layer.
std::string kernel_key_of(const std::vector<ModelPart>& parts, const Config& config) {
  const auto any = [&](const auto& has) { return std::ranges::any_of(parts, has); };
  const bool layers_are_alike =
      config.model.freeze.empty() && config.kernels.rules.empty() && config.kernels.shadows.empty();
  std::string key;
  for (const ModelPart& part : parts)
    key += layers_are_alike ? "" : fmt::format(" {}-{}", part.first_layer, part.end_layer);
  return fmt::format(", kernels{} {} {} {}", key,
                     any([](const ModelPart& part) { return part.layers() > 0; }),
                     any(&ModelPart::has_embedding), any(&ModelPart::has_head));
}

}  // namespace

Result<std::unique_ptr<PlannedWorker>> LayoutPlanner::worker_of(const Config& config, const Mesh& mesh,
                                                                int rank, const std::vector<int>& buddies,
                                                                Device* kernels) {
  ++counts_.ranks_planned;
  return PlannedWorker::make(env_, config, mesh, rank,
                             {.device = {.host_sees_memory = machine_.host_sees_memory, .kernels = kernels},
                              .buddies = buddies,
                              .with_nccl = machine_.with_nccl});
}

auto LayoutPlanner::ops_of(const Config& config, const Mesh& mesh, int stage) -> Result<StageOps> {
  const std::vector<ModelPart> of_stage = parts_of_stage(make_model_spec(config), config, stage);
  const std::string key = key_of(config), kernel_key = key + kernel_key_of(of_stage, config);
  const auto is_priced = [&](const ModelPart& part) { return parts_.contains(key + key_of(part, config)); };
  if (!std::ranges::all_of(of_stage, is_priced) || !kernel_bytes_.contains(kernel_key)) {
    const int rank = mesh.rank_at({.data = 0, .pipeline = stage, .tensor = 0});
    HF_TRY(const std::unique_ptr<PlannedWorker> planned, worker_of(config, mesh, rank, {}, machine_.kernels));
    Worker& worker = planned->worker();
    for (std::size_t chunk = 0; chunk < of_stage.size(); ++chunk) {
      if (is_priced(of_stage[chunk])) continue;
      const int index = static_cast<int>(chunk);
      parts_[key + key_of(of_stage[chunk], config)] = {
          .time = price_part(worker, index, planned->device(), prices()),
          .traffic = PartTraffic(worker, index)};
      ++counts_.parts_priced;
    }
    if (!kernel_bytes_.contains(kernel_key)) {
      HF_TRY_VOID(worker.prepare_kernels());
      kernel_bytes_[kernel_key] = planned->device().workspace_bytes();
    }
  }
  StageOps result{.kernel_bytes = kernel_bytes_[kernel_key]};
  for (const ModelPart& part : of_stage) {
    const PricedPart& priced = parts_[key + key_of(part, config)];
    result.parts.push_back(priced.time);
    result.traffic.push_back(priced.traffic);
  }
  return result;
}

Result<RankPlan> LayoutPlanner::plan_rank(const Config& config, const Mesh& mesh, int rank,
                                          const std::vector<int>& buddies) {
  HF_TRY(const StageOps stage, ops_of(config, mesh, mesh.coordinate_of(rank).pipeline));
  HF_TRY(const std::unique_ptr<PlannedWorker> of_rank, worker_of(config, mesh, rank, buddies, nullptr));
  Worker& worker = of_rank->worker();
  const MemoryPlan& memory = worker.memory_plan();
  RankPlan planned{
      .coordinate = worker.rank().coordinate,
      .parts = {worker.workload().parts.begin(), worker.workload().parts.end()},
      .bytes_by_kind = {memory.total_bytes(MemoryKind::device), memory.total_bytes(MemoryKind::host_visible)},
      .kernel_bytes = stage.kernel_bytes,
      .shared_bytes = worker.state_view().snapshots.shared_bytes(),
      .traffic = {}};
  for (std::size_t i = 0; i < memory_class_count; ++i) {
    planned.class_bytes[i] = memory.total_bytes(static_cast<MemoryClass>(i));
  }
  return planned;
}

Result<StageCosts> LayoutPlanner::costs_of(const Config& config, const Mesh& mesh, int stage) {
  HF_TRY(StageOps of_stage, ops_of(config, mesh, stage));
  const BucketPlan buckets = buckets_of(config, mesh, stage);
  const int rank = mesh.rank_at({.data = 0, .pipeline = stage, .tensor = 0});
  const double share = last_bucket_share(buckets);
  return StageCosts{.rank = rank,
                    .parts = std::move(of_stage.parts),
                    .sums = price_sums(buckets, config.parallel.lanes, prices()),
                    .update = price_update(buckets, config, prices()),
                    .traffic = step_traffic(env_, config, mesh, rank, of_stage.traffic),
                    .first_gather_share = share,
                    .last_reduction_share = share,
                    .snapshot_bytes = config.checkpoint.ram_every_steps == 0
                                          ? 0
                                          : buckets.shard_elements(0) * config.optimizer.kept_bytes() +
                                                buckets.master_elements(0) * sizeof(float)};
}

Result<StepEstimate> LayoutPlanner::estimate_on(const Config& config, const Mesh& mesh) {
  std::vector<StageCosts> stages;
  for (int stage = 0; stage < mesh.shape().pipeline; ++stage) {
    HF_TRY(StageCosts costs, costs_of(config, mesh, stage));
    stages.push_back(std::move(costs));
  }
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), mesh.shape().data);
  return estimate_step({.config = config, .mesh = mesh, .lanes = lanes, .stages = stages}, machine_);
}

bool LayoutPlanner::fits(const RankPlan& rank, int ranks) const {
  const std::optional<std::uint64_t> bytes = machine_.bytes_for_rank(ranks);
  return !bytes.has_value() || rank.needed_bytes(machine_) <= *bytes;
}

Result<std::optional<LayoutPlan>> LayoutPlanner::plan_until(const Config& config, int ranks,
                                                            bool ends_when_too_large) {
  HF_TRY_VOID(check_layout(config, ranks));
  HF_TRY_VOID(check_hosts(config, ranks, machine_));
  const Mesh mesh = mesh_on(config, ranks, machine_);
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), mesh.shape().data);
  LayoutPlan plan{.config = config, .shape = mesh.shape(), .waves = lanes.waves(), .ranks = {}, .time = {}};
  const std::vector<int> buddies = buddies_on(config, mesh, machine_);
  for (int stage = 0; stage < mesh.shape().pipeline; ++stage) {
    HF_TRY(const StageOps of_stage, ops_of(config, mesh, stage));
    for (const int replica : replicas_to_plan(config, mesh, stage)) {
      const int rank = mesh.rank_at({.data = replica, .pipeline = stage, .tensor = 0});
      HF_TRY(RankPlan planned, plan_rank(config, mesh, rank, buddies));
      if (ends_when_too_large && !fits(planned, mesh.shape().ranks())) return std::optional<LayoutPlan>();
      planned.traffic = step_traffic(env_, config, mesh, rank, of_stage.traffic);
      plan.ranks.push_back(std::move(planned));
    }
  }
  HF_TRY(const StepEstimate estimated, estimate_on(config, mesh));
  plan.bubble_share = estimated.bubble_share;
  if (machine_.prices != nullptr) plan.time = estimated.time;
  return std::optional(std::move(plan));
}

// Computes the times from models of one and of two layers: all further layers cost the same as the second.
// Where something is frozen, layers that are frozen as a whole are a lower bound.
Result<std::pair<double, double>> LayoutPlanner::model_seconds(const Config& config) {
  Config small = config;
  small.parallel.lanes = small.parallel.lane_block = 1;
  small.parallel.data = small.parallel.pipeline = small.parallel.pipeline_chunks = 1;
  small.parallel.pipeline_schedule = "1f1b";
  if (!small.model.freeze.empty()) small.model.freeze = {"embedding", "layers 0-1"};
  const Mesh mesh = mesh_of(small, static_cast<int>(config.parallel.tensor));
  std::array<double, 2> seconds{};
  for (const int layers : {1, 2}) {
    small.model.layers = layers;
    HF_TRY(const StageOps stage, ops_of(small, mesh, 0));
    seconds[static_cast<std::size_t>(layers - 1)] =
        stage.parts.front().forward + stage.parts.front().backward;
  }
  const double layer = seconds[1] - seconds[0];
  return std::pair(seconds[0] - layer, layer);
}

Result<LayoutPlan> LayoutPlanner::plan(const Config& config, int ranks) {
  HF_TRY(std::optional<LayoutPlan> plan, plan_until(config, ranks, /*ends_when_too_large=*/false));
  return std::move(*plan);
}

Result<std::optional<LayoutPlan>> LayoutPlanner::plan_if_it_fits(const Config& config, int ranks) {
  return plan_until(config, ranks, /*ends_when_too_large=*/true);
}

Result<bool> LayoutPlanner::first_rank_fits(const Config& config, int ranks) {
  HF_TRY_VOID(check_layout(config, ranks));
  HF_TRY_VOID(check_hosts(config, ranks, machine_));
  const Mesh mesh = mesh_on(config, ranks, machine_);
  HF_TRY(const RankPlan first, plan_rank(config, mesh, mesh.rank_at({}), {}));
  return fits(first, mesh.shape().ranks());
}

Result<std::uint64_t> LayoutPlanner::least_rank_bytes(const Config& config, int ranks) {
  HF_TRY_VOID(check_layout(config, ranks));
  const Mesh mesh = mesh_on(config, ranks, machine_);
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (int stage = 0; stage < mesh.shape().pipeline; ++stage) {
    for (const int replica : {0, mesh.shape().data - 1}) {
      const int rank = mesh.rank_at({.data = replica, .pipeline = stage, .tensor = 0});
      HF_TRY(const RankPlan planned, plan_rank(config, mesh, rank, {}));
      least = std::min(least, planned.needed_bytes(machine_));
    }
  }
  return least;
}

Result<StepEstimate> LayoutPlanner::estimate(const Config& config, int ranks) {
  HF_TRY_VOID(check_layout(config, ranks));
  HF_TRY_VOID(check_hosts(config, ranks, machine_));
  return estimate_on(config, mesh_on(config, ranks, machine_));
}

// The busiest stage has at least an equal share of the model.
Result<double> LayoutPlanner::min_seconds(const Config& config, int ranks) {
  HF_TRY_VOID(check_layout(config, ranks));
  HF_TRY_VOID(check_hosts(config, ranks, machine_));
  using EndsAndLayer = std::pair<double, double>;
  HF_TRY(const EndsAndLayer seconds, model_seconds(config));
  const double microbatch = seconds.first + seconds.second * static_cast<double>(config.model.layers);
  const auto replicas = ranks / config.parallel.pipeline / config.parallel.tensor;
  const auto waves = (config.parallel.lanes + replicas - 1) / replicas;
  const auto microbatches = static_cast<double>(waves * config.training.microbatches_per_lane);
  constexpr double rounding = 1.0 - 1e-9;
  return rounding * microbatch * microbatches / static_cast<double>(config.parallel.pipeline);
}

std::uint64_t RankPlan::needed_bytes(const PlannedMachine& machine) const {
  return bytes_by_kind[0] + (machine.host_sees_memory ? bytes_by_kind[1] + shared_bytes : 0) + kernel_bytes;
}

const RankPlan& LayoutPlan::largest(const PlannedMachine& machine) const {
  return *std::ranges::max_element(ranks, {},
                                   [&](const RankPlan& rank) { return rank.needed_bytes(machine); });
}

bool LayoutPlan::fits(const PlannedMachine& machine) const {
  const std::optional<std::uint64_t> bytes = machine.bytes_for_rank(shape.ranks());
  return !bytes.has_value() || largest(machine).needed_bytes(machine) <= *bytes;
}

// Replicas that were not planned count as the largest that was; of a tensor group all as the first, which
// also has what only one of them saves.
std::uint64_t LayoutPlan::shared_bytes() const {
  std::uint64_t bytes = 0;
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    std::uint64_t planned = 0, largest = 0;
    int replicas = 0;
    for (const RankPlan& rank : ranks) {
      if (rank.coordinate.pipeline != stage) continue;
      planned += rank.shared_bytes;
      largest = std::max(largest, rank.shared_bytes);
      ++replicas;
    }
    bytes += planned + largest * static_cast<std::uint64_t>(shape.data - replicas);
  }
  return bytes * static_cast<std::uint64_t>(shape.tensor);
}

std::uint64_t LayoutPlan::shared_bytes_of_host(const PlannedMachine& machine) const {
  const int on_host = machine.ranks_on_host(shape.ranks());
  if (on_host == shape.ranks()) return shared_bytes();
  std::uint64_t largest = 0;
  for (const RankPlan& rank : ranks) largest = std::max(largest, rank.shared_bytes);
  return largest * static_cast<std::uint64_t>(on_host);
}

PlannedMachine machine_of(const Config& config, int ranks) {
  const bool on_cpu = config.device == "cpu";
  return {.host_sees_memory = on_cpu,
          .with_nccl = !on_cpu && ranks > 1 && config.parallel.exchange != "host"};
}

std::uint64_t tokens_per_step(const Config& config) {
  const TrainingConfig& training = config.training;
  return static_cast<std::uint64_t>(config.parallel.lanes * training.microbatches_per_lane *
                                    training.microbatch_size * training.sequence_length);
}

std::optional<double> LayoutPlan::model_flops_utilization(const PlannedMachine& machine) const {
  if (!time.has_value() || machine.prices == nullptr) return std::nullopt;
  const int on_host = machine.ranks_on_host(shape.ranks());
  const double at_once = machine.ranks_at_once > 0 ? std::min(on_host, machine.ranks_at_once) : on_host;
  const double peak = machine.prices->flops_per_second() * shape.ranks() * at_once / on_host;
  const double flops = flops_per_token(make_model_spec(config), config.training.sequence_length) *
                       static_cast<double>(tokens_per_step());
  return peak > 0.0 ? std::optional(flops / peak / time->seconds()) : std::nullopt;
}

Result<LayoutPlan> plan_layout(Env& env, const Config& config, int ranks, const PlannedMachine& machine) {
  return LayoutPlanner(env, machine).plan(config, ranks);
}

}  // namespace holdfast::plan
