// The RAM snapshots of a run: slots (snapshot_slot.h) in the shared memory of its hosts, one set of them by
// every start of the run.
//
// A name is holdfast-RUN-WRITER-RANK-SLOT: the run's digest, the start that made it, and where; that of a
// replica (replica_transfer.h) has "replica-" before the slot, and the rank whose state it is. Slots stay
// when their process dies; whoever resumes the run finds those of its host by the name, takes a step that is
// whole, and removes them when they are not needed any more. Nothing here waits for anybody, so what a dead
// writer left never blocks a start.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/snapshot_slot.h"
#include "checkpoint/store.h"
#include "runtime/core/memory_plan.h"
#include "runtime/os/env.h"

namespace holdfast::inline checkpoint {

std::string snapshot_name(const Digest& run, std::uint64_t writer, int rank, int slot);
std::string replica_name(const Digest& run, std::uint64_t writer, int rank, int slot);
// Returns the prefix of all names of a writer's slots and replicas.
std::string writer_prefix(const Digest& run, std::uint64_t writer);
// Names of all slots and replicas of the run on this host, sealed or not; none where there is no shared
// memory.
std::vector<std::string> snapshot_names(Env& env, const Digest& run);

// One step of one start.
struct SnapshotStep {
  std::uint64_t writer = 0, generation = 0, step = 0;
  bool operator==(const SnapshotStep&) const = default;
};
SnapshotStep step_of(const SnapshotIdentity& identity);

struct FoundSnapshot {
  std::string name;
  SnapshotIdentity identity;
};
// Those of the run on this host that are sealed, a rank's own before replicas of them; others count for
// nothing.
std::vector<FoundSnapshot> list_snapshots(Env& env, const Digest& run);
struct SharedSnapshots {
  std::uint64_t count = 0, bytes = 0;
};
// Removes all of the run on this host, sealed or not, but for those of `kept_writer`; what others remove at
// the same time is not an error.
Result<SharedSnapshots> remove_snapshots(Env& env, const Digest& run,
                                         std::optional<std::uint64_t> kept_writer = {});

// Counts what the run has in this host's shared memory when it resumes from `resumed` (none: from elsewhere).
struct OldSnapshots {
  SharedSnapshots resumed;   // one copy of each part of that step; those of other hosts that are seen here
  SharedSnapshots unneeded;  // all else: other steps, second copies, slots that are not sealed
};
OldSnapshots count_old_snapshots(Env& env, const Digest& run, const std::optional<SnapshotStep>& resumed);
// Names of those that count as `resumed`; every rank of the host finds the same.
std::set<std::string> needed_snapshots(Env& env, const Digest& run,
                                       const std::optional<SnapshotStep>& resumed);
// Removes what counts as `unneeded`, but for what `except_writer` has made; what others remove at the same
// time is not an error.
Result<void> remove_unneeded_snapshots(Env& env, const Digest& run,
                                       const std::optional<SnapshotStep>& resumed,
                                       std::optional<std::uint64_t> except_writer = {});

// Returns the newest (generation, step) after `after` that is in RAM whole: the slots that the ranks offer,
// each those of its host, hold every part of it. Whose host has which part does not matter. Never one of
// `passed_over`, which turned out to be damaged. Of two starts that both have the step, the one with the
// greater writer. Pure.
std::optional<SnapshotStep> newest_whole_step(const std::vector<std::vector<SnapshotIdentity>>& offers,
                                              const SnapshotStep& after,
                                              std::span<const SnapshotStep> passed_over = {});

// The slots of one step on this host, and what was added from others. Of a rank whose own one is missing or
// damaged, the replica counts.
class SnapshotSet {
 public:
  // `pace` is called with the bytes of every part that was verified or copied: who has little of a processor
  // shows with it that it is slow, not stuck.
  static SnapshotSet open(Env& env, const Digest& run, const SnapshotStep& step, Pace pace = {});
  // Whether there is none that is sound; why, for a sentence.
  bool empty() const { return readers_.empty(); }
  Error why_empty(Env& env, const SnapshotStep& step) const;
  const Manifest& manifest() const { return readers_.front().manifest(); }

  // The ranks that have a slot here, ascending, and what is in them.
  std::vector<std::uint32_t> ranks() const;
  const std::vector<ShardSpec>& pieces_of(std::uint32_t rank) const;
  // After its checksum was found right, in the slot or a replica. ExitCode::checkpoint: in none.
  Result<std::span<const std::byte>> piece(std::uint32_t rank, std::size_t index);
  // Verifies what is wanted of it. The ranks of whose slots a part is damaged, in the replicas too, are in
  // this set no more, and returned.
  std::vector<std::uint32_t> drop_damaged(const std::vector<ShardSpec>& wanted);
  // Adds what came from another host, verified there; as many bytes as `spec` has.
  void add(const ShardSpec& spec, OwnedMemory bytes);

  // As Checkpoint::read; what it touches is verified first.
  Result<void> read(std::span<const Checkpoint::Wanted> wanted);
  // Whether all that is wanted is here, as far as the indices say.
  bool holds(const std::vector<ShardSpec>& wanted) const;
  // A sentence for each that was found to be damaged.
  const std::vector<std::string>& damages() const { return damages_; }

 private:
  // A piece of a rank's slot, or one that was added.
  struct Place {
    ShardSpec spec;
    std::uint32_t rank = 0;
    std::size_t index = 0;
    bool added = false;
  };
  std::vector<Place> places() const;
  void note(const Error& damage);

  Pace pace_;
  std::vector<std::unique_ptr<SharedMemory>> memory_;
  std::vector<SnapshotReader> readers_;  // those of a rank one after another
  std::vector<std::pair<ShardSpec, OwnedMemory>> added_;
  std::vector<std::string> damages_;
};

}  // namespace holdfast::inline checkpoint
