#include "runtime/train/worker.h"

#include <span>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/rank/device_loss.h"
#include "runtime/rank/watch.h"
#include "runtime/train/corruption.h"

namespace holdfast::train {

Worker::Worker(const WorkerInputs& inputs)
    : inputs_(inputs),
      workload_(inputs.config, inputs_.mesh, inputs.communicator.rank()),
      spans_(inputs.env),
      waiter_(Waiter(inputs.env, inputs.config.parallel.timeout_ms, inputs.watch).with_flight(spans_)),
      links_(
          inputs.communicator, inputs_.mesh, workload_.share,
          {.is_ring = inputs.config.parallel.pipeline_chunks > 1, .has_tied_ends = workload_.spec.tied_head}),
      rank_{.env = inputs.env,
            .faults = inputs.faults,
            .communicator = links_.communicator(),
            .waiter = waiter_,
            .device = inputs.device,
            .config = inputs.config,
            .mesh = inputs_.mesh,
            .coordinate = inputs_.mesh.coordinate_of(inputs.communicator.rank()),
            .watch = inputs.watch,
            .spans = spans_,
            .ranks_on_host = inputs.ranks_on_host,
            .secret = inputs.secret,
            .hardware = inputs.hardware,
            .hardware_name = inputs.hardware_name},
      snapshots_(rank_, workload_.buckets, inputs.buddies, inputs.slots) {
  if (inputs.watch == nullptr) return;
  // A GPU's time stamps use events of its queue, so the host's clock is used there.
  spans_.keep_flight(inputs.watch->ring(), inputs.watch->ring_count(), inputs.device.host_sees_memory());
}

// Ends first the NCCL operations with a peer that died, which occupy the GPU, and then waits for the device.
Worker::~Worker() {
  if (rank_.communicator.abandoned()) links_.abort_nccl("another rank is gone");
  rank_.device.synchronize();
  links_.abort_nccl("the run has ended");
}

Result<std::unique_ptr<Worker>> Worker::create(const WorkerInputs& inputs) {
  std::unique_ptr<Worker> worker(new Worker(inputs));
  if (inputs.nccl != nullptr) HF_TRY_VOID(worker->connect_nccl());
  worker->reserve();
  HF_TRY_VOID(worker->agree_it_fits());
  HF_TRY_VOID(worker->allocate());
  HF_TRY_VOID(worker->prepare_kernels());
  worker->links_.connect_tensor_group(worker->waiter_);
  if (inputs.faults.armed()) worker->connect_faults();
  return worker;
}

void Worker::connect_faults() {
  rank_.faults.connect_memory([this](const Corruption& corruption) {
    return corrupt(corruption, {.workload = workload_,
                                .stage = *stage_,
                                .lanes = *lane_runner_,
                                .optimizer = update_->optimizer,
                                .reduction = update_->reduction,
                                .gather = update_->gather,
                                .access = *memory_.host_access,
                                .state = state_});
  });
  rank_.faults.connect_rate([this](double factor) { update_->optimizer.scale_next_rate(factor); });
}

Result<std::unique_ptr<Worker>> Worker::plan(const WorkerInputs& inputs, bool with_nccl) {
  std::unique_ptr<Worker> worker(new Worker(inputs));
  if (with_nccl) worker->links_.plan_with_nccl();
  worker->reserve();
  HF_TRY_VOID(worker->allocate());
  worker->links_.connect_tensor_group(worker->waiter_);
  return worker;
}

Result<void> Worker::connect_nccl() {
  return links_.connect_nccl(*inputs_.nccl, rank_.env,
                             {.device = inputs_.gpu,
                              .epoch = inputs_.epoch,
                              .connect_timeout_ms = waiter_.timeout_ms(),
                              .die = [this](const std::string& sentence) {
                                end_without_device(
                                    {rank_.env, rank_.communicator, rank_.config.run.directory, state_.step},
                                    {.code = ExitCode::communication, .message = sentence});
                              }});
}

// Reserves all memory of the worker. It needs neither the peers nor memory, so a planner comes to the same
// plan.
void Worker::reserve() {
  MemoryPlan& plan = memory_.plan;
  stage_ = std::make_unique<StageModel>(workload_, rank_, plan);
  memory_.host_access.emplace(rank_.device, plan);
  links_.reserve(workload_.link_bytes(rank_.coordinate.data), rank_.device, plan);
  const BucketPlan& buckets = workload_.buckets;
  const DType dtype = workload_.spec.dtype;
  const bool checks_state = rank_.config.verdict.preset == "guard";
  update_.reset(new ShardedUpdate{
      .optimizer =
          ShardedOptimizer(buckets, rank_.coordinate.data, dtype, rank_.config.optimizer, plan, checks_state),
      .reduction = LaneReduction(buckets, workload_.lanes, links_.data(), rank_.device, waiter_, plan,
                                 /*digests_sums=*/checks_state),
      .gather = ParameterGather(buckets, links_.data(), rank_.device, waiter_, bytes_of(dtype))});
  update_->reduction.record(spans_);
  update_->gather.record(spans_);
  update_->reduction.use_faults(rank_.faults);
  links_.tensor_group().record(spans_);
  if (Transport* const tied = links_.pipeline().tied(); tied != nullptr) update_->gather.connect_tied(*tied);
  checks_.reset(new HardwareChecks{.lanes = LaneDigests(buckets, rank_.device, plan),
                                   .parameters = ParameterDigests({.buckets = buckets,
                                                                   .device = rank_.device,
                                                                   .shape = rank_.mesh.shape(),
                                                                   .coordinate = rank_.coordinate,
                                                                   .dtype = dtype},
                                                                  plan)});
  lane_runner_ = std::make_unique<LaneRunner>(StageParts{.rank = rank_,
                                                         .state = state_,
                                                         .workload = workload_,
                                                         .stage = *stage_,
                                                         .tensor_group = links_.tensor_group(),
                                                         .reduction = update_->reduction,
                                                         .parameter_gather = update_->gather,
                                                         .digests = checks_->lanes,
                                                         .loader = loader_,
                                                         .ledger = ledger(),
                                                         .counts_samples = counts_samples()},
                                              links_.pipeline().neighbours());
  snapshots_.reserve(plan);
}

Result<void> Worker::agree_it_fits() {
  const bool is_host = rank_.device.host_sees_memory();
  const std::uint64_t planned =
      is_host ? memory_.plan.total_bytes() : memory_.plan.total_bytes(MemoryKind::host_visible);
  std::uint64_t kept = 0;
  if (inputs_.kept != nullptr)
    kept = is_host ? inputs_.kept->bytes() : inputs_.kept->bytes(MemoryKind::host_visible);
  const Result<void> agreed = snapshots_.agree(planned, kept, inputs_.memory);
  if (inputs_.memory_decision != nullptr) *inputs_.memory_decision = snapshots_.decision();
  if (agreed.ok() || agreed.error().code != ExitCode::does_not_fit) return agreed;
  // The plan may be too large for this host alone; then the table of this host says which part is.
  const std::optional<MemoryRoom> room = memory_room(rank_.env);
  if (!room.has_value()) return agreed;
  const Result<void> fits =
      check_fits(memory_.plan, room->total_bytes, inputs_.ranks_on_host, rank_.device.host_sees_memory());
  const Result<void> all = agree_on_outcome(rank_.communicator, waiter_, fits, rank_.env.host_name());
  return all.ok() ? agreed : all;
}

// Makes the arena from pages of the epoch before, where there are any.
Result<MemoryArena> Worker::make_arena() {
  if (inputs_.kept == nullptr) return allocate_memory(rank_.device, memory_.plan);
  const auto fresh = [this](MemoryKind place, std::uint64_t bytes) {
    return rank_.device.allocate(place, bytes);
  };
  const KeptMemoryOptions options{.device_is_host = rank_.device.host_sees_memory(),
                                  .threads = rank_.host_threads(),
                                  .progress = [this] { mark(inputs_.watch); }};
  return MemoryArena::allocate(memory_.plan, inputs_.kept->source(options, fresh));
}

Result<void> Worker::allocate() {
  HF_TRY(memory_.arena, make_arena());
  snapshots_.bind(memory_.arena);
  memory_.host_access->bind(memory_.arena);
  links_.bind(memory_.arena);
  auto& [optimizer, reduction, gather] = *update_;
  stage_->bind(rank_.device, memory_.arena, links_.tensor_group(), gather);
  reduction.bind(memory_.arena, stage_->gradients());
  checks_->lanes.bind(memory_.arena, stage_->gradients());
  gather.bind(stage_->parameters());
  optimizer.bind(rank_.device, memory_.arena, stage_->parameters(), reduction.reduced());
  checks_->parameters.bind(memory_.arena, stage_->parameters());
  state_view_.emplace(StateView{.rank = rank_,
                                .spec = workload_.spec,
                                .state = state_,
                                .host_access = *memory_.host_access,
                                .optimizer = optimizer,
                                .parameter_gather = gather,
                                .snapshots = snapshots_,
                                .is_zero = inputs_.kept == nullptr || inputs_.kept->reused_bytes() == 0});
  return {};
}

Result<void> Worker::prepare_kernels() {
  rank_.device.begin_planning();
  rank_.device.inspect_with(&checks_->products);
  const Result<void> launched = stage_->launch_all_kinds(rank_.device);
  rank_.device.inspect_with(nullptr);
  HF_TRY_VOID(launched);
  if (workload_.audit_every_steps > 0) checks_->products.plan(rank_.device);
  update_->optimizer.launch_update(rank_.device, {});
  update_->optimizer.launch_publish(rank_.device);
  for (int bucket = 0; bucket < workload_.buckets.local_count(); ++bucket)
    checks_->lanes.launch(LaneDigests::Of::owner, bucket);
  update_->reduction.plan_digests();
  checks_->parameters.launch_all_kinds();
  StepChecks::plan(rank_.device);
  update_->optimizer.forget_digests();  // nothing has run
  return rank_.device.end_planning();
}

std::unique_ptr<DataLoader> Worker::loader_of_lane(int lane) const {
  return std::make_unique<DataLoader>(rank_.env, inputs_.data, rank_.config.run.seed, workload_.batch_shape,
                                      std::vector<int>{lane}, state_.data_cursor, workload_.spec.vocabulary,
                                      rank_.config.data.prefetch_microbatches, &rank_.faults);
}

Result<void> Worker::jump_in_data() {
  position_.begin(state_, workload_.batch_shape.samples_per_step());
  return start_loader();
}

Result<void> Worker::start_loader() {
  if (!state_.first_step.has_value()) {
    state_.first_step = state_.step;
    position_.begin(state_, workload_.batch_shape.samples_per_step());
    std::optional<std::uint64_t>& verified = own_verified_step();
    verified = std::min(verified.value_or(state_.step), state_.step);
  }
  loader_ = std::make_unique<DataLoader>(
      rank_.env, inputs_.data, rank_.config.run.seed, workload_.batch_shape, workload_.rank_lanes,
      state_.data_cursor, workload_.spec.vocabulary, rank_.config.data.prefetch_microbatches, &rank_.faults);
  if (inputs_.ledger != nullptr) inputs_.ledger->begin();
  return loader_->begun();
}

Result<void> Worker::join_tied_gradients() {
  const int tied = workload_.tied_bucket();
  if (tied < 0 || workload_.buckets.is_frozen(tied)) return {};
  const HostSpan wait(&spans_, {.kind = SpanKind::wait_tied_weight});
  // A rank that has all its lanes to itself has not waited for their sum yet.
  wait_for_device(rank_.device, rank_.communicator);
  return pass_on(*links_.pipeline().tied(), waiter_, std::as_writable_bytes(reduction().sum_of(tied)),
                 workload_.buckets.exported() >= 0, "the passing of a tied weight's gradient");
}

}  // namespace holdfast::train
