#include "runtime/train/evaluation.h"

#include <algorithm>
#include <array>

#include "parallel/agreement.h"
#include "runtime/core/exact_sum.h"

namespace holdfast {
namespace {

constexpr std::uint64_t held_out_seed = 0;

}  // namespace

Result<HeldOutSet> HeldOutSet::open(Env& env, const Config& config) {
  HeldOutSet set;
  set.microbatch_size_ = static_cast<std::size_t>(config.training.microbatch_size);
  set.sequence_length_ = static_cast<std::size_t>(config.training.sequence_length);
  HF_TRY(set.data_, DataSet::open(env, config.evaluation.sources, config.training.sequence_length));
  const std::uint64_t samples = set.data_->sample_count();
  const std::uint64_t available = samples / set.microbatch_size_;
  if (available == 0) {
    return fail(
        ExitCode::data,
        "evaluation.sources hold {} of {} tokens each, expected at least one microbatch of {}. Give more "
        "held-out data, or lower training.microbatch_size or training.sequence_length",
        samples == 1 ? "1 sample" : fmt::format("{} samples", samples), set.sequence_length_,
        set.microbatch_size_);
  }
  set.batches_ = std::min(static_cast<std::uint64_t>(config.evaluation.batches), available);
  set.inputs_.resize(set.microbatch_size_ * set.sequence_length_);
  set.targets_.resize(set.inputs_.size());
  set.window_.resize(set.sequence_length_ + 1);
  return set;
}

Result<void> HeldOutSet::load_microbatch(std::uint64_t batch, std::int64_t vocabulary) {
  const SampleOrder order = data_->order(held_out_seed);
  for (std::size_t i = 0; i < microbatch_size_; ++i) {
    HF_TRY_VOID(data_->read(order.at(batch * microbatch_size_ + i), window_, vocabulary));
    const auto at = static_cast<std::ptrdiff_t>(i * sequence_length_);
    std::copy(window_.begin(), window_.end() - 1, inputs_.begin() + at);
    std::copy(window_.begin() + 1, window_.end(), targets_.begin() + at);
  }
  return {};
}

Result<double> HeldOutSet::loss(Worker& worker) {
  HF_FAULT_POINT(worker.faults(), "evaluation.begin");
  const auto rank = static_cast<std::uint64_t>(worker.communicator().rank());
  const auto ranks = static_cast<std::uint64_t>(worker.communicator().size());
  ExactSum sum;
  Result<void> outcome;
  for (std::uint64_t batch = rank; batch < batches_ && outcome.ok(); batch += ranks) {
    outcome = load_microbatch(batch, worker.spec().vocabulary);
    if (!outcome.ok()) break;
    double* loss_sum = worker.loss_sums().data();
    worker.model().forward_loss(worker.device(), worker.stage_tokens(0, inputs_, targets_), loss_sum);
    worker.device().synchronize();
    sum.add(*loss_sum);
  }
  HF_TRY_VOID(agree_on_outcome(worker.communicator(), worker.waiter(), outcome, worker.env().host_name()));
  sum.normalise();
  HF_TRY_VOID(all_reduce_sum(worker.communicator(), worker.waiter(), sum.words()));
  return sum.value() / static_cast<double>(batches_ * microbatch_size_ * sequence_length_);
}

}  // namespace holdfast
