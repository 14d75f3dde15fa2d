// StepParts holds what a step computes with on this rank: the model, the sharded update, and the checks of the
// hardware, whose memory is planned as one. The worker makes it and outlives it.
#pragma once

#include <memory>

#include "parallel/data/lane_reduction.h"
#include "parallel/data/parameter_gather.h"
#include "runtime/data/loader.h"
#include "runtime/integrity/step_check.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/rank/rank_context.h"
#include "runtime/save/run_state.h"
#include "runtime/train/stage_model.h"

namespace holdfast::train {

// ShardedUpdate updates parameters whose optimizer state is sharded: gradients go to the owner of their
// block, the owner updates it, and its parameters go back to all ranks.
struct ShardedUpdate {
  ShardedOptimizer optimizer;
  LaneReduction reduction;
  ParameterGather gather;
};

struct StepParts {
  const RankContext& rank;
  RunState& state;
  StageModel stage;  // already bound when lanes are run
  ShardedUpdate update;
  HardwareChecks checks;
  std::unique_ptr<DataLoader> loader = {};  // null: the rank is only planned, or the loader has not started

  const Workload& workload() const { return stage.workload(); }
};

}  // namespace holdfast::train
