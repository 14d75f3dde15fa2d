// StageModel is the part of the model that one rank computes, with the memory it is computed in: parameters
// and gradients, one model for each chunk of the stage, the tokens of a step's microbatches and their losses.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/data/parameter_gather.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/model/model.h"
#include "runtime/rank/rank_context.h"
#include "runtime/train/token_staging.h"
#include "runtime/train/workload.h"

namespace holdfast::train {

class StageModel {
 public:
  // Reserves its memory in `plan`. `workload` and the device of `rank` outlive this object.
  StageModel(const Workload& workload, const RankContext& rank, MemoryPlan& plan);
  // Binds the allocated memory; called once. A forward waits for `gather`, and exchanges rows with the ranks
  // of `group`; both outlive this object.
  void bind(Device& device, const MemoryArena& arena, TensorGroup& group, ParameterGather& gather);

  // Passes on to Model::set_after_embedding().
  void set_after_embedding(const std::function<void(int microbatch)>& change) {
    for (const std::unique_ptr<Model>& model : models_) model->set_after_embedding(change);
  }
  const Workload& workload() const { return *workload_; }
  const Model& model(int chunk = 0) const { return *models_[static_cast<std::size_t>(chunk)]; }
  // Returns the token memory, which has a slot for each microbatch of a step. Without data.document_mask
  // there are no first keys.
  TokenStaging& tokens() { return tokens_; }
  // Returns the loss sums, one per microbatch that this rank runs in a step, in the order in which it runs
  // them. They are written on the stage that has the head.
  std::span<double> loss_sums() const { return loss_sums_; }
  std::byte* parameters() const { return parameters_; }
  float* gradients() const { return gradients_; }
  // Launches every kind of microbatch once, on a device that plans its kernels.
  Result<void> launch_all_kinds(Device& device) const;

 private:
  const Workload* workload_;
  MemoryPlan::Slot parameters_slot_, gradients_slot_;
  TokenStaging tokens_;
  MemoryPlan::Slot loss_sums_slot_;
  std::vector<std::unique_ptr<Model>> models_;  // by chunk
  std::byte* parameters_ = nullptr;
  float* gradients_ = nullptr;
  std::span<double> loss_sums_;
};

}  // namespace holdfast::train
