#include "tools/bench_native/step_calls.h"

#include <map>
#include <span>

#include "kernels/visit_op.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/measure/call_key.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"

namespace holdfast::bench {
namespace {

// Lists that calls point to. Those of a plan are memory that is addresses alone, or are gone when a call has been seen.
struct StepLists {
  std::vector<AdamWTensor> tensors;
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

// CallCounter counts calls by their keys.
class CallCounter {
 public:
  explicit CallCounter(Worker& worker)
      : tokens_(worker.workload().spec.vocabulary), table_(table_of(worker)) {}

  template <typename Op>
  void count(const Op& launched) {
    Op op = launched;
    OpSample sample{.use = {}, .shape = OpCall(op), .contents = {.tokens_below = tokens_}};
    if constexpr (requires { op.tensors; }) {
      if (static_cast<std::size_t>(op.tensor_count) > table_->tensors.size()) return;
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
      if (op.first_key != nullptr)
        sample.contents.first_keys.resize(static_cast<std::size_t>(op.batch * op.sequence_length));
    }
    sample.shape = OpCall(op);
    const auto [place, is_new] = places_.try_emplace(measure::call_key(Op::id, &op), calls_.size());
    if (is_new) calls_.push_back({.sample = std::move(sample)});
    ++calls_[place->second].calls;
  }
  std::vector<StepCall> take() { return std::move(calls_); }

 private:
  std::int64_t tokens_;
  std::shared_ptr<StepLists> table_;
  std::map<measure::CallKey, std::size_t> places_;
  std::vector<StepCall> calls_;
};

}  // namespace

Result<std::vector<StepCall>> calls_of_step(Env& env, const Config& config, OpId op) {
  HF_TRY(const std::unique_ptr<PlannedWorker> planned,
         PlannedWorker::make(env, config, mesh_of(config, 1), 0, {.device = {.host_sees_memory = true}}));
  CallCounter counter(planned->worker());
  HF_TRY_VOID(planned->run_step([&](OpId id, const void* arguments) {
    if (id == op) visit_op(id, arguments, [&](const auto& launched) { counter.count(launched); });
  }));
  return counter.take();
}

}  // namespace holdfast::bench
