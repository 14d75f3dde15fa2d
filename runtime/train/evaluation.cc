#include "runtime/train/evaluation.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/core/exact_sum.h"
#include "runtime/rank/watch.h"

namespace holdfast::train {
namespace {

constexpr std::uint64_t held_out_seed = 0;

}  // namespace

Result<HeldOutSet> HeldOutSet::open(Env& env, const Config& config, const DataSet& training) {
  HeldOutSet set;
  set.microbatch_size_ = static_cast<std::size_t>(config.training.microbatch_size);
  set.sequence_length_ = static_cast<std::size_t>(config.training.sequence_length);
  if (config.evaluation.sources.empty()) {
    set.data_ = training.validation_part();
  } else {
    DataOptions options = data_options(config);
    options.validation = {};
    HF_TRY(set.data_,
           DataSet::open(env, config.evaluation.sources, config.training.sequence_length, options));
  }
  const std::uint64_t samples = set.data_->sample_count();
  const std::uint64_t available = samples / set.microbatch_size_;
  if (available == 0) {
    return fail(
        ExitCode::data,
        "{} {} of {} tokens each, expected at least one microbatch of {}. Give more held-out data, or lower "
        "training.microbatch_size or training.sequence_length",
        config.evaluation.sources.empty()
            ? fmt::format("data.validation_fraction = {} holds back", config.data.validation_fraction)
            : "evaluation.sources hold",
        samples == 1 ? "1 sample" : fmt::format("{} samples", samples), set.sequence_length_,
        set.microbatch_size_);
  }
  set.batches_ = std::min(static_cast<std::uint64_t>(config.evaluation.batches), available);
  const std::size_t tokens = set.microbatch_size_ * set.sequence_length_;
  set.inputs_.resize(tokens);
  set.targets_.resize(tokens);
  set.first_key_.resize(set.data_->masks_documents() ? tokens : 0);
  set.window_.resize(set.sequence_length_ + 1);
  return set;
}

Result<std::uint64_t> HeldOutSet::load_microbatch(std::uint64_t batch, std::int64_t vocabulary) {
  const SampleOrder order = data_->order(held_out_seed);
  const SequenceRows rows(inputs_, targets_, first_key_, sequence_length_);
  std::uint64_t counted = 0;
  for (std::size_t i = 0; i < microbatch_size_; ++i) {
    const SampleId id = order.at(batch * microbatch_size_ + i);
    HF_TRY_VOID(data_->read(id, window_, vocabulary));
    HF_TRY(const std::uint64_t counted_of_row, data_->fill_row(id, window_, rows[i]));
    counted += counted_of_row;
  }
  return counted;
}

// Runs only forwards of this rank's stage of the pipeline, for as many microbatches at once as the worker has
// slots for tokens.
class HeldOutSet::Forwards final : public StageWork {
 public:
  Forwards(HeldOutSet& set, Worker& worker) : set_(&set), worker_(&worker) {
    const int stages = worker.rank().mesh.shape().pipeline, stage = worker.rank().coordinate.pipeline;
    const int chunks = static_cast<int>(worker.workload().parts.size());
    for (int i = 0; i < static_cast<int>(room()); ++i) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const bool first = stage == 0 && chunk == 0, last = stage + 1 == stages && chunk + 1 == chunks;
        actions_.push_back({.work = Work::forward,
                            .chunk = chunk,
                            .microbatch = i,
                            .source = first ? no_stage : (stage + stages - 1) % stages,
                            .target = last ? no_stage : (stage + 1) % stages});
      }
    }
    for (int chunk = 0; chunk < chunks; ++chunk)
      buffers_.push_back(worker.stage().model(chunk).microbatches_in_flight());
  }

  // Adds the losses of the `count` batches first, first + stride ... to `sum`.
  Result<void> run(std::uint64_t first, std::uint64_t stride, std::size_t count) {
    first_ = first;
    stride_ = stride;
    const auto actions = std::span(actions_).first(count * buffers_.size());
    StageExecutor executor(*this, worker_->rank().device, worker_->rank().links.pipeline().neighbours(),
                           worker_->rank().waiter, {actions.begin(), actions.end()}, buffers_);
    worker_->rank().links.tensor_group().set_background([&executor] { return executor.advance(); });
    const Result<void> run = executor.run();
    worker_->rank().links.tensor_group().set_background({});
    HF_TRY_VOID(run);
    HF_TRY_VOID(worker_->rank().links.tensor_group().finish());
    wait_for_device(worker_->rank().device, worker_->rank().communicator);
    if (!worker_->workload().parts.back().has_head || !worker_->rank().counts_replicated()) return {};
    for (const double loss : worker_->stage().loss_sums().first(count)) sum.add(loss);
    return {};
  }

  std::size_t room() const { return worker_->stage().loss_sums().size(); }

  ExactSum sum;
  std::int64_t counted = 0;
  Result<void> failure;

 private:
  // Loads a batch into a slot. Where it cannot be read, the forward runs on whatever the memory holds, so
  // that no stage waits for it.
  void load(std::size_t slot) {
    const Result<std::uint64_t> loaded = [&] {
      const StorageWait storage(worker_->rank().watch, "held-out data");
      return set_->load_microbatch(first_ + slot * stride_, worker_->workload().spec.vocabulary);
    }();
    if (loaded.ok()) {
      worker_->stage().tokens().stage(slot, set_->inputs_, set_->targets_, set_->first_key_);
      if (worker_->rank().counts_samples()) counted += static_cast<std::int64_t>(*loaded);
    } else if (failure.ok()) {
      failure = loaded.error();
    }
  }
  Result<void> launch_forward(StagePosition position) override {
    const auto slot = static_cast<std::size_t>(position.microbatch);
    if (position.chunk == 0) load(slot);
    const OpScopeGuard scope(worker_->rank().device.scope(), {.pass = OpScope::Pass::forward});
    return worker_->stage()
        .model(position.chunk)
        .forward_loss(worker_->rank().device, worker_->stage().tokens().at(slot), position.microbatch,
                      &worker_->stage().loss_sums()[slot]);
  }
  Result<void> launch_backward(StagePosition, const BackwardLaunch&) override { return {}; }
  bool can_write_weight_gradients(StagePosition) override { return true; }
  Error give_up() override { return {}; }  // there is no backward
  std::span<std::byte> input(StagePosition position) override {
    return worker_->stage()
        .model(position.chunk)
        .input(position.microbatch, worker_->stage().tokens().at(0).shape);
  }
  std::span<std::byte> output(StagePosition position) override {
    return worker_->stage()
        .model(position.chunk)
        .output(position.microbatch, worker_->stage().tokens().at(0).shape);
  }
  std::span<std::byte> output_gradient(StagePosition) override { return {}; }
  std::span<std::byte> input_gradient(StagePosition) override { return {}; }
  Result<bool> advance() override { return false; }

  HeldOutSet* set_;
  Worker* worker_;
  std::vector<Action> actions_;
  std::vector<int> buffers_;  // by chunk
  std::uint64_t first_ = 0, stride_ = 1;
};

Result<double> HeldOutSet::loss(Worker& worker) {
  HF_FAULT_POINT(worker.rank().faults, "evaluation.begin");
  HF_TRY_VOID(worker.parameter_gather().finish());
  const auto rank = static_cast<std::uint64_t>(worker.rank().coordinate.data);
  const auto ranks = static_cast<std::uint64_t>(worker.rank().mesh.shape().data);
  Forwards forwards(*this, worker);
  for (std::uint64_t batch = rank; batch < batches_;) {
    const std::uint64_t left = (batches_ - batch + ranks - 1) / ranks;
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, forwards.room()));
    HF_TRY_VOID(forwards.run(batch, ranks, count));
    mark(worker.rank().watch);
    batch += count * ranks;
  }
  ExactSum& sum = forwards.sum;
  std::int64_t& counted = forwards.counted;
  const Result<void>& outcome = forwards.failure;
  HF_TRY_VOID(agree_on_fitness(worker.rank().communicator, worker.rank().waiter, outcome,
                               worker.rank().env.host_name(), Examined::own));
  sum.normalise();
  HF_TRY_VOID(all_reduce_sum(worker.rank().communicator, worker.rank().waiter, sum.words()));
  HF_TRY_VOID(all_reduce_sum(worker.rank().communicator, worker.rank().waiter, std::span(&counted, 1)));
  return sum.value() / static_cast<double>(std::max<std::int64_t>(1, counted));
}

}  // namespace holdfast::train
