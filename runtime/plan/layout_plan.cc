#include "runtime/plan/layout_plan.h"

#include <algorithm>

#include "parallel/pipeline/schedule_time.h"
#include "runtime/train/planned_rank.h"
#include "runtime/train/rank_layout.h"
#include "runtime/train/worker.h"

namespace holdfast {
namespace {

constexpr int replicas_shown_max = 16;

// Of one microbatch through one part of a stage.
struct PartTime {
  double forward = 0.0, backward = 0.0;
};

struct PlannedSeat {
  SeatPlan plan;
  std::vector<PartTime> parts = {};  // by chunk; of the first replica
  double sums = 0.0, update = 0.0;
};

std::vector<int> replicas_to_plan(int replicas) {
  std::vector<int> result;
  for (int replica = 0; replica < replicas; ++replica) {
    const bool is_sample = replica == 0 || replica == replicas / 2 || replica + 1 == replicas;
    if (replicas <= replicas_shown_max || is_sample) result.push_back(replica);
  }
  return result;
}

// Of what `launch` launches.
template <typename Launch>
double price(PlannedDevice& device, const OpPrices& prices, const Launch& launch) {
  double seconds = 0.0;
  device.observe([&](OpId id, const void* arguments) { seconds += prices.seconds(id, arguments); });
  launch();
  device.observe({});
  return seconds;
}

// A lane's first microbatch writes gradients, the others add to them.
std::vector<PartTime> price_parts(Worker& worker, PlannedDevice& device, const OpPrices& prices) {
  const auto microbatches = static_cast<double>(worker.batch_shape().microbatches_per_lane);
  const TokenBatch tokens = worker.tokens().at(0);
  std::vector<PartTime> parts;
  for (int chunk = 0; chunk < static_cast<int>(worker.parts().size()); ++chunk) {
    const Model& model = worker.model(chunk);
    // Nobody is at the other end, so nothing can go wrong there.
    const auto backward = [&](bool accumulate) {
      return price(device, prices, [&] {
        const bool follows_forward = worker.mesh().shape().pipeline == 1;
        for (const BackwardPart part : model.backward_parts()) {
          HF_CHECK(model
                       .backward(device, tokens, 0, worker.loss_sums().data(),
                                 {.part = part, .accumulate = accumulate, .follows_forward = follows_forward})
                       .ok());
        }
      });
    };
    PartTime part;
    part.forward = price(device, prices, [&] { HF_CHECK(model.forward(device, tokens, 0).ok()); });
    part.backward = (backward(false) + (microbatches - 1.0) * backward(true)) / microbatches;
    parts.push_back(part);
  }
  return parts;
}

// Every lane's part of what this rank owns is read and added to a sum that is read and written; a lane alone
// is only read, for the norm.
double price_sums(const Worker& worker, const OpPrices& prices) {
  const auto owned = static_cast<double>(worker.buckets().accumulator_elements(worker.seat().data));
  const int lanes = worker.lanes().lanes();
  const double passes = lanes == 1 ? 1.0 : 3.0 * lanes;
  return passes * owned * sizeof(float) / prices.memory_bytes_per_second();
}

double price_update(const Worker& worker, const OpPrices& prices) {
  BFloat16 copy;
  const AdamWTensor shard{
      .copy = worker.spec().dtype == DType::bf16 ? &copy : nullptr,
      .count = static_cast<std::int64_t>(worker.buckets().shard_elements(worker.seat().data))};
  const AdamW update{.tensors = &shard, .tensor_count = 1};
  return shard.count == 0 ? 0.0 : prices.seconds(AdamW::id, &update);
}

// Where the ranks will be is not known: only replicas that are asked for are planned.
std::vector<std::string> one_host(const Mesh& mesh) {
  return std::vector<std::string>(static_cast<std::size_t>(mesh.shape().ranks()));
}

Result<PlannedSeat> plan_seat(Env& env, const Config& config, const Mesh& mesh, int rank,
                              const PlannedMachine& machine, const OpPrices& prices) {
  FaultPoints faults;
  AbsentPeers peers(rank, mesh.shape().ranks());
  std::unique_ptr<Device> kernels;
  if (machine.make_kernels) {
    HF_TRY(kernels, machine.make_kernels());
  }
  PlannedDevice device({.host_sees_memory = machine.host_sees_memory, .kernels = kernels.get()});
  HF_TRY(const std::unique_ptr<Worker> worker,
         Worker::plan({.env = env,
                       .faults = faults,
                       .communicator = peers,
                       .device = device,
                       .config = config,
                       .mesh = mesh,
                       .buddies = replica_buddies(config, mesh, one_host(mesh)),
                       .data = nullptr},
                      machine.with_nccl));
  HF_TRY_VOID(worker->prepare_kernels());
  const MemoryPlan& memory = worker->memory_plan();
  PlannedSeat seat{.plan = {.seat = worker->seat(),
                            .parts = {worker->parts().begin(), worker->parts().end()},
                            .place_bytes = {memory.total_bytes(MemoryPlace::device),
                                            memory.total_bytes(MemoryPlace::host_visible)},
                            .kernel_bytes = device.workspace_bytes(),
                            .shared_bytes = worker->shared_snapshot_bytes(),
                            .traffic = step_traffic(config, mesh, rank)}};
  for (std::size_t i = 0; i < memory_class_count; ++i) {
    seat.plan.class_bytes[i] = memory.total_bytes(static_cast<MemoryClass>(i));
  }
  if (worker->seat().data == 0) seat.parts = price_parts(*worker, device, prices);
  seat.sums = price_sums(*worker, prices);
  seat.update = price_update(*worker, prices);
  return seat;
}

ScheduleTime time_of_schedule(const PipelineSchedule& schedule, const std::vector<PlannedSeat>& first_replica,
                              double transfer) {
  std::vector<PartDurations> parts(static_cast<std::size_t>(schedule.shape.parts()));
  for (std::size_t stage = 0; stage < first_replica.size(); ++stage) {
    for (std::size_t chunk = 0; chunk < first_replica[stage].parts.size(); ++chunk) {
      const PartTime& part = first_replica[stage].parts[chunk];
      parts[chunk * first_replica.size() + stage] = {.forward = part.forward,
                                                     .backward_input = part.backward / 2.0,
                                                     .backward_weight = part.backward / 2.0};
    }
  }
  return schedule_time(make_schedule(schedule.shape), parts, transfer);
}

// Of all replicas and stages.
double busy_seconds(const LayoutPlan& plan, const std::vector<PlannedSeat>& first_replica) {
  double microbatch = 0.0;
  for (const PlannedSeat& stage : first_replica) {
    for (const PartTime& part : stage.parts) microbatch += part.forward + part.backward;
  }
  const Config& config = plan.config;
  return microbatch * static_cast<double>(config.parallel.lanes * config.training.microbatches_per_lane *
                                          plan.shape.tensor);
}

// `duration`: of the schedule of the first replica.
StepTime time_of_step(const LayoutPlan& plan, const std::vector<PlannedSeat>& first_replica,
                      const ScheduleTime& once, int runs, const PlannedMachine& machine) {
  StepTime time;
  const double duration = once.duration * runs;
  time.bubble = duration * *std::ranges::min_element(once.bubble_shares);
  time.compute = duration - time.bubble;
  double turns = 1.0;
  if (machine.ranks_at_once > 0) {
    turns = std::max(1.0, static_cast<double>(plan.shape.seats()) / machine.ranks_at_once);
    time.waiting = std::max(0.0, busy_seconds(plan, first_replica) / machine.ranks_at_once - duration);
  }
  for (const PlannedSeat& seat : first_replica) {
    time.sums = std::max(time.sums, seat.sums * turns);
    time.update = std::max(time.update, seat.update * turns);
  }
  if (!machine.link_bytes_per_second.has_value()) return time;
  std::uint64_t bytes = 0;
  for (const SeatPlan& seat : plan.seats) bytes = std::max(bytes, seat.traffic.all().bytes_received);
  time.communication = static_cast<double>(bytes) / *machine.link_bytes_per_second * turns;
  return time;
}

}  // namespace

std::optional<std::uint64_t> PlannedMachine::bytes_for_rank(int ranks) const {
  if (rank_bytes.has_value() || !host_bytes.has_value()) return rank_bytes;
  return *host_bytes / static_cast<std::uint64_t>(ranks);
}

std::uint64_t SeatPlan::needed_bytes(const PlannedMachine& machine) const {
  return place_bytes[0] + (machine.host_sees_memory ? place_bytes[1] + shared_bytes : 0) + kernel_bytes;
}

const SeatPlan& LayoutPlan::largest(const PlannedMachine& machine) const {
  return *std::ranges::max_element(seats, {},
                                   [&](const SeatPlan& seat) { return seat.needed_bytes(machine); });
}

bool LayoutPlan::fits(const PlannedMachine& machine) const {
  const std::optional<std::uint64_t> bytes = machine.bytes_for_rank(shape.seats());
  return !bytes.has_value() || largest(machine).needed_bytes(machine) <= *bytes;
}

// Replicas that were not planned count as the largest that was; of a tensor group all as the first, which
// also has what only one of them saves.
std::uint64_t LayoutPlan::shared_bytes() const {
  std::uint64_t bytes = 0;
  for (int stage = 0; stage < shape.pipeline; ++stage) {
    std::uint64_t planned = 0, largest = 0;
    int replicas = 0;
    for (const SeatPlan& seat : seats) {
      if (seat.seat.pipeline != stage) continue;
      planned += seat.shared_bytes;
      largest = std::max(largest, seat.shared_bytes);
      ++replicas;
    }
    bytes += planned + largest * static_cast<std::uint64_t>(shape.data - replicas);
  }
  return bytes * static_cast<std::uint64_t>(shape.tensor);
}

std::uint64_t LayoutPlan::tokens_per_step() const {
  const TrainingConfig& training = config.training;
  return static_cast<std::uint64_t>(config.parallel.lanes * training.microbatches_per_lane *
                                    training.microbatch_size * training.sequence_length);
}

Result<LayoutPlan> plan_layout(Env& env, const Config& config, int ranks, const PlannedMachine& machine) {
  HF_TRY_VOID(check_layout(config, ranks));
  // Without prices the bubble is that of the FLOPs.
  const PeakPrices one_flop_per_second(1.0, 1e30, {});
  const OpPrices& prices = machine.prices != nullptr ? *machine.prices : one_flop_per_second;
  const Mesh mesh = mesh_of(config, ranks);
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), mesh.shape().data);
  LayoutPlan plan{.config = config, .shape = mesh.shape(), .waves = lanes.waves(), .seats = {}, .time = {}};
  std::vector<PlannedSeat> first_replica;
  for (int stage = 0; stage < mesh.shape().pipeline; ++stage) {
    for (const int replica : replicas_to_plan(mesh.shape().data)) {
      const int rank = mesh.rank_at({.data = replica, .pipeline = stage, .tensor = 0});
      HF_TRY(PlannedSeat seat, plan_seat(env, config, mesh, rank, machine, prices));
      plan.seats.push_back(seat.plan);
      if (replica == 0) first_replica.push_back(std::move(seat));
    }
  }
  const PipelineSchedule schedule = pipeline_schedule(config, lanes, /*data_rank=*/0);
  const std::int64_t boundary = config.training.microbatch_size * config.training.sequence_length *
                                config.model.width / config.parallel.tensor;
  const double boundary_bytes =
      static_cast<double>(boundary) * static_cast<double>(bytes_of(precision_of(config)));
  const bool has_link = machine.prices != nullptr && machine.link_bytes_per_second.has_value();
  const ScheduleTime once = time_of_schedule(
      schedule, first_replica, has_link ? boundary_bytes / *machine.link_bytes_per_second : 0.0);
  plan.bubble_share = once.bubble_share();
  if (machine.prices != nullptr) {
    plan.time = time_of_step(plan, first_replica, once, schedule.runs, machine);
  }
  return plan;
}

}  // namespace holdfast
