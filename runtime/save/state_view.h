// StateView is the state of a rank as saves and restores see it. It holds references into the worker, which
// outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "parallel/data/parameter_gather.h"
#include "runtime/core/result.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/rank/rank_context.h"
#include "runtime/save/run_state.h"
#include "runtime/save/snapshot_plan.h"

namespace holdfast::save {

struct StateView {
  const RankContext& rank;
  RunState& state;
  ShardedOptimizer& optimizer;
  ParameterGather& parameter_gather;
  SnapshotPlan& snapshots;
  bool is_zero = false;  // its memory was zero-filled when it was bound; memory that is used again is not
  // Matrix products of all ranks with their algorithms (kernels/product_plan.h): what is saved takes them along. Empty:
  // not known, or there are none.
  std::string device_plan = {};

  // Returns the bytes of a checkpoint of all ranks.
  std::uint64_t state_bytes() const { return model::state_bytes(rank.spec, rank.config.optimizer); }
  // Copies the owned master weights to the parameters of every rank that computes with them; all ranks call
  // it together, after initialisation and after a load. Digests of the state are then those of what is there, or
  // those that were loaded with it, if `has_digests`.
  Result<void> publish_parameters(bool has_digests = false) const;
  // Returns the error of awaited device work, if some of it did not run. A rank whose device is lost to its
  // process ends here (runtime/rank/device_loss.h).
  Result<void> device_outcome() const;
};

// Fills state in device memory from the host, in parts, as many at once as the host has room for.

// Returns the bytes of a piece of state, in the device's memory.
std::span<std::byte> bytes_of_state(const OwnedState& piece);

// Writes the pieces of state. fill(parts, targets) writes whole parts of the pieces to host memory, part by
// part in `targets`; it is called until all are written. An error of it ends the writing.
using FillParts = std::function<Result<void>(std::span<const OwnedState> parts,
                                             std::span<const std::span<std::byte>> targets)>;
Result<void> write_state(HostAccess& access, const std::vector<OwnedState>& pieces, const FillParts& fill);

// Fills the pieces of state from any source: `read` reads the wanted parts.
using ReadWanted = std::function<Result<void>(std::span<const Checkpoint::Wanted> wanted)>;
Result<void> read_state(HostAccess& access, const std::vector<OwnedState>& pieces, const ReadWanted& read);
// Fills the pieces of state from a checkpoint that any layout wrote, on `threads` threads.
inline Result<void> read_state(HostAccess& access, const std::vector<OwnedState>& pieces,
                               Checkpoint& checkpoint, int threads) {
  return read_state(access, pieces, [&](std::span<const Checkpoint::Wanted> wanted) {
    return checkpoint.read(wanted, threads);
  });
}

}  // namespace holdfast::save
