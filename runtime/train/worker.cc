#include "runtime/train/worker.h"

#include <algorithm>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/config/loader.h"
#include "runtime/rank/device_loss.h"
#include "runtime/rank/nccl_connection.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/rank/watch.h"

namespace holdfast::inline train {
namespace {

// Else it saves at its end only, or where it is asked to stop: then the state itself is written.
bool saves_while_training(const Config& config) {
  const auto comes_before_end = [&](std::int64_t every_steps) {
    return (every_steps == CheckpointConfig::interval_auto && config.training.steps > 1) ||
           (every_steps > 0 && every_steps < config.training.steps);
  };
  return config.checkpoint.every_ms > 0 || comes_before_end(config.checkpoint.every_steps) ||
         comes_before_end(config.checkpoint.ram_every_steps);
}

}  // namespace

Worker::Worker(const WorkerInputs& inputs)
    : inputs_(inputs),
      communicator_(inputs.communicator),
      waiter_(Waiter(inputs.env, inputs.config.parallel.timeout_ms, inputs.watch).with_flight(spans_)),
      spec_(make_model_spec(inputs.config)),
      mesh_(inputs.mesh),
      parts_(parts_of_stage(spec_, inputs.config, mesh_.coordinate_of(inputs.communicator.rank()).pipeline)),
      data_transport_(communicator_, mesh_.data_group(inputs.communicator.rank()), TagGroup::data),
      tensor_transport_(communicator_, mesh_.tensor_group(inputs.communicator.rank()), TagGroup::tensor),
      tensor_group_(share_of(spec_.tensor_lanes, mesh_.coordinate_of(inputs.communicator.rank()).tensor,
                             mesh_.shape().tensor)),
      links_(communicator_, mesh_,
             {.is_ring = inputs.config.parallel.pipeline_chunks > 1, .has_tied_ends = spec_.tied_head}),
      lanes_(static_cast<int>(inputs.config.parallel.lanes), mesh_.shape().data),
      buckets_(backward_buckets(spec_, parts_, tensor_group_.share()), mesh_.shape().data,
               gradient_places(inputs.config, mesh_.shape().data)),
      batch_shape_{.sequence_length = inputs.config.training.sequence_length,
                   .microbatch_size = inputs.config.training.microbatch_size,
                   .microbatches_per_lane = inputs.config.training.microbatches_per_lane,
                   .lanes = inputs.config.parallel.lanes},
      rank_lanes_(lanes_of_rank(lanes_, mesh_.coordinate_of(inputs.communicator.rank()).data)),
      spans_(inputs.env),
      rank_{.env = inputs.env,
            .faults = inputs.faults,
            .communicator = communicator_,
            .waiter = waiter_,
            .device = inputs.device,
            .config = inputs.config,
            .mesh = mesh_,
            .coordinate = mesh_.coordinate_of(inputs.communicator.rank()),
            .watch = inputs.watch,
            .spans = spans_,
            .ranks_on_host = inputs.ranks_on_host,
            .secret = inputs.secret},
      snapshots_(rank_, buckets_, inputs.buddies, inputs.slots) {
  if (inputs.watch == nullptr) return;
  // A GPU's stamps take events of its queue, so there the host's clock has to do.
  spans_.keep_flight(inputs.watch->ring(), inputs.watch->ring_count(), inputs.device.host_sees_memory());
}

// What NCCL has under way with a peer that died never ends by itself, and takes the GPU: first that, then
// whatever waits for the device.
void Worker::abort_nccl() {
  if (nccl_session_ != nullptr) static_cast<void>(nccl_session_->abort_all("another rank is gone"));
}

Worker::~Worker() {
  if (communicator_.abandoned()) abort_nccl();
  rank_.device.synchronize();
  if (nccl_session_ != nullptr) static_cast<void>(nccl_session_->abort_all("the run has ended"));
}

Result<std::unique_ptr<Worker>> Worker::create(const WorkerInputs& inputs) {
  std::unique_ptr<Worker> worker(new Worker(inputs));
  if (inputs.nccl != nullptr) HF_TRY_VOID(worker->connect_nccl());
  worker->reserve();
  HF_TRY_VOID(worker->agree_it_fits());
  HF_TRY_VOID(worker->allocate());
  HF_TRY_VOID(worker->prepare_kernels());
  worker->connect_tensor_group();
  return worker;
}

Result<std::unique_ptr<Worker>> Worker::plan(const WorkerInputs& inputs, bool with_nccl) {
  std::unique_ptr<Worker> worker(new Worker(inputs));
  RankTransport& data = worker->data_transport_;
  if (with_nccl)
    data.use(std::make_unique<HostTransport>(data.group()));  // stands for NCCL's, without buffers
  worker->reserve();
  HF_TRY_VOID(worker->allocate());
  worker->connect_tensor_group();
  return worker;
}

// After kernels were planned, for which nothing has to move.
void Worker::connect_tensor_group() {
  if (tensor_group_.share().ranks() > 1) tensor_group_.connect(tensor_transport_.transport(), waiter_);
}

// Before the memory of the plan is taken, so that what NCCL takes of the GPU counts. Where NCCL does not end
// in time, the process does.
Result<void> Worker::connect_nccl() {
  nccl_session_ = std::make_unique<NcclSession>(
      *inputs_.nccl, rank_.env,
      NcclOptions{.device = inputs_.gpu,
                  .epoch = inputs_.epoch,
                  .connect_timeout_ms = waiter_.timeout_ms(),
                  .die = [this](const std::string& sentence) {
                    leave({.code = ExitCode::communication, .message = sentence});
                  }});
  std::vector<NcclGroup> groups = links_.groups();
  groups.push_back({&data_transport_, Axis::data, "data", NcclPhase::data});
  groups.push_back({&tensor_transport_, Axis::tensor, "tensor", NcclPhase::tensor});
  return connect_nccl_groups(*nccl_session_, communicator_, rank_.env, groups);
}

// Needs neither the peers nor memory: a planner comes to the same plan.
void Worker::reserve() {
  const BatchShapeBT microbatch{.batch = batch_shape_.microbatch_size,
                                .sequence_length = batch_shape_.sequence_length};
  const std::size_t slots = step_slots();
  parameters_slot_ = plan_.reserve("parameters", MemoryClass::weights,
                                   buckets_.parameter_elements() * bytes_of(spec_.dtype));
  gradients_slot_ =
      plan_.reserve("gradients", MemoryClass::gradients, buckets_.gradient_elements() * sizeof(float));
  tokens_ = std::make_unique<TokenStaging>(
      TokenStagingShape{
          .microbatch = microbatch, .with_first_keys = rank_.config.data.document_mask, .slots = slots},
      rank_.device, plan_);
  loss_sums_slot_ =
      plan_.reserve("loss_sums", MemoryClass::workspace, slots * sizeof(double), MemoryPlace::host_visible);
  host_access_ = std::make_unique<HostAccess>(rank_.device, plan_);
  reserve_exchanges();
  StageSchedule schedule =
      stage_schedule(rank_.config, lanes_, rank_.coordinate.data, rank_.coordinate.pipeline);
  for (std::size_t chunk = 0; chunk < parts_.size(); ++chunk) {
    const StageShape shape{.part = parts_[chunk],
                           .microbatches_in_flight = schedule.activation_buffers[chunk],
                           .weight_gradients_pending = schedule.weight_gradient_buffers[chunk],
                           .tensor = tensor_group_.share()};
    models_.push_back(std::make_unique<Model>(spec_, microbatch, Model::Mode::train, plan_,
                                              recompute_of(rank_.config), shape));
  }
  optimizer_ = std::make_unique<ShardedOptimizer>(buckets_, rank_.coordinate.data, spec_.dtype,
                                                  rank_.config.optimizer, plan_);
  reduction_ = std::make_unique<LaneReduction>(buckets_, lanes_, data_transport_.transport(), rank_.device,
                                               waiter_, plan_);
  reduction_->record(spans_);
  tensor_group_.record(spans_);
  parameter_gather_ = std::make_unique<ParameterGather>(buckets_, data_transport_.transport(), rank_.device,
                                                        waiter_, bytes_of(spec_.dtype));
  parameter_gather_->record(spans_);
  if (links_.tied() != nullptr) parameter_gather_->connect_tied(*links_.tied());
  lane_runner_ = std::make_unique<LaneRunner>(StageParts{.rank = rank_,
                                                         .spec = spec_,
                                                         .batch_shape = batch_shape_,
                                                         .lanes = lanes_,
                                                         .parts = parts_,
                                                         .models = models_,
                                                         .tensor_group = tensor_group_,
                                                         .tokens = *tokens_,
                                                         .reduction = *reduction_,
                                                         .parameter_gather = *parameter_gather_,
                                                         .loss_sums = loss_sums_,
                                                         .loader = loader_,
                                                         .ledger = ledger(),
                                                         .counts_samples = counts_samples(),
                                                         .tokens_per_step = tokens_per_step()},
                                              links_.neighbours(), std::move(schedule));
  if (saves_while_training(rank_.config)) snapshots_.reserve(plan_);
}

Result<void> Worker::agree_it_fits() {
  const bool is_host = rank_.device.host_sees_memory();
  const std::uint64_t planned = is_host ? plan_.total_bytes() : plan_.total_bytes(MemoryPlace::host_visible);
  std::uint64_t kept = 0;
  if (inputs_.kept != nullptr)
    kept = is_host ? inputs_.kept->bytes() : inputs_.kept->bytes(MemoryPlace::host_visible);
  const Result<void> agreed = snapshots_.agree(planned, kept, inputs_.memory);
  if (inputs_.memory_decision != nullptr) *inputs_.memory_decision = snapshots_.decision();
  if (agreed.ok() || agreed.error().code != ExitCode::does_not_fit) return agreed;
  // It is too large for this host alone, too: then its table says which part is.
  const std::optional<MemoryRoom> room = memory_room(rank_.env);
  if (!room.has_value()) return agreed;
  const Result<void> fits =
      check_fits(plan_, room->total_bytes, inputs_.ranks_on_host, rank_.device.host_sees_memory());
  const Result<void> all = agree_on_outcome(rank_.communicator, waiter_, fits, rank_.env.host_name());
  return all.ok() ? agreed : all;
}

// Pages of the epoch before, where there are any.
Result<MemoryArena> Worker::make_arena() {
  if (inputs_.kept == nullptr) return allocate_memory(rank_.device, plan_);
  const auto fresh = [this](MemoryPlace place, std::uint64_t bytes) {
    return rank_.device.allocate(place, bytes);
  };
  const KeptMemoryOptions options{.device_is_host = rank_.device.host_sees_memory(),
                                  .threads = rank_.host_threads(),
                                  .progress = [this] { mark(inputs_.watch); }};
  return MemoryArena::allocate(plan_, inputs_.kept->source(options, fresh));
}

Result<void> Worker::allocate() {
  HF_TRY(arena_, make_arena());
  parameters_ = arena_.at<std::byte>(parameters_slot_);
  gradients_ = arena_.at<float>(gradients_slot_);
  tokens_->bind(arena_);
  loss_sums_ = {arena_.at<double>(loss_sums_slot_), step_slots()};
  snapshots_.bind(arena_);
  host_access_->bind(arena_);
  data_transport_.bind(arena_);
  tensor_transport_.bind(arena_);
  links_.bind(arena_);
  for (const std::unique_ptr<Model>& model : models_) {
    model->bind(rank_.device, arena_, buckets_, parameters_, gradients_);
    model->join(tensor_group_);
    model->set_parameter_wait([this](int bucket) { return parameter_gather_->wait_for(bucket); });
  }
  reduction_->bind(arena_, gradients_);
  parameter_gather_->bind(parameters_);
  optimizer_->bind(rank_.device, arena_, parameters_, reduction_->reduced());
  state_view_.emplace(StateView{.rank = rank_,
                                .spec = spec_,
                                .state = state_,
                                .host_access = *host_access_,
                                .optimizer = *optimizer_,
                                .parameter_gather = *parameter_gather_,
                                .snapshots = snapshots_,
                                .is_zero = inputs_.kept == nullptr || inputs_.kept->reused_bytes() == 0});
  return {};
}

Result<void> Worker::prepare_kernels() {
  const TokenBatch batch = tokens_->at(0);
  rank_.device.begin_planning();
  for (const std::unique_ptr<Model>& model : models_) {
    for (const bool accumulate : {false, true}) {
      HF_TRY_VOID(
          model->forward_backward(rank_.device, batch, loss_sums_.data(), {.accumulate = accumulate}));
    }
    HF_TRY_VOID(model->forward_loss(rank_.device, batch, loss_sums_.data()));
  }
  optimizer_->launch_update(rank_.device, {});
  optimizer_->launch_publish(rank_.device);
  return rank_.device.end_planning();
}

// Of what a tensor group tells each other: parts of a sum, what slices know of the head's rows, the norms'
// gradients; as many messages out as in.
std::uint64_t Worker::largest_slice_exchange_bytes(std::int64_t rows) const {
  const TensorShare& share = tensor_share();
  const std::int64_t head_rows = head_chunk_rows(rows, spec_);
  const std::int64_t vectors = spec_.norm == NormKind::layer_norm ? 2 : 1;
  const auto floats = [](std::int64_t count) { return static_cast<std::uint64_t>(count) * sizeof(float); };
  const std::uint64_t widest = std::max(
      {floats(tensor_group_.own_rows(rows) * spec_.width), floats(share.count * vectors * spec_.width),
       static_cast<std::uint64_t>(share.count * head_rows) * sizeof(SoftmaxStatistics)});
  return 2 * static_cast<std::uint64_t>(share.ranks() - 1) * PinnedTransport::bytes_of_message(widest);
}

void Worker::reserve_exchanges() {
  const std::size_t element = bytes_of(spec_.dtype);
  data_transport_.reserve(rank_.device, largest_exchange_bytes(buckets_, rank_.coordinate.data, element),
                          plan_);
  const std::int64_t rows = batch_shape_.microbatch_size * batch_shape_.sequence_length;
  const std::int64_t boundary = tensor_group_.own_rows(rows) * spec_.width;
  tensor_transport_.reserve(rank_.device, largest_slice_exchange_bytes(rows), plan_);
  const int tied = std::max(buckets_.guest(), buckets_.away());
  const std::uint64_t tied_bytes =
      tied < 0 ? 0 : buckets_.gradient_range(tied, rank_.coordinate.data).size() * sizeof(float);
  links_.reserve(rank_.device, static_cast<std::uint64_t>(boundary) * element, tied_bytes, plan_);
}

// Microbatches of this rank in a step; room for one where it has none.
std::size_t Worker::step_slots() const {
  return std::max<std::size_t>(1, rank_lanes_.size()) *
         static_cast<std::size_t>(batch_shape_.microbatches_per_lane);
}

std::uint64_t Worker::tokens_per_step() const {
  return batch_shape_.samples_per_step() * static_cast<std::uint64_t>(batch_shape_.sequence_length);
}

void Worker::start_loader() {
  loader_ = std::make_unique<DataLoader>(inputs_.data, rank_.config.run.seed, batch_shape_, rank_lanes_,
                                         state_.data_cursor, spec_.vocabulary,
                                         rank_.config.data.prefetch_microbatches);
  if (inputs_.ledger != nullptr) inputs_.ledger->begin();
}

Result<void> Worker::join_tied_gradients() {
  const int tied = std::max(buckets_.away(), buckets_.guest());
  if (tied < 0) return {};
  const HostSpan wait(&spans_, {.kind = SpanKind::wait_tied_weight});
  wait_for_device(rank_.device, communicator_);  // a rank alone with its lanes has not waited for their sum
  return pass_on(*links_.tied(), waiter_, std::as_writable_bytes(reduction_->sum_of(tied)),
                 buckets_.guest() >= 0, "the passing of a tied weight's gradient");
}

void Worker::leave(const Error& error) {
  end_without_device({rank_.env, rank_.communicator, rank_.config.run.directory, state_.step}, error);
}

}  // namespace holdfast::inline train
