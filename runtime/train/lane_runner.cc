#include "runtime/train/lane_runner.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "parallel/comm/device_wait.h"
#include "runtime/device/device_span.h"
#include "runtime/device/host_access.h"
#include "runtime/rank/watch.h"

namespace holdfast::train {
namespace {

class LaneBuckets final : public BucketObserver {
 public:
  using Announce = std::function<void(int bucket)>;
  // `reduction`: null where nothing is reduced; buckets that share memory follow each other in the queue.
  LaneBuckets(LaneReduction* reduction, int first, Announce announce)
      : reduction_(reduction), first_(first), announce_(std::move(announce)) {}
  Result<void> wait_for_slot(int bucket) override {
    return reduction_ == nullptr ? Result<void>() : reduction_->wait_for_slot(first_ + bucket);
  }
  void bucket_launched(int bucket) override { announce_(first_ + bucket); }

 private:
  LaneReduction* reduction_;
  int first_;
  Announce announce_;
};

// Returns the actions of this rank's stage for one lane that no other follows; none where no lane is audited.
std::vector<Action> actions_of_one_lane(const StepParts& parts) {
  if (parts.workload().audit_every_steps == 0) return {};
  const LaneSchedule one(/*lanes=*/1, /*ranks=*/1);
  return stage_schedule(parts.rank.config, one, /*data_rank=*/0, parts.rank.coordinate.pipeline).actions;
}

std::uint64_t repeat_key(std::size_t slot, std::size_t chunks, StagePosition position, Work work) {
  constexpr std::size_t works = 4;
  return works * (slot * chunks + static_cast<std::size_t>(position.chunk)) + static_cast<std::size_t>(work);
}

BackwardPart part_of(Work work) {
  return work == Work::backward_input    ? BackwardPart::inputs
         : work == Work::backward_weight ? BackwardPart::weights
                                         : BackwardPart::whole;
}

SpanKind span_kind_of(BackwardPart part) {
  return part == BackwardPart::inputs    ? SpanKind::backward_input
         : part == BackwardPart::weights ? SpanKind::backward_weight
                                         : SpanKind::backward;
}

OpScope::Pass scope_pass_of(BackwardPart part) {
  return part == BackwardPart::weights ? OpScope::Pass::weights : OpScope::Pass::backward;
}

// Returns the range of buckets of each chunk. The buckets of the last chunk come first.
std::vector<LaneRunner::BucketRange> buckets_of(const Workload& workload) {
  const std::span<const ModelPart> parts = workload.parts;
  std::vector<LaneRunner::BucketRange> buckets(parts.size());
  int first = 0;
  for (std::size_t chunk = parts.size(); chunk-- > 0;) {
    const BucketPlan alone(backward_buckets(workload.spec, parts.subspan(chunk, 1), workload.share), 1);
    buckets[chunk] = {.first = first, .count = alone.local_count()};
    first += alone.local_count();
  }
  return buckets;
}

}  // namespace

LaneRunner::LaneRunner(StepParts& parts, SampleLog* ledger)
    : parts_(parts),
      ledger_(ledger),
      executor_(*this, parts.rank.device, parts.rank.links.pipeline().neighbours(), parts.rank.waiter,
                parts.workload().schedule.actions, parts.workload().schedule.activation_buffers),
      audit_executor_(*this, parts.rank.device, parts.rank.links.pipeline().neighbours(), parts.rank.waiter,
                      actions_of_one_lane(parts), parts.workload().schedule.activation_buffers),
      buckets_(buckets_of(parts.workload())),
      // Buckets need not leave before the microbatch is complete where there is no other data-parallel rank
      // to send them to.
      buckets_wait_(parts.rank.config.training.cuda_graphs && parts.rank.mesh.shape().data == 1),
      // Buckets that share memory cannot wait for each other.
      buckets_wait_for_point_(parts.rank.faults.corrupts_lane_gradients() &&
                              !parts.update.reduction.shares_slots()) {
  if (!parts.rank.faults.spoils_samples()) return;
  parts_.stage.set_after_embedding([this](int microbatch) { spoil_embedding(microbatch); });
}

// Lets the executor advance in the background, so that a launch that waits midway (for the other slices of a
// layer, for parameters, or for the memory of gradients) does not hold up neighbouring stages.
void LaneRunner::let_advance(StageExecutor& executor) {
  tensor_group().set_background([&executor] { return executor.advance(); });
  parts_.update.gather.set_background([&executor] { return executor.advance(); });
  parts_.update.reduction.set_background([&executor] { return executor.advance(); });
}

Result<void> LaneRunner::audit(int lane, DataLoader& loader, Result<void>& failure) {
  LaneOutcome outcome{.data = {}, .failure = std::move(failure)};
  run_ = {.outcome = &outcome, .audit_loader = &loader, .audit_lane = lane};
  let_advance(audit_executor_);
  Result<void> done = audit_executor_.run();
  if (done.ok()) done = tensor_group().finish();
  run_.audit_loader = nullptr;
  failure = std::move(outcome.failure);
  return done;
}

// Gives an exchange of slices in the device's queue as the cause of what failed after it.
Result<void> LaneRunner::run(LaneOutcome& outcome, int audited_lane) {
  const Result<void> done = run_waves(outcome, audited_lane);
  const Result<void> exchanges = done.ok() ? Result<void>() : tensor_group().watch();
  return exchanges.ok() ? done : exchanges;
}

Result<void> LaneRunner::run_waves(LaneOutcome& outcome, int audited_lane) {
  run_ = {.outcome = &outcome, .audited_lane = audited_lane};
  waiting_buckets_.clear();
  let_advance(executor_);
  const int runs = workload().schedule.runs;
  for (int run = 0; run < runs; ++run) {
    if (run > 0) HF_TRY_VOID(next_wave());
    executor_.record(parts_.rank.spans, static_cast<int>(run_.first_slot));
    HF_TRY_VOID(executor_.run());
    run_.first_slot += parts_.stage.loss_sums().size() / static_cast<std::size_t>(runs);
  }
  while (run_.wave + 1 < workload().lanes.waves()) HF_TRY_VOID(next_wave());
  pass_reduce_point();
  HF_TRY_VOID(parts_.update.reduction.finish_wave());
  HF_TRY_VOID(tensor_group().finish());
  return join_tied_gradients();
}

Result<void> LaneRunner::join_tied_gradients() {
  const BucketPlan& buckets = workload().buckets;
  const int tied = workload().tied_bucket();
  if (tied < 0 || buckets.is_frozen(tied)) return {};
  const RankContext& rank = parts_.rank;
  const HostSpan wait(&rank.spans, {.kind = SpanKind::wait_tied_weight});
  // A rank that has all its lanes to itself has not waited for their sum yet.
  wait_for_device(rank.device, rank.communicator);
  return pass_on(*rank.links.pipeline().tied(), rank.waiter,
                 std::as_writable_bytes(parts_.update.reduction.sum_of(tied)), buckets.exported() >= 0,
                 "the passing of a tied weight's gradient");
}

void LaneRunner::pass_reduce_point() {
  if (!run_.passed_reduce_point) HF_FAULT_POINT(parts_.rank.faults, "step.before_reduce");
  run_.passed_reduce_point = false;
}

void LaneRunner::announce(int bucket, std::optional<LaneDigests::Of> digests) {
  const LaunchedBucket launched{.bucket = bucket, .ticket = parts_.rank.device.ticket(), .digests = digests};
  if (buckets_wait_for_point_ && !audits()) {
    waiting_buckets_.push_back(launched);
  } else {
    let_leave(launched);
  }
}

void LaneRunner::let_leave(const LaunchedBucket& launched) {
  if (launched.digests.has_value()) parts_.checks.lanes.launch(*launched.digests, launched.bucket);
  if (!audits()) parts_.update.reduction.bucket_launched(launched.bucket, launched.ticket);
}

// Called when the backward of a lane is launched completely.
void LaneRunner::finish_lane() {
  if (buckets_wait_for_point_) {
    pass_reduce_point();
    run_.passed_reduce_point = true;
    for (const LaunchedBucket& each : waiting_buckets_) let_leave(each);
    waiting_buckets_.clear();
  }
  parts_.update.reduction.backward_launched();
}

Result<void> LaneRunner::begin_reduction() {
  if (run_.reducing) return {};
  run_.reducing = true;
  HF_TRY_VOID(parts_.update.gather.finish());
  return audits() ? Result<void>() : parts_.update.reduction.begin_wave(0);
}

Result<void> LaneRunner::next_wave() {
  pass_reduce_point();
  HF_TRY_VOID(parts_.update.reduction.finish_wave());
  return parts_.update.reduction.begin_wave(++run_.wave);
}

std::size_t LaneRunner::slot(StagePosition position) const {
  return run_.first_slot + static_cast<std::size_t>(position.microbatch);
}

Span LaneRunner::span_of(SpanKind kind, StagePosition position) const {
  return {.kind = kind,
          .chunk = static_cast<std::int16_t>(position.chunk),
          .microbatch = static_cast<std::int32_t>(slot(position))};
}

OpScope LaneRunner::scope_of(OpScope::Pass pass, StagePosition position) const {
  const auto per_lane = static_cast<std::size_t>(workload().batch_shape.microbatches_per_lane);
  return {.lane = audits() ? run_.audit_lane : workload().rank_lanes[slot(position) / per_lane],
          .microbatch = static_cast<int>(index_in_lane(position)),
          .pass = pass};
}

const Model& LaneRunner::model(StagePosition position) const {
  return parts_.stage.model(position.chunk);
}

TokenBatch LaneRunner::tokens(StagePosition position) const {
  return parts_.stage.tokens().at(slot(position));
}

std::optional<LaneDigests::Of> LaneRunner::digests_wanted(StagePosition position) const {
  if (audits()) return LaneDigests::Of::auditor;
  const auto per_lane = static_cast<std::size_t>(workload().batch_shape.microbatches_per_lane);
  if (run_.audited_lane == no_lane || workload().rank_lanes[slot(position) / per_lane] != run_.audited_lane)
    return {};
  return LaneDigests::Of::owner;
}

std::int64_t LaneRunner::index_in_lane(StagePosition position) const {
  return position.microbatch % workload().batch_shape.microbatches_per_lane;
}

bool LaneRunner::starts_next_lane(StagePosition position) const {
  return position.microbatch > 0 && index_in_lane(position) == 0;
}

// Loads the tokens of a microbatch. A loader error is kept for the vote; the lane still runs, so that no peer
// waits for its gradients. A rank that is only planned (planned_rank.h) has no loader and stages no tokens.
void LaneRunner::load(StagePosition position) {
  if (parts_.loader == nullptr) {
    parts_.stage.tokens().stage(slot(position), {}, {}, {});
    return;
  }
  Result<MicroBatch> batch = [&] {
    const HostSpan wait(&parts_.rank.spans, span_of(SpanKind::wait_data, position));
    HF_FAULT_POINT(parts_.rank.faults, "data.before_batch");
    const StorageWait storage(parts_.rank.watch, "training data");
    return audits() ? run_.audit_loader->next() : parts_.loader->next();
  }();
  if (!batch.ok()) {
    if (run_.outcome->failure.ok()) run_.outcome->failure = batch.error();
    return;
  }
  if (parts_.rank.faults.armed()) [[unlikely]]
    spoil_samples(position, *batch);
  parts_.stage.tokens().stage(slot(position), batch->inputs, batch->targets, batch->first_key);
  // All stages of a pipeline read the same samples; the first one counts them.
  if (!parts_.rank.counts_samples() || audits()) return;
  run_.outcome->data += batch->digest;
  run_.outcome->counted_targets += static_cast<std::int64_t>(batch->counted_targets);
  if (ledger_ != nullptr) ledger_->add(batch->samples);
}

void LaneRunner::spoil_samples(StagePosition position, MicroBatch& batch) {
  const std::uint64_t first =
      parts_.state.data_cursor + (audits() ? workload().first_sample_of(run_.audit_lane, position.microbatch)
                                           : workload().first_sample_of(slot(position)));
  const auto rows = static_cast<std::size_t>(workload().batch_shape.sequence_length);
  for (const auto& [index, fault] : parts_.rank.faults.spoiled_samples(first, batch.samples.size())) {
    if (fault == SampleFault::nan) {
      nan_sample_ = index;
      continue;
    }
    const auto token = static_cast<std::int32_t>(workload().spec.vocabulary - 1);
    scrambled_inputs_.assign(batch.inputs.begin(), batch.inputs.end());
    scrambled_targets_.assign(batch.targets.begin(), batch.targets.end());
    std::ranges::fill(std::span(scrambled_inputs_).subspan(index * rows, rows), token);
    // A target that is not counted stays so.
    for (std::int32_t& target : std::span(scrambled_targets_).subspan(index * rows, rows))
      target = target < 0 ? target : token;
    batch.inputs = scrambled_inputs_;
    batch.targets = scrambled_targets_;
  }
}

// Writes the NaN in the first row of the sample, on the rank of the tensor group that has the row.
void LaneRunner::spoil_embedding(int microbatch) {
  if (!nan_sample_.has_value()) return;
  const BatchShapeBT shape = workload().microbatch();
  const std::int64_t row = static_cast<std::int64_t>(*nan_sample_) * shape.sequence_length -
                           tensor_group().first_row(shape.rows());
  if (row < 0 || row >= tensor_group().own_rows(shape.rows())) return;
  const ModelSpec& spec = workload().spec;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const BFloat16 rounded = to_bfloat16(nan);
  const std::size_t bytes = bytes_of(spec.dtype);
  std::byte* const target = parts_.stage.model().input(microbatch, shape).data() +
                            static_cast<std::size_t>(row * spec.width) * bytes;
  parts_.rank.device.synchronize();
  write_memory(
      parts_.rank.device, target,
      spec.dtype == DType::bf16 ? std::as_bytes(std::span(&rounded, 1)) : std::as_bytes(std::span(&nan, 1)));
}

// Launches through Device::repeat(), which lets the device record and replay the launches, because they
// follow from the slot and the chunk of the microbatch alone. Launches directly where other ranks take part
// in between: those of a tensor group, or those whose parameters the first forward of a step waits for.
template <typename Launch>
Result<void> LaneRunner::launch_repeatedly(StagePosition position, Work work, const Launch& launch) {
  const bool reads_arriving_parameters =
      work == Work::forward && slot(position) == 0 && parts_.rank.mesh.shape().data > 1;
  if (tensor_group().share().ranks() > 1 || reads_arriving_parameters || nan_sample_.has_value())
    return launch();
  Result<void> launched;
  parts_.rank.device.repeat(repeat_key(slot(position), buckets_.size(), position, work),
                            [&] { launched = launch(); });
  return launched;
}

Result<void> LaneRunner::launch_forward(StagePosition position) {
  nan_sample_.reset();
  if (position.chunk == 0) load(position);
  const OpScopeGuard scope(parts_.rank.device.scope(), scope_of(OpScope::Pass::forward, position));
  const DeviceSpan span(parts_.rank.spans, parts_.rank.device, span_of(SpanKind::forward, position));
  return launch_repeatedly(position, Work::forward, [&] {
    return model(position).forward(parts_.rank.device, tokens(position), position.microbatch);
  });
}

bool LaneRunner::can_write_weight_gradients(StagePosition position) {
  return audits() || !starts_next_lane(position) || parts_.update.reduction.wave_is_done();
}

Error LaneRunner::give_up() {
  return parts_.update.reduction.give_up();
}

Result<void> LaneRunner::launch_backward(StagePosition position, const BackwardLaunch& backward) {
  HF_TRY_VOID(begin_reduction());
  const BackwardPart part = part_of(backward.work);
  // The buffer holds the gradients of the lane before until the last weight gradients of that lane are done.
  if (part != BackwardPart::inputs && starts_next_lane(position)) HF_TRY_VOID(next_wave());
  const bool first = index_in_lane(position) == 0;
  const bool begins_lane =
      first && part != BackwardPart::weights && position.chunk + 1 == static_cast<int>(buckets_.size());
  backward_ = position;
  if (begins_lane) HF_FAULT_POINT(parts_.rank.faults, "step.before_backward");
  const Model& stage = model(position);
  const BucketRange buckets = buckets_[static_cast<std::size_t>(position.chunk)];
  const std::optional<LaneDigests::Of> digests = digests_wanted(position);
  LaneBuckets observer(audits() ? nullptr : &parts_.update.reduction, buckets.first,
                       [this, digests](int bucket) { announce(bucket, digests); });
  // Launches with digests in between are not those that a device may have recorded.
  const bool announces = backward.completes_lane && (!buckets_wait_ || digests.has_value());
  const auto launch = [&] {
    return stage.backward(parts_.rank.device, tokens(position), position.microbatch,
                          &parts_.stage.loss_sums()[slot(position)],
                          {.part = part,
                           .accumulate = !first,
                           .gradient_scale = 1.0F / static_cast<float>(workload().tokens_per_step()),
                           .observer = announces ? &observer : nullptr,
                           .completes_lane = backward.completes_lane,
                           .follows_forward = backward.follows_forward});
  };
  {
    const DeviceSpan span(parts_.rank.spans, parts_.rank.device, span_of(span_kind_of(part), position));
    const OpScopeGuard scope(parts_.rank.device.scope(), scope_of(scope_pass_of(part), position));
    HF_TRY_VOID(announces ? launch() : launch_repeatedly(position, backward.work, launch));
  }
  for (int i = 0; backward.completes_lane && !announces && i < buckets.count; ++i)
    observer.bucket_launched(i);
  if (stage.has_head() && part != BackwardPart::weights) ++run_.outcome->losses;
  if (backward.completes_lane && position.chunk == 0 && !audits()) finish_lane();
  return {};
}

std::span<std::byte> LaneRunner::boundary_activation() {
  return model(backward_).has_head() ? output(backward_) : input(backward_);
}

std::span<std::byte> LaneRunner::input(StagePosition position) {
  return model(position).input(position.microbatch, tokens(position).shape);
}

std::span<std::byte> LaneRunner::output(StagePosition position) {
  return model(position).output(position.microbatch, tokens(position).shape);
}

std::span<std::byte> LaneRunner::output_gradient(StagePosition position) {
  return model(position).output_gradient(position.microbatch, tokens(position).shape);
}

std::span<std::byte> LaneRunner::input_gradient(StagePosition position) {
  return model(position).input_gradient(position.microbatch, tokens(position).shape);
}

Result<bool> LaneRunner::advance() {
  HF_TRY_VOID(tensor_group().watch());
  HF_TRY(const bool gathering, parts_.update.gather.advance());
  HF_TRY(const bool reducing, parts_.update.reduction.advance());
  return gathering || reducing;
}

}  // namespace holdfast::train
