#include "runtime/train/worker.h"

#include <fmt/core.h>

#include "parallel/comm/agreement.h"
#include "runtime/rank/device_loss.h"
#include "runtime/rank/watch.h"
#include "runtime/train/corruption.h"

namespace holdfast::train {

Worker::Worker(const WorkerInputs& inputs)
    : inputs_(inputs),
      workload_(inputs.rank.config, inputs.rank.mesh, inputs.rank.communicator.rank()),
      spans_(inputs.rank.env),
      gathering_([this] { return parts_ == nullptr ? Result<bool>(false) : parameter_gather().advance(); }),
      waiter_(Waiter(inputs.rank.env, inputs.rank.config.parallel.timeout_ms, inputs.rank.watch)
                  .with_flight(spans_)
                  .with_background(gathering_)),
      links_(inputs.rank.communicator, inputs_.rank.mesh, workload_.share,
             {.is_ring = inputs.rank.config.parallel.pipeline_chunks > 1,
              .has_tied_ends = workload_.spec.tied_head}),
      host_access_(inputs.rank.device),
      rank_{inputs.rank.with(links_.communicator()),
            inputs.rank.mesh.coordinate_of(inputs.rank.communicator.rank()),
            workload_.spec,
            workload_.buckets,
            waiter_,
            spans_,
            host_access_,
            links_},
      snapshots_(rank_, inputs.buddies,
                 inputs.process_memory == nullptr ? nullptr : &inputs.process_memory->slots) {
  if (rank_.watch == nullptr) return;
  // A GPU's time stamps use events of its queue, so the host's clock is used there.
  spans_.keep_flight(rank_.watch->ring(), rank_.watch->ring_count(), rank_.device.host_sees_memory());
}

// Ends first the NCCL operations with a peer that died, which occupy the GPU, and then waits for the device.
Worker::~Worker() {
  if (rank_.communicator.abandoned()) links_.abort_nccl("another rank is gone");
  rank_.device.synchronize();
  links_.abort_nccl("the run has ended");
}

Result<std::unique_ptr<Worker>> Worker::create(const WorkerInputs& inputs) {
  std::unique_ptr<Worker> worker(new Worker(inputs));
  if (inputs.nccl != nullptr && inputs.connects_beside) {
    worker->links_.connect_nccl_beside(*inputs.nccl, inputs.rank.env, worker->nccl_options());
  } else if (inputs.nccl != nullptr) {
    HF_TRY_VOID(worker->links_.connect_nccl(*inputs.nccl, inputs.rank.env, worker->nccl_options()));
  }
  worker->reserve();
  HF_TRY_VOID(worker->agree_it_fits());
  HF_TRY_VOID(worker->allocate());
  HF_TRY_VOID(worker->prepare_kernels());
  worker->links_.connect_tensor_group(worker->rank_.device, worker->waiter_);
  if (inputs.rank.faults.armed()) worker->connect_faults();
  return worker;
}

void Worker::connect_faults() {
  rank_.faults.connect_memory(
      [this](const Corruption& corruption) { return corrupt(corruption, *parts_, *lane_runner_); });
  rank_.faults.connect_rate([this](double factor) { optimizer().scale_next_rate(factor); });
}

Result<std::unique_ptr<Worker>> Worker::plan(const WorkerInputs& inputs, bool with_nccl) {
  std::unique_ptr<Worker> worker(new Worker(inputs));
  if (with_nccl) worker->links_.plan_with_nccl();
  worker->reserve();
  HF_TRY_VOID(worker->allocate());
  worker->links_.connect_tensor_group(worker->rank_.device, worker->waiter_);
  return worker;
}

NcclOptions Worker::nccl_options() {
  return {.device = inputs_.gpu,
          .epoch = inputs_.epoch,
          .connect_timeout_ms = waiter_.timeout_ms(),
          .die = [this](const std::string& sentence) {
            end_without_device({rank_.env, rank_.communicator, rank_.config.run.directory, state_.step},
                               {.code = ExitCode::communication, .message = sentence});
          }};
}

Result<std::string> Worker::advance_connections() {
  if (!links_.connects_nccl()) return std::string();
  const Result<bool> is_connected = links_.advance_nccl();
  if (!is_connected.ok() && rank_.communicator.abandoned()) return is_connected.error();
  if (!is_connected.ok())
    return fmt::format("{}; the run goes on through pinned host memory", is_connected.error().message);
  if (!*is_connected) return std::string();
  HF_TRY_VOID(parameter_gather().finish());
  links_.use_nccl();
  links_.connect_tensor_group(rank_.device, waiter_);  // which may order its exchanges by events now
  return fmt::format("NCCL is connected again: what the ranks exchange goes through it from step {} on",
                     state_.step + 1);
}

// Reserves all memory of the worker. It needs neither the peers nor memory, so a planner comes to the same
// plan.
void Worker::reserve() {
  MemoryPlan& plan = memory_.plan;
  const BucketPlan& buckets = workload_.buckets;
  parts_.reset(new StepParts{.rank = rank_,
                             .state = state_,
                             .stage = StageModel(workload_, rank_, plan),
                             .update = reserve_update(),
                             .checks = {.lanes = LaneDigests(buckets, rank_.device, plan),
                                        .parameters = ParameterDigests({.buckets = buckets,
                                                                        .device = rank_.device,
                                                                        .shape = rank_.mesh.shape(),
                                                                        .coordinate = rank_.coordinate,
                                                                        .dtype = workload_.spec.dtype},
                                                                       plan)}});
  auto& [optimizer, reduction, gather] = parts_->update;
  reduction.record(spans_);
  gather.record(spans_);
  reduction.use_faults(rank_.faults);
  links_.tensor_group().record(spans_);
  if (Transport* const tied = links_.pipeline().tied(); tied != nullptr) gather.connect_tied(*tied);
  lane_runner_ = std::make_unique<LaneRunner>(*parts_, ledger());
  snapshots_.reserve(plan);
}

// The buffers between host, device and other ranks come first.
ShardedUpdate Worker::reserve_update() {
  MemoryPlan& plan = memory_.plan;
  host_access_.reserve(plan);
  links_.reserve(workload_.link_bytes(rank_.coordinate.data), rank_.device, plan);
  const BucketPlan& buckets = workload_.buckets;
  const DType dtype = workload_.spec.dtype;
  const bool checks_state = rank_.config.verdict.preset == "guard";
  return {.optimizer = ShardedOptimizer(buckets, rank_.coordinate.data, dtype, rank_.config.optimizer, plan,
                                        checks_state, rank_.config.run.seed),
          .reduction = LaneReduction(buckets, workload_.exchange, links_.data(), rank_.device, waiter_, plan,
                                     /*digests_sums=*/checks_state),
          .gather = ParameterGather(buckets, workload_.exchange, links_.data(), rank_.device, waiter_,
                                    bytes_of(dtype))};
}

Result<void> Worker::agree_it_fits() {
  const bool is_host = rank_.device.host_sees_memory();
  const std::uint64_t planned =
      is_host ? memory_.plan.total_bytes() : memory_.plan.total_bytes(MemoryKind::host_visible);
  std::uint64_t kept = 0;
  ProcessMemory* const memory = inputs_.process_memory;
  if (memory != nullptr) kept = is_host ? memory->kept.bytes() : memory->kept.bytes(MemoryKind::host_visible);
  const Result<void> agreed = snapshots_.agree(planned, kept, inputs_.memory);
  if (memory != nullptr) memory->decision = snapshots_.decision();
  if (agreed.ok() || agreed.error().code != ExitCode::does_not_fit) return agreed;
  // The plan may be too large for this host alone; then the table of this host says which part is.
  const std::optional<MemoryRoom> room = memory_room(rank_.env);
  if (!room.has_value()) return agreed;
  const Result<void> fits =
      check_fits(memory_.plan, room->total_bytes, rank_.ranks_on_host, rank_.device.host_sees_memory());
  const Result<void> all = agree_on_outcome(rank_.communicator, waiter_, fits, rank_.env.host_name());
  return all.ok() ? agreed : all;
}

// Makes the arena from pages of the epoch before, where there are any.
Result<MemoryArena> Worker::make_arena() {
  if (inputs_.process_memory == nullptr) return allocate_memory(rank_.device, memory_.plan);
  const auto fresh = [this](MemoryKind place, std::uint64_t bytes) {
    return rank_.device.allocate(place, bytes);
  };
  const KeptMemoryOptions options{.device_is_host = rank_.device.host_sees_memory(),
                                  .threads = rank_.host_threads(),
                                  .progress = [this] { mark(rank_.watch); }};
  return MemoryArena::allocate(memory_.plan, inputs_.process_memory->kept.source(options, fresh));
}

Result<void> Worker::allocate() {
  HF_TRY(memory_.arena, make_arena());
  snapshots_.bind(memory_.arena);
  host_access_.bind(memory_.arena);
  links_.bind(memory_.arena);
  StageModel& stage = parts_->stage;
  auto& [optimizer, reduction, gather] = parts_->update;
  stage.bind(rank_.device, memory_.arena, links_.tensor_group(), gather);
  reduction.bind(memory_.arena, stage.gradients());
  checks().lanes.bind(memory_.arena, stage.gradients());
  gather.bind(stage.parameters());
  optimizer.bind(rank_.device, memory_.arena, stage.parameters(), reduction.reduced());
  checks().parameters.bind(memory_.arena, stage.parameters());
  const ProcessMemory* const memory = inputs_.process_memory;
  state_view_.emplace(StateView{.rank = rank_,
                                .state = state_,
                                .optimizer = optimizer,
                                .parameter_gather = gather,
                                .snapshots = snapshots_,
                                .is_zero = memory == nullptr || memory->kept.reused_bytes() == 0});
  return {};
}

Result<void> Worker::prepare_kernels() {
  rank_.device.begin_planning();
  rank_.device.inspect_with(&checks().products);
  const Result<void> launched = stage().launch_all_kinds(rank_.device);
  rank_.device.inspect_with(nullptr);
  HF_TRY_VOID(launched);
  if (workload_.audit_every_steps > 0) checks().products.plan(rank_.device);
  optimizer().launch_update(rank_.device, {});
  optimizer().launch_publish(rank_.device);
  for (int bucket = 0; bucket < workload_.buckets.local_count(); ++bucket)
    checks().lanes.launch(LaneDigests::Of::owner, bucket);
  reduction().plan_digests();
  checks().parameters.launch_all_kinds();
  StepChecks::plan(rank_.device);
  optimizer().forget_digests();  // nothing has run
  return rank_.device.end_planning();
}

std::unique_ptr<DataLoader> Worker::loader_of_lane(int lane) const {
  return std::make_unique<DataLoader>(rank_.env, inputs_.data, rank_.config.run.seed, workload_.batch_shape,
                                      std::vector<int>{lane}, state_.data_cursor, workload_.spec.vocabulary,
                                      rank_.config.data.prefetch_microbatches, &rank_.faults);
}

Result<void> Worker::start_loader() {
  if (!state_.first_step.has_value()) {
    state_.first_step = state_.step;
    position_.begin(state_, workload_.batch_shape.samples_per_step());
    std::optional<std::uint64_t>& verified = own_verified_step();
    verified = std::min(verified.value_or(state_.step), state_.step);
  }
  parts_->loader = std::make_unique<DataLoader>(
      rank_.env, inputs_.data, rank_.config.run.seed, workload_.batch_shape, workload_.rank_lanes,
      state_.data_cursor, workload_.spec.vocabulary, rank_.config.data.prefetch_microbatches, &rank_.faults);
  if (inputs_.ledger != nullptr) inputs_.ledger->begin();
  return parts_->loader->begun();
}

}  // namespace holdfast::train
