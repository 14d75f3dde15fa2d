// StateView is the state of a rank as saves and restores see it. It holds references into the worker, which
// outlives it.
#pragma once

#include <cstdint>

#include "parallel/data/parameter_gather.h"
#include "runtime/device/host_access.h"
#include "runtime/model/spec.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/rank/rank_context.h"
#include "runtime/save/run_state.h"
#include "runtime/save/snapshot_plan.h"

namespace holdfast::save {

struct StateView {
  const RankContext& rank;
  const ModelSpec& spec;
  RunState& state;
  HostAccess& host_access;  // reads and writes memory on the device
  ShardedOptimizer& optimizer;
  ParameterGather& parameter_gather;
  SnapshotPlan& snapshots;
  bool is_zero = false;  // its memory was zero-filled when it was bound; memory that is used again is not

  // Returns the bytes of a checkpoint of all ranks.
  std::uint64_t state_bytes() const { return model::state_bytes(spec); }
  // Copies the owned master weights to the parameters of every rank that computes with them; all ranks call
  // it together, after initialisation and after a load. Digests of the state are then those of what is there, or
  // those that were loaded with it, if `has_digests`.
  Result<void> publish_parameters(bool has_digests = false) const;
  // Returns the error of awaited device work, if some of it did not run. A rank whose device is lost to its
  // process ends here (runtime/rank/device_loss.h).
  Result<void> device_outcome() const;
};

}  // namespace holdfast::save
