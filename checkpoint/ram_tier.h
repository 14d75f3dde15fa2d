// The RAM snapshots of a run: slots (snapshot_slot.h) in the shared memory of its hosts, one set of them by
// every start of the run.
//
// A name is holdfast-RUN-WRITER-RANK-SLOT: the run's digest, the start that made it, and where. Slots stay
// when their process dies; whoever resumes the run finds those of its host by the name, takes a step that is
// whole, and removes them when they are not needed any more. Nothing here waits for anybody, so what a dead
// writer left never blocks a start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/snapshot_slot.h"
#include "checkpoint/store.h"
#include "runtime/core/env.h"

namespace holdfast {

std::string snapshot_name(const Digest& run, std::uint64_t writer, int rank, int slot);

struct FoundSnapshot {
  std::string name;
  SnapshotIdentity identity;
};
// Those of the run on this host that are sealed; others count for nothing.
std::vector<FoundSnapshot> list_snapshots(Env& env, const Digest& run);
struct SharedSnapshots {
  std::uint64_t count = 0, bytes = 0;
};
// Removes all of the run on this host, sealed or not, but for those of `kept_writer`; what others remove at
// the same time is not an error.
Result<SharedSnapshots> remove_snapshots(Env& env, const Digest& run,
                                         std::optional<std::uint64_t> kept_writer = {});

// One step of one start.
struct SnapshotStep {
  std::uint64_t writer = 0, generation = 0, step = 0;
  bool operator==(const SnapshotStep&) const = default;
};
// The newest (generation, step) behind `after` that is in RAM whole: the slots that the ranks offer, each
// those of its host, hold every part of it, and rank 0's host has one of them. Pure.
std::optional<SnapshotStep> newest_whole_step(const std::vector<std::vector<SnapshotIdentity>>& offers,
                                              const SnapshotStep& after);

// The slots of one step on this host.
class SnapshotSet {
 public:
  // ExitCode::checkpoint when there is none, or one is damaged.
  static Result<SnapshotSet> open(Env& env, const Digest& run, const SnapshotStep& step);
  const Manifest& manifest() const { return readers_.front().manifest(); }
  // As Checkpoint::read; what it touches is verified first.
  Result<void> read(std::span<const Checkpoint::Wanted> wanted);

 private:
  std::vector<std::unique_ptr<SharedMemory>> memory_;
  std::vector<SnapshotReader> readers_;
};

}  // namespace holdfast
