// ShardedOptimizer runs AdamW on the blocks that this rank owns: moments and, in bf16 runs, fp32 master
// weights exist only at their owner.
//
// In fp32 runs the owner's range of the flat parameter buffer is the master itself; in bf16 runs the master
// is a shard and the update writes the rounded copy into the parameter buffer. After the update
// ParameterGather sends the owned ranges to all ranks.
//
// A frozen tensor has an owner as well, which saves and loads its weight; in bf16 runs that keeps its fp32
// value, too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/optimizer.h"
#include "parallel/data/buckets.h"
#include "runtime/config/config.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tensor.h"

namespace holdfast::inline optim {

struct UpdateScalars {
  std::int64_t step = 1;  // counted from 1: decides the bias correction
  double learning_rate = 0.0;
  double gradient_scale = 1.0;  // factor from clipping
};

// One owned segment of one kind of state in device memory, which checkpoints read and write.
struct OwnedState {
  ShardSpec spec;  // kind: "weight", "moment1", "moment2"
  float* data = nullptr;
};

class ShardedOptimizer {
 public:
  ShardedOptimizer(const BucketPlan& buckets, int rank, DType dtype, const OptimizerConfig& config,
                   MemoryPlan& plan);
  // Takes the addresses, once, after the arena exists; `gradients` as LaneReduction::reduced() says.
  void bind(Device& device, const MemoryArena& arena, std::byte* parameters, ReducedGradients gradients);

  const std::vector<Segment>& segments() const { return segments_; }  // those that are trained
  void launch_update(Device& device, const UpdateScalars& scalars);
  // Multiplies the learning rate of the next update, for tests (runtime/os/fault_point.h).
  void scale_next_rate(double factor) { next_rate_factor_ = factor; }
  // Rounds the owned master weights into the parameter buffer in bf16 runs (after a start or a load). Does
  // nothing in fp32 runs.
  void launch_publish(Device& device);

  // Returns the weights of all segments, the frozen ones last, and then the moments of the trained ones.
  std::vector<OwnedState> state();

 private:
  float* master(const Segment& segment) const;
  BFloat16* working_copy(const Segment& segment) const;  // bf16 runs: where other ranks and the model see it

  OptimizerConfig config_;
  DType dtype_;
  std::vector<Segment> segments_, frozen_;
  std::vector<ShardSpec> specs_;    // of kind "weight", one per segment, then one per frozen segment
  std::vector<bool> weight_decay_;  // one per segment
  std::int64_t block_count_ = 0;
  double next_rate_factor_ = 1.0;
  MemoryPlan::Slot master_slot_, moment1_slot_, moment2_slot_, table_slot_;
  float* master_ = nullptr;
  float* moment1_ = nullptr;
  float* moment2_ = nullptr;
  const AdamWTensor* table_ = nullptr;  // one per segment
  std::byte* parameters_ = nullptr;
};

}  // namespace holdfast::inline optim
