#include "runtime/train/worker.h"

#include <algorithm>

#include "parallel/agreement.h"
#include "runtime/config/loader.h"
#include "runtime/core/available_memory.h"
#include "runtime/train/device_loss.h"
#include "runtime/train/run_directory.h"

namespace holdfast {
namespace {

static_assert(data_parallel_max <= Exchange::ranks_max,
              "what the config lets through, the lane reduction must take");

std::vector<int> lanes_of_rank(const LaneSchedule& lanes, int rank) {
  std::vector<int> result;
  for (int wave = 0; wave < lanes.waves(); ++wave) {
    if (const int lane = lanes.lane_of(wave, rank); lane >= 0) result.push_back(lane);
  }
  return result;
}

// Of a microbatch: inputs, targets, first keys.
std::size_t token_arrays(const Config& config) {
  return config.data.document_mask ? 3 : 2;
}

}  // namespace

Worker::Worker(const WorkerInputs& inputs)
    : inputs_(inputs),
      waiter_(inputs.env, inputs.config.parallel.timeout_ms),
      host_exchange_(inputs.communicator),
      spec_(make_model_spec(inputs.config)),
      lanes_(static_cast<int>(inputs.config.parallel.lanes), inputs.communicator.size()),
      buckets_(backward_buckets(spec_), inputs.communicator.size()),
      batch_shape_{.sequence_length = inputs.config.training.sequence_length,
                   .microbatch_size = inputs.config.training.microbatch_size,
                   .microbatches_per_lane = inputs.config.training.microbatches_per_lane,
                   .lanes = inputs.config.parallel.lanes},
      rank_lanes_(lanes_of_rank(lanes_, inputs.communicator.rank())) {}

Worker::~Worker() {
  device().synchronize();
}

Result<std::unique_ptr<Worker>> Worker::create(const WorkerInputs& inputs) {
  std::unique_ptr<Worker> worker(new Worker(inputs));
  HF_TRY_VOID(worker->allocate());
  HF_TRY_VOID(worker->prepare_kernels());
  return worker;
}

Result<void> Worker::allocate() {
  const BatchShapeBT microbatch{.batch = batch_shape_.microbatch_size,
                                .sequence_length = batch_shape_.sequence_length};
  const std::size_t slots = std::max<std::size_t>(1, rank_lanes_.size()) *
                            static_cast<std::size_t>(batch_shape_.microbatches_per_lane);
  parameters_slot_ = plan_.reserve("parameters", MemoryClass::weights,
                                   buckets_.parameter_elements() * bytes_of(spec_.dtype));
  gradients_slot_ =
      plan_.reserve("gradients", MemoryClass::gradients, buckets_.gradient_elements() * sizeof(float));
  tokens_slot_ = plan_.reserve(
      "tokens", MemoryClass::data,
      slots * token_arrays(config()) * static_cast<std::size_t>(microbatch.rows()) * sizeof(std::int32_t),
      MemoryPlace::host_visible);
  loss_sums_slot_ =
      plan_.reserve("loss_sums", MemoryClass::workspace, slots * sizeof(double), MemoryPlace::host_visible);
  host_access_ = std::make_unique<HostAccess>(device(), plan_);
  if (!device().host_sees_memory() && communicator().size() > 1) {
    pinned_exchange_ = std::make_unique<PinnedExchange>(
        host_exchange_, device(),
        largest_exchange_bytes(buckets_, communicator().rank(), bytes_of(spec_.dtype)), plan_);
  }
  model_ = std::make_unique<Model>(spec_, microbatch, Model::Mode::train, plan_, recompute_of(config()));
  optimizer_ = std::make_unique<ShardedOptimizer>(buckets_, communicator().rank(), spec_.dtype,
                                                  config().optimizer, plan_);
  reduction_ = std::make_unique<LaneReduction>(buckets_, lanes_, exchange(), device(), waiter_, plan_);
  // Agreed on before anybody touches memory: what a rank of this host took would be missing in another's
  // count.
  HF_TRY_VOID(agree_on_outcome(
      communicator(), waiter_,
      check_fits(plan_, available_memory_bytes(env()), inputs_.ranks_on_host, device().host_sees_memory()),
      env().host_name()));
  HF_TRY(arena_, allocate_memory(device(), plan_));

  parameters_ = arena_.at<std::byte>(parameters_slot_);
  gradients_ = arena_.at<float>(gradients_slot_);
  tokens_ = arena_.at<std::int32_t>(tokens_slot_);
  loss_sums_ = {arena_.at<double>(loss_sums_slot_), slots};
  host_access_->bind(arena_);
  if (pinned_exchange_ != nullptr) pinned_exchange_->bind(arena_);
  model_->bind(device(), arena_, buckets_, parameters_, gradients_);
  reduction_->bind(arena_, gradients_);
  optimizer_->bind(device(), arena_, parameters_, reduction_->reduced());
  return {};
}

// Launches every kind of step once in planning mode: the kernels make their primitives and say what workspace
// they need.
Result<void> Worker::prepare_kernels() {
  const TokenBatch batch = stage_tokens(0, {}, {}, {});
  device().begin_planning();
  for (const bool accumulate : {false, true}) {
    model_->forward_backward(device(), batch, loss_sums_.data(), {.accumulate = accumulate});
  }
  model_->forward_loss(device(), batch, loss_sums_.data());
  optimizer_->launch_update(device(), {});
  optimizer_->launch_publish(device());
  return device().end_planning();
}

TokenBatch Worker::stage_tokens(std::size_t slot, std::span<const std::int32_t> inputs,
                                std::span<const std::int32_t> targets,
                                std::span<const std::int32_t> first_key) {
  const BatchShapeBT shape{.batch = batch_shape_.microbatch_size,
                           .sequence_length = batch_shape_.sequence_length};
  const auto rows = static_cast<std::size_t>(shape.rows());
  std::int32_t* staged_inputs = tokens_ + token_arrays(config()) * slot * rows;
  std::int32_t* staged_targets = staged_inputs + rows;
  std::int32_t* staged_first_key = config().data.document_mask ? staged_targets + rows : nullptr;
  std::copy(inputs.begin(), inputs.end(), staged_inputs);
  std::copy(targets.begin(), targets.end(), staged_targets);
  if (staged_first_key != nullptr) std::copy(first_key.begin(), first_key.end(), staged_first_key);
  return {.inputs = staged_inputs, .targets = staged_targets, .first_key = staged_first_key, .shape = shape};
}

std::uint64_t Worker::tokens_per_step() const {
  return batch_shape_.samples_per_step() * static_cast<std::uint64_t>(batch_shape_.sequence_length);
}

std::uint64_t Worker::state_bytes() const {
  return 3 * sizeof(float) * buckets_.parameter_elements();
}

int Worker::host_threads() const {
  if (inputs_.device.host_sees_memory()) return inputs_.device.threads();
  return std::max(1, inputs_.env.processor_count() / std::max(1, inputs_.ranks_on_host));
}

void Worker::start_loader() {
  loader_ =
      std::make_unique<DataLoader>(inputs_.data, config().run.seed, batch_shape_, rank_lanes_,
                                   state_.data_cursor, spec_.vocabulary, config().data.prefetch_microbatches);
  if (!config().data.ledger) return;
  const RunPaths paths{config().run.directory};
  ledger_ = std::make_unique<Ledger>(env(), paths.ledger(communicator().rank()));
}

Result<void> Worker::publish_parameters() {
  optimizer_->launch_publish(device());
  device().synchronize();
  return gather_parameters(buckets_, exchange(), waiter_, parameters_, bytes_of(spec_.dtype));
}

Exchange& Worker::exchange() {
  if (pinned_exchange_ != nullptr) return *pinned_exchange_;
  return host_exchange_;
}

Result<void> Worker::device_outcome() {
  const Result<void> outcome = device().status();
  if (device().lost()) {
    end_without_device({env(), communicator(), config().run.directory, state_.step}, outcome.error());
  }
  return outcome;
}

}  // namespace holdfast
