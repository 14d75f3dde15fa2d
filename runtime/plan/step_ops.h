// StepOps lists every op that one rank launches in one training step, without a device: the rank's own Worker
// launches the step on a device that runs nothing (runtime/elastic/planned_rank.h), and the launches are
// counted. tools/predict turns the list into the time of a step on a GPU.
//
// The step is a run's second or a later one: every microbatch of every lane of the rank, the sum of the
// gradients over the lanes, the update and the exchange of parameters. Messages between ranks are not ops;
// the copies that a transport launches are. Evaluations and checkpoints are not part of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cost.h"
#include "kernels/op.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/core/json.h"
#include "runtime/plan/layout_plan.h"

namespace holdfast::plan {

// All launches of an op with the same shape, types and options.
struct StepOp {
  OpId id = OpId::count;
  std::string shape;       // shape_text() of runtime/measure/op_text.h
  Json arguments;          // every shape, type and option of the op by the name of its field
  OpCost cost;             // per call
  std::int64_t calls = 0;  // per step
};

struct StepOps {
  Config config;  // resolved
  int ranks = 1, rank = 0;
  MeshCoordinate coordinate;
  std::int64_t lanes = 0;             // lanes that this rank runs in a step, one after the other
  std::uint64_t gradient_blocks = 0;  // blocks whose sums of squares the host adds up
  std::uint64_t device_bytes = 0;  // of the rank's memory plan in device memory, without kernels' workspace
  std::vector<StepOp> ops = {};    // in the order of their first launch
};

// Lists the ops. `config` is resolved, except for parallel.data; 0 <= rank < ranks. Fails with
// ExitCode::config and every rule that is broken (rank_layout.h).
Result<StepOps> step_ops(Env& env, const Config& config, int ranks, int rank, const PlannedMachine& machine);

std::string step_ops_text(const StepOps& step);
Json step_ops_json(const StepOps& step);

}  // namespace holdfast::plan
