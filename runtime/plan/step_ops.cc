#include "runtime/plan/step_ops.h"

#include <fmt/core.h>

#include <map>
#include <memory>

#include "kernels/visit_op.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/measure/op_text.h"
#include "runtime/measure/report.h"
#include "runtime/run/run_layout.h"
#include "runtime/train/worker.h"

namespace holdfast::plan {
namespace {

template <typename Op>
Json arguments_of(const Op& op) {
  Json json = Json::object();
  measure::visit_shape(op, [&](const char* name, const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_pointer_v<Value>) {
      json[name] = value != nullptr;
    } else if constexpr (std::is_same_v<Value, DType>) {
      json[name] = name_of(value);
    } else {
      json[name] = value;
    }
  });
  if constexpr (requires {
                  op.gradient_scale;
                  op.row_stride;
                })
    json["gradient"] = op.gradient_scale < 0.0F || op.gradient_scale > 0.0F;
  return json;
}

// Counts launches by what they do.
class OpCounter {
 public:
  explicit OpCounter(Worker& worker) {
    for (const Segment& segment : worker.optimizer().segments()) {
      table_.push_back({.copy = worker.workload().spec.dtype == DType::bf16 ? &copy_ : nullptr,
                        .count = static_cast<std::int64_t>(segment.elements)});
    }
  }
  OpCounter(const OpCounter&) = delete;
  OpCounter& operator=(const OpCounter&) = delete;

  void count(OpId id, const void* arguments) {
    visit_op(id, arguments, [&]<typename Op>(Op op) {
      if constexpr (is_update(Op::id)) op.tensors = table_.data();
      add(id, &op);
    });
  }
  std::vector<StepOp> take() { return std::move(ops_); }

 private:
  void add(OpId id, const void* arguments) {
    StepOp op{.id = id,
              .shape = measure::shape_text(id, arguments),
              .arguments = visit_op(id, arguments, [](const auto& of_id) { return arguments_of(of_id); }),
              .cost = kernels::cost_of(id, arguments),
              .calls = 1};
    const std::string key = fmt::format("{} {} {}", name_of(id), op.arguments.dump(), op.cost.bytes_updated);
    const auto [place, is_new] = places_.try_emplace(key, ops_.size());
    if (is_new) {
      ops_.push_back(std::move(op));
    } else {
      ++ops_[place->second].calls;
    }
  }

  // Stands for the optimizer's table, which lies where the host may not see it.
  std::vector<OptimizerTensor> table_;
  BFloat16 copy_;
  std::map<std::string, std::size_t> places_;  // in ops_
  std::vector<StepOp> ops_;
};

std::string bytes_text(std::uint64_t bytes) {
  return bytes == 0 ? "" : format_bytes(bytes);
}

}  // namespace

Result<StepOps> step_ops(Env& env, const Config& config, int ranks, int rank, const PlannedMachine& machine) {
  HF_TRY_VOID(check_layout(config, ranks));
  HF_CHECK(0 <= rank && rank < ranks, "rank {} of {}", rank, ranks);
  const Mesh mesh = mesh_of(config, ranks);
  const std::vector<std::string> one_host(static_cast<std::size_t>(mesh.shape().ranks()));
  HF_TRY(const std::unique_ptr<PlannedWorker> planned,
         PlannedWorker::make(env, config, mesh, rank,
                             {.device = {.host_sees_memory = machine.host_sees_memory},
                              .buddies = replica_buddies(config, mesh, one_host),
                              .with_nccl = machine.with_nccl}));
  Worker& worker = planned->worker();
  StepOps step{.config = config,
               .ranks = ranks,
               .rank = rank,
               .coordinate = worker.rank().coordinate,
               .device_bytes = worker.memory_plan().total_bytes(MemoryKind::device)};
  for (const Segment& segment : worker.optimizer().segments()) step.gradient_blocks += segment.block_count;
  for (int wave = 0; wave < worker.workload().lanes.waves(); ++wave) {
    step.lanes += worker.workload().lanes.lane_of(wave, step.coordinate.data) >= 0 ? 1 : 0;
  }
  OpCounter counter(worker);
  HF_TRY_VOID(planned->run_step([&](OpId id, const void* arguments) { counter.count(id, arguments); }));
  step.ops = counter.take();
  return step;
}

std::string step_ops_text(const StepOps& step) {
  TextTable table({"op", "shape", "calls", "GFLOP", "read", "written"}, 2);
  double flops = 0.0;
  std::int64_t launches = 0;
  for (const StepOp& op : step.ops) {
    table.add({name_of(op.id), op.shape, fmt::format("{}", op.calls),
               op.cost.flops > 0.0 ? digits(op.cost.flops / 1e9) : "", bytes_text(op.cost.bytes_read),
               bytes_text(op.cost.bytes_written)});
    flops += op.cost.flops * static_cast<double>(op.calls);
    launches += op.calls;
  }
  return fmt::format(
      "ops of a step of rank {} of {} (data {}, pipeline {}, tensor {}), in the order of their first launch; "
      "GFLOP and bytes are of one call\n\n{}\n{} launches of ops, {} GFLOP\n",
      step.rank, step.ranks, step.coordinate.data, step.coordinate.pipeline, step.coordinate.tensor,
      table.text(), launches, digits(flops / 1e9));
}

Json step_ops_json(const StepOps& step) {
  const ModelSpec spec = make_model_spec(step.config);
  const TrainingConfig& training = step.config.training;
  const std::int64_t rows = training.microbatch_size * training.sequence_length;
  Json json = {{"ranks", step.ranks},
               {"rank", step.rank},
               {"device", step.config.device},
               {"preset", step.config.model.preset},
               {"precision", training.precision},
               {"recompute", training.recompute},
               {"cuda_graphs", training.cuda_graphs},
               {"document_mask", step.config.data.document_mask},
               {"parameters", parameter_count(spec)},
               {"padded_vocabulary", spec.padded_vocabulary},
               {"flops_per_token", flops_per_token(spec, training.sequence_length)},
               {"sequence_length", training.sequence_length},
               {"microbatch_rows", rows},
               {"lanes", step.lanes},
               {"microbatches", step.lanes * training.microbatches_per_lane},
               {"tokens", step.lanes * training.microbatches_per_lane * rows},
               {"gradient_blocks", step.gradient_blocks},
               {"device_bytes", step.device_bytes},
               {"ops", Json::array()}};
  for (const StepOp& op : step.ops) {
    json["ops"].push_back({{"op", name_of(op.id)},
                           {"shape", op.shape},
                           {"calls", op.calls},
                           {"flops", op.cost.flops},
                           {"bytes_read", op.cost.bytes_read},
                           {"bytes_written", op.cost.bytes_written},
                           {"bytes_updated", op.cost.bytes_updated},
                           {"arguments", op.arguments}});
  }
  return json;
}

}  // namespace holdfast::plan
