#include "runtime/train/stage_model.h"

namespace holdfast::train {

StageModel::StageModel(const Workload& workload, const RankContext& rank, MemoryPlan& plan)
    : workload_(&workload),
      parameters_slot_(plan.reserve("parameters", MemoryClass::weights,
                                    workload.buckets.parameter_elements() * bytes_of(workload.spec.dtype))),
      gradients_slot_(plan.reserve("gradients", MemoryClass::gradients,
                                   workload.buckets.gradient_elements() * sizeof(float))),
      tokens_({.microbatch = workload.microbatch(),
               .with_first_keys = rank.config.data.document_mask,
               .slots = workload.step_slots()},
              rank.device, plan),
      loss_sums_slot_(plan.reserve("loss_sums", MemoryClass::workspace,
                                   workload.step_slots() * sizeof(double), MemoryKind::host_visible)) {
  for (std::size_t chunk = 0; chunk < workload.parts.size(); ++chunk) {
    const StageShape shape{.part = workload.parts[chunk],
                           .microbatches_in_flight = workload.schedule.activation_buffers[chunk],
                           .weight_gradients_pending = workload.schedule.weight_gradient_buffers[chunk],
                           .tensor = workload.share};
    models_.push_back(std::make_unique<Model>(workload.spec, workload.microbatch(), Model::Mode::train, plan,
                                              recompute_of(rank.config), shape));
  }
}

void StageModel::bind(Device& device, const MemoryArena& arena, TensorGroup& group, ParameterGather& gather) {
  parameters_ = arena.at<std::byte>(parameters_slot_);
  gradients_ = arena.at<float>(gradients_slot_);
  tokens_.bind(arena);
  loss_sums_ = {arena.at<double>(loss_sums_slot_), workload_->step_slots()};
  for (const std::unique_ptr<Model>& model : models_) {
    model->bind(device, arena, workload_->buckets, parameters_, gradients_);
    model->join(group);
    model->set_parameter_wait([&gather](int bucket) { return gather.wait_for(bucket); });
  }
}

Result<void> StageModel::launch_all_kinds(Device& device) const {
  const TokenBatch batch = tokens_.at(0);
  const OpScopeGuard scope(device.scope(), {});
  for (const std::unique_ptr<Model>& model : models_) {
    for (const bool accumulate : {false, true}) {
      HF_TRY_VOID(model->forward_backward(device, batch, loss_sums_.data(), {.accumulate = accumulate}));
    }
    HF_TRY_VOID(model->forward_loss(device, batch, loss_sums_.data()));
  }
  return {};
}

}  // namespace holdfast::train
