#include "runtime/train/evaluation.h"

#include <algorithm>
#include <array>

#include "parallel/agreement.h"
#include "runtime/core/exact_sum.h"

namespace holdfast {
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
    const DataOptions options = {.documents = data_options(config.data).documents, .validation = {}};
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

Result<double> HeldOutSet::loss(Worker& worker) {
  HF_FAULT_POINT(worker.faults(), "evaluation.begin");
  const auto rank = static_cast<std::uint64_t>(worker.communicator().rank());
  const auto ranks = static_cast<std::uint64_t>(worker.communicator().size());
  ExactSum sum;
  std::int64_t counted = 0;
  Result<void> outcome;
  for (std::uint64_t batch = rank; batch < batches_ && outcome.ok(); batch += ranks) {
    const Result<std::uint64_t> loaded = load_microbatch(batch, worker.spec().vocabulary);
    outcome = outcome_of(loaded);
    if (!outcome.ok()) break;
    counted += static_cast<std::int64_t>(*loaded);
    double* loss_sum = worker.loss_sums().data();
    worker.model().forward_loss(worker.device(), worker.stage_tokens(0, inputs_, targets_, first_key_),
                                loss_sum);
    worker.device().synchronize();
    sum.add(*loss_sum);
  }
  HF_TRY_VOID(agree_on_outcome(worker.communicator(), worker.waiter(), outcome, worker.env().host_name()));
  sum.normalise();
  HF_TRY_VOID(all_reduce_sum(worker.communicator(), worker.waiter(), sum.words()));
  HF_TRY_VOID(all_reduce_sum(worker.communicator(), worker.waiter(), std::span(&counted, 1)));
  return sum.value() / static_cast<double>(std::max<std::int64_t>(1, counted));
}

}  // namespace holdfast
