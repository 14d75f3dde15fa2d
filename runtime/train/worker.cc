#include "runtime/train/worker.h"

#include <algorithm>

#include "checkpoint/replica_transfer.h"
#include "checkpoint/snapshot_slot.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "runtime/rank/device_loss.h"
#include "runtime/rank/nccl_connection.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/rank/watch.h"
#include "runtime/save/snapshot_memory.h"

namespace holdfast {
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
      seat_(mesh_.seat_of(inputs.communicator.rank())),
      parts_(parts_of_stage(spec_, inputs.config, seat_.pipeline)),
      data_exchange_(communicator_, mesh_.data_group(inputs.communicator.rank()), TagGroup::data),
      tensor_exchange_(communicator_, mesh_.tensor_group(inputs.communicator.rank()), TagGroup::tensor),
      tensor_group_(share_of(spec_.tensor_lanes, seat_.tensor, mesh_.shape().tensor)),
      links_(communicator_, mesh_,
             {.is_ring = inputs.config.parallel.pipeline_chunks > 1, .has_tied_ends = spec_.tied_head}),
      lanes_(static_cast<int>(inputs.config.parallel.lanes), mesh_.shape().data),
      buckets_(backward_buckets(spec_, parts_, tensor_group_.share()), mesh_.shape().data,
               gradient_places(inputs.config, mesh_.shape().data)),
      batch_shape_{.sequence_length = inputs.config.training.sequence_length,
                   .microbatch_size = inputs.config.training.microbatch_size,
                   .microbatches_per_lane = inputs.config.training.microbatches_per_lane,
                   .lanes = inputs.config.parallel.lanes},
      rank_lanes_(lanes_of_rank(lanes_, seat_.data)),
      spans_(inputs.env) {
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
  device().synchronize();
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
  RankExchange& data = worker->data_exchange_;
  if (with_nccl)
    data.use(std::make_unique<HostExchange>(data.group()));  // stands for NCCL's, without buffers
  worker->reserve();
  HF_TRY_VOID(worker->allocate());
  worker->connect_tensor_group();
  return worker;
}

// After kernels were planned, for which nothing has to move.
void Worker::connect_tensor_group() {
  if (tensor_group_.share().ranks() > 1) tensor_group_.connect(tensor_exchange_.exchange(), waiter_);
}

// Before the memory of the plan is taken, so that what NCCL takes of the GPU counts. Where NCCL does not end
// in time, the process does.
Result<void> Worker::connect_nccl() {
  nccl_session_ = std::make_unique<NcclSession>(
      *inputs_.nccl, env(),
      NcclOptions{.device = inputs_.gpu,
                  .epoch = inputs_.epoch,
                  .connect_timeout_ms = waiter_.timeout_ms(),
                  .die = [this](const std::string& sentence) {
                    leave({.code = ExitCode::communication, .message = sentence});
                  }});
  std::vector<NcclGroup> groups = links_.groups();
  groups.push_back({&data_exchange_, Axis::data, "data", NcclPhase::data});
  groups.push_back({&tensor_exchange_, Axis::tensor, "tensor", NcclPhase::tensor});
  return connect_nccl_groups(*nccl_session_, communicator_, env(), groups);
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
          .microbatch = microbatch, .with_first_keys = config().data.document_mask, .slots = slots},
      device(), plan_);
  loss_sums_slot_ =
      plan_.reserve("loss_sums", MemoryClass::workspace, slots * sizeof(double), MemoryPlace::host_visible);
  host_access_ = std::make_unique<HostAccess>(device(), plan_);
  reserve_exchanges();
  StageSchedule schedule = stage_schedule(config(), lanes_, seat_.data, seat_.pipeline);
  for (std::size_t chunk = 0; chunk < parts_.size(); ++chunk) {
    const StageShape shape{.part = parts_[chunk],
                           .microbatches_in_flight = schedule.activation_buffers[chunk],
                           .weight_gradients_pending = schedule.weight_gradient_buffers[chunk],
                           .tensor = tensor_group_.share()};
    models_.push_back(
        std::make_unique<Model>(spec_, microbatch, Model::Mode::train, plan_, recompute_of(config()), shape));
  }
  optimizer_ =
      std::make_unique<ShardedOptimizer>(buckets_, seat_.data, spec_.dtype, config().optimizer, plan_);
  reduction_ =
      std::make_unique<LaneReduction>(buckets_, lanes_, data_exchange_.exchange(), device(), waiter_, plan_);
  reduction_->record(spans_);
  tensor_group_.record(spans_);
  parameter_gather_ = std::make_unique<ParameterGather>(buckets_, data_exchange_.exchange(), device(),
                                                        waiter_, bytes_of(spec_.dtype));
  parameter_gather_->record(spans_);
  if (links_.tied() != nullptr) parameter_gather_->connect_tied(*links_.tied());
  lane_runner_ = std::make_unique<LaneRunner>(*this, links_.neighbours(), std::move(schedule));
  if (saves_while_training(config())) reserve_snapshot();
}

SnapshotTiers Worker::wanted_tiers() const {
  if (config().checkpoint.ram_every_steps == 0) return SnapshotTiers::none;
  return buddies().empty() ? SnapshotTiers::own : SnapshotTiers::all;
}

// Returns what a rank holds on the host. Without snapshots in shared memory it has one of ordinary memory.
RankMemory Worker::memory_needs() const {
  RankMemory needs{.slot_bytes = snapshot_bytes_};
  const std::uint64_t planned =
      inputs_.device.host_sees_memory() ? plan_.total_bytes() : plan_.total_bytes(MemoryPlace::host_visible);
  const std::uint64_t own_slots = SnapshotMemory::shared_slots * snapshot_bytes_;
  for (RankMemory::Need& need : needs.need) need.own_bytes = planned;
  if (inputs_.kept != nullptr) {
    needs.kept_bytes = inputs_.device.host_sees_memory() ? inputs_.kept->bytes()
                                                         : inputs_.kept->bytes(MemoryPlace::host_visible);
  }
  if (wanted_tiers() == SnapshotTiers::none) return needs;
  needs.need[static_cast<std::size_t>(SnapshotTiers::none)].own_bytes += snapshot_bytes_;
  needs.need[static_cast<std::size_t>(SnapshotTiers::own)].shared_bytes = own_slots;
  needs.need[static_cast<std::size_t>(SnapshotTiers::all)].shared_bytes = shared_snapshot_bytes();
  return needs;
}

Result<void> Worker::agree_it_fits() {
  const Result<void> agreed = agree_on_memory(
      {.communicator = communicator(), .waiter = waiter_, .env = env(), .watch = inputs_.watch},
      memory_needs(), wanted_tiers(), inputs_.memory, memory_decision_);
  if (inputs_.memory_decision != nullptr) *inputs_.memory_decision = memory_decision_;
  if (agreed.ok() || agreed.error().code != ExitCode::does_not_fit) return agreed;
  // It is too large for this host alone, too: then its table says which part is.
  const std::optional<MemoryRoom> room = memory_room(env());
  if (!room.has_value()) return agreed;
  const Result<void> fits =
      check_fits(plan_, room->total_bytes, inputs_.ranks_on_host, device().host_sees_memory());
  const Result<void> all = agree_on_outcome(communicator(), waiter_, fits, env().host_name());
  return all.ok() ? agreed : all;
}

std::uint64_t Worker::shared_snapshot_bytes() const {
  if (config().checkpoint.ram_every_steps == 0) return 0;
  std::uint64_t bytes = SnapshotMemory::shared_slots * snapshot_bytes_;
  for (const int rank : kept_ranks()) bytes += ReplicaKeeper::places * snapshot_bytes_of(rank);
  return bytes;
}

Result<std::unique_ptr<SharedMemory>> Worker::make_slot(const std::string& name, std::uint64_t bytes) {
  // The system reserves all of it in one call, which can take long and shows no sign of life.
  const StorageWait wait(inputs_.watch, "memory for RAM snapshots");
  return inputs_.slots != nullptr ? inputs_.slots->make(env(), faults(), name, bytes)
                                  : env().create_shared_memory(name, bytes);
}

int Worker::buddy() const {
  return buddies().empty() ? -1 : buddies()[static_cast<std::size_t>(communicator_.rank())];
}

std::vector<int> Worker::kept_ranks() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < buddies().size(); ++rank) {
    if (buddies()[rank] == communicator_.rank()) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// Pages of the epoch before, where there are any.
Result<MemoryArena> Worker::make_arena() {
  if (inputs_.kept == nullptr) return allocate_memory(device(), plan_);
  const auto fresh = [this](MemoryPlace place, std::uint64_t bytes) {
    return device().allocate(place, bytes);
  };
  const KeptMemoryOptions options{.device_is_host = device().host_sees_memory(),
                                  .threads = host_threads(),
                                  .progress = [this] { mark(inputs_.watch); }};
  return MemoryArena::allocate(plan_, inputs_.kept->source(options, fresh));
}

Result<void> Worker::allocate() {
  HF_TRY(arena_, make_arena());
  parameters_ = arena_.at<std::byte>(parameters_slot_);
  gradients_ = arena_.at<float>(gradients_slot_);
  tokens_->bind(arena_);
  loss_sums_ = {arena_.at<double>(loss_sums_slot_), step_slots()};
  snapshot_memory_ = bound_snapshot();
  for (const MemoryPlan::Slot& slot : staging_slots_) snapshot_staging_.push_back(arena_.bytes(slot));
  host_access_->bind(arena_);
  data_exchange_.bind(arena_);
  tensor_exchange_.bind(arena_);
  links_.bind(arena_);
  for (const std::unique_ptr<Model>& model : models_) {
    model->bind(device(), arena_, buckets_, parameters_, gradients_);
    model->join(tensor_group_);
    model->ask(*parameter_gather_);
  }
  reduction_->bind(arena_, gradients_);
  parameter_gather_->bind(parameters_);
  optimizer_->bind(device(), arena_, parameters_, reduction_->reduced());
  return {};
}

Result<void> Worker::prepare_kernels() {
  const TokenBatch batch = tokens_->at(0);
  device().begin_planning();
  for (const std::unique_ptr<Model>& model : models_) {
    for (const bool accumulate : {false, true}) {
      HF_TRY_VOID(model->forward_backward(device(), batch, loss_sums_.data(), {.accumulate = accumulate}));
    }
    HF_TRY_VOID(model->forward_loss(device(), batch, loss_sums_.data()));
  }
  optimizer_->launch_update(device(), {});
  optimizer_->launch_publish(device());
  return device().end_planning();
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
  return 2 * static_cast<std::uint64_t>(share.ranks() - 1) * PinnedExchange::bytes_of_message(widest);
}

void Worker::reserve_exchanges() {
  const std::size_t element = bytes_of(spec_.dtype);
  data_exchange_.reserve(device(), largest_exchange_bytes(buckets_, seat_.data, element), plan_);
  const std::int64_t rows = batch_shape_.microbatch_size * batch_shape_.sequence_length;
  const std::int64_t boundary = tensor_group_.own_rows(rows) * spec_.width;
  tensor_exchange_.reserve(device(), largest_slice_exchange_bytes(rows), plan_);
  const int tied = std::max(buckets_.guest(), buckets_.away());
  const std::uint64_t tied_bytes =
      tied < 0 ? 0 : buckets_.gradient_range(tied, seat_.data).size() * sizeof(float);
  links_.reserve(device(), static_cast<std::uint64_t>(boundary) * element, tied_bytes, plan_);
}

// In shared memory it is no part of the arena.
void Worker::reserve_snapshot() {
  snapshot_bytes_ = snapshot_bytes_at(seat_.data);
  // Threads that copy: as many as fill slots as fast as a device gives its memory (some 8 GB/s each).
  constexpr int staging_count = 4;
  for (int i = 0; i < staging_count && !inputs_.device.host_sees_memory(); ++i) {
    staging_slots_.push_back(
        plan_.reserve("snapshot.staging", MemoryClass::snapshot, staging_bytes, MemoryPlace::host_visible));
  }
  if (config().checkpoint.ram_every_steps != 0) return;
  snapshot_slot_ = plan_.reserve("snapshot", MemoryClass::snapshot,
                                 snapshot_bytes_ + SnapshotSlot::alignment_bytes, MemoryPlace::host_visible);
}

std::uint64_t Worker::snapshot_bytes_of(int rank) const {
  return snapshot_bytes_at(mesh_.seat_of(rank).data);
}

std::uint64_t Worker::snapshot_bytes_at(int data_seat) const {
  std::vector<ShardSpec> pieces;
  for (const char* kind : {"weight", "moment1", "moment2"}) {
    for (ShardSpec& piece : buckets_.shard_specs(data_seat, kind)) {
      if (saves(piece)) pieces.push_back(std::move(piece));
    }
  }
  constexpr std::uint64_t other_manifest_bytes = 64 << 10;
  return SnapshotSlot::bytes_for(pieces, 2 * record_config(config()).size() + other_manifest_bytes);
}

// The part of the arena's slot that is aligned as snapshots are.
std::span<std::byte> Worker::bound_snapshot() const {
  if (snapshot_bytes_ == 0 || config().checkpoint.ram_every_steps != 0) return {};
  const std::span<std::byte> room = arena_.bytes(snapshot_slot_);
  const std::uint64_t over = reinterpret_cast<std::uintptr_t>(room.data()) % SnapshotSlot::alignment_bytes;
  return room.subspan(over == 0 ? 0 : SnapshotSlot::alignment_bytes - over, snapshot_bytes_);
}

// Microbatches of this rank in a step; room for one where it has none.
std::size_t Worker::step_slots() const {
  return std::max<std::size_t>(1, rank_lanes_.size()) *
         static_cast<std::size_t>(batch_shape_.microbatches_per_lane);
}

std::uint64_t Worker::tokens_per_step() const {
  return batch_shape_.samples_per_step() * static_cast<std::uint64_t>(batch_shape_.sequence_length);
}

std::uint64_t Worker::state_bytes() const {
  return 3 * sizeof(float) * parameter_count(spec_);
}

int Worker::host_threads() const {
  if (inputs_.device.host_sees_memory()) return inputs_.device.threads();
  return std::max(1, inputs_.env.processor_count() / std::max(1, inputs_.ranks_on_host));
}

void Worker::start_loader() {
  loader_ =
      std::make_unique<DataLoader>(inputs_.data, config().run.seed, batch_shape_, rank_lanes_,
                                   state_.data_cursor, spec_.vocabulary, config().data.prefetch_microbatches);
  if (inputs_.ledger != nullptr) inputs_.ledger->begin();
}

Result<void> Worker::publish_parameters() {
  optimizer_->launch_publish(device());
  wait_for_device(device(), communicator_);
  HF_TRY_VOID(parameter_gather_->begin());
  return parameter_gather_->finish();
}

Result<void> Worker::join_tied_gradients() {
  const int tied = std::max(buckets_.away(), buckets_.guest());
  if (tied < 0) return {};
  const HostSpan wait(&spans_, {.kind = SpanKind::wait_tied_weight});
  wait_for_device(device(), communicator_);  // a rank alone with its lanes has not waited for their sum
  return pass_on(*links_.tied(), waiter_, std::as_writable_bytes(reduction_->sum_of(tied)),
                 buckets_.guest() >= 0, "the passing of a tied weight's gradient");
}

Result<void> Worker::device_outcome() {
  const Result<void> outcome = device().status();
  if (device().lost()) leave(outcome.error());
  return outcome;
}

void Worker::leave(const Error& error) {
  end_without_device({env(), communicator(), config().run.directory, state_.step}, error);
}

}  // namespace holdfast
