#include "tools/bench_native/step_calls.h"

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <utility>

#include "kernels/visit_op.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/measure/call_key.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"

namespace holdfast::bench {
namespace {

// Lists that calls point to. Those of a plan are memory that is addresses alone, or are gone when a call has been seen.
struct StepLists {
  std::vector<OptimizerTensor> tensors;
  std::vector<BlockSegment> segments;
  std::vector<std::byte> places;  // addresses that stand for memory
};

std::shared_ptr<StepLists> table_of(Worker& worker) {
  auto lists = std::make_shared<StepLists>();
  const std::vector<Segment>& segments = worker.optimizer().segments();
  lists->places.resize(segments.size());
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const bool has_copy = worker.workload().spec.dtype == DType::bf16;
    lists->tensors.push_back({.copy = has_copy ? reinterpret_cast<BFloat16*>(&lists->places[i]) : nullptr,
                              .count = static_cast<std::int64_t>(segments[i].elements),
                              .first_block = blocks,
                              .weight_decay = 0.1F});
    blocks += static_cast<std::int64_t>(segments[i].block_count);
  }
  return lists;
}

// Returns which keys the tokens of a run's first microbatch see; nothing where documents are not masked.
Result<std::vector<std::int32_t>> first_keys_of(const Config& config, const DataSet& data) {
  const auto rows = static_cast<std::size_t>(config.training.microbatch_size);
  const auto length = static_cast<std::size_t>(config.training.sequence_length);
  std::vector<std::int32_t> inputs(rows * length), targets(rows * length), window(length + 1);
  std::vector<std::int32_t> first_keys(data.masks_documents() ? rows * length : 0);
  if (first_keys.empty()) return first_keys;
  const SequenceRows sequences(inputs, targets, first_keys, length);
  const SampleOrder order = data.order(static_cast<std::uint64_t>(config.run.seed));
  for (std::size_t row = 0; row < rows; ++row) {
    const SampleId id = order.at(row);
    HF_TRY_VOID(data.read(id, window, config.model.vocabulary));
    HF_TRY_VOID(outcome_of(data.fill_row(id, window, sequences[row])));
  }
  return first_keys;
}

// CallCounter counts calls by their keys.
class CallCounter {
 public:
  CallCounter(Worker& worker, std::vector<std::int32_t> first_keys)
      : tokens_(worker.workload().spec.vocabulary),
        first_keys_(std::move(first_keys)),
        table_(table_of(worker)) {}

  template <typename Op>
  void count(const Op& launched) {
    Op op = launched;
    OpSample sample{.use = {}, .shape = OpCall(op), .contents = {.tokens_below = tokens_}};
    if constexpr (requires { op.tensors; }) {
      if (static_cast<std::size_t>(op.tensor_count) > table_->tensors.size()) {
        problem_ = fmt::format(
            "a call of {} has {} tensors, where the rank's optimizer has {}: it cannot be measured",
            name_of(Op::id), op.tensor_count, table_->tensors.size());
        return;
      }
      op.tensors = table_->tensors.data();
      sample.lists = table_;
    }
    if constexpr (requires { op.segments; }) {
      auto lists = std::make_shared<StepLists>();
      lists->segments.assign(op.segments, op.segments + op.segment_count);
      op.segments = op.segment_count > 0 ? lists->segments.data() : nullptr;
      sample.lists = lists;
    }
    if constexpr (requires { op.first_key; }) {
      if (op.first_key != nullptr) {
        if (std::ssize(first_keys_) != op.batch * op.sequence_length) {
          problem_ = fmt::format(
              "a call of {} in documents has {} tokens, where a microbatch of the run has {}: it cannot be "
              "measured",
              name_of(Op::id), op.batch * op.sequence_length, first_keys_.size());
          return;
        }
        sample.contents.first_keys = first_keys_;
        sample.flops_share = share_of_pairs(first_keys_, op.sequence_length);
      }
    }
    sample.shape = OpCall(op);
    const auto [place, is_new] = places_.try_emplace(measure::call_key(Op::id, &op), calls_.size());
    if (is_new) calls_.push_back({.sample = std::move(sample)});
    ++calls_[place->second].calls;
  }
  Result<std::vector<StepCall>> take() {
    if (!problem_.empty()) return fail(ExitCode::config, "{}", problem_);
    return std::move(calls_);
  }

 private:
  std::int64_t tokens_;
  std::vector<std::int32_t> first_keys_;
  std::shared_ptr<StepLists> table_;
  std::map<measure::CallKey, std::size_t> places_;
  std::vector<StepCall> calls_;
  std::string problem_;  // of a call that cannot be measured
};

}  // namespace

double share_of_pairs(std::span<const std::int32_t> first_keys, std::int64_t sequence_length) {
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < first_keys.size(); ++i)
    pairs += static_cast<std::int64_t>(i) % sequence_length - first_keys[i] + 1;
  return 2.0 * static_cast<double>(pairs) /
         (static_cast<double>(first_keys.size()) * static_cast<double>(sequence_length + 1));
}

Result<std::vector<StepCall>> calls_of_step(Env& env, const Config& config, const DataSet& data, OpId op) {
  HF_TRY(std::vector<std::int32_t> first_keys, first_keys_of(config, data));
  HF_TRY(const std::unique_ptr<PlannedWorker> planned,
         PlannedWorker::make(env, config, mesh_of(config, 1), 0, {.device = {.host_sees_memory = true}}));
  CallCounter counter(planned->worker(), std::move(first_keys));
  HF_TRY_VOID(planned->run_step([&](OpId id, const void* arguments) {
    if (id == op) visit_op(id, arguments, [&](const auto& launched) { counter.count(launched); });
  }));
  return counter.take();
}

}  // namespace holdfast::bench
