// The RAM snapshots of a run: slots (snapshot_slot.h) in the shared memory of its hosts; every start of the
// run has a set of them.
//
// A name is holdfast-RUN-WRITER-RANK-SLOT: the run's digest, the start that made it, rank and slot; that of a
// replica (transfer.h) has "replica-" before the slot, and the rank whose state it is. Slots stay
// when their process dies. A start that resumes the run finds those of its host by the name, takes a step
// that is whole, and removes them when they are not needed any more. Nothing here waits for another process,
// so what a dead writer left never blocks a start.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/snapshot_slot.h"
#include "checkpoint/store.h"
#include "runtime/core/memory_plan.h"
#include "runtime/os/env.h"

namespace holdfast::checkpoint {

std::string snapshot_name(const Digest& run, std::uint64_t writer, int rank, int slot);
std::string replica_name(const Digest& run, std::uint64_t writer, int rank, int slot);
// Returns the name of a roll-back that is kept (kept_rollback.h): holdfast-RUN-rollback-WRITER-RANK, and whether a name
// of the run is one.
std::string rollback_name(const Digest& run, std::uint64_t writer, int rank);
bool is_rollback_name(std::string_view name, const Digest& run);
// Returns those names on this host; none where there is no shared memory.
std::vector<std::string> rollback_names(Env& env, const Digest& run);
// Returns the prefix of all names of a writer's slots and replicas.
std::string writer_prefix(const Digest& run, std::uint64_t writer);
// Returns the names of all slots and replicas of the run on this host, sealed or not; none where there is no
// shared memory.
std::vector<std::string> snapshot_names(Env& env, const Digest& run);

// One step of one start.
struct SnapshotStep {
  std::uint64_t writer = 0, generation = 0, step = 0;
  bool operator==(const SnapshotStep&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("writer", self.writer);
    visit("generation", self.generation);
    visit("step", self.step);
  }
};
SnapshotStep step_of(const SnapshotIdentity& identity);

struct FoundSnapshot {
  std::string name;
  SnapshotIdentity identity;
};
// Lists the sealed snapshots of the run on this host, a rank's own before replicas of them; others count for
// nothing.
std::vector<FoundSnapshot> list_snapshots(Env& env, const Digest& run);
struct SharedSnapshots {
  std::uint64_t count = 0, bytes = 0;
};
// Removes all snapshots of the run on this host, sealed or not, except those of `kept_writer`, and without one also
// the roll-backs that were kept (kept_rollback.h); it is not an error if another process removes some at the same time.
Result<SharedSnapshots> remove_snapshots(Env& env, const Digest& run,
                                         std::optional<std::uint64_t> kept_writer = {});

// Unseals the snapshots of the run on this host whose step is after `trusted_step`, so that they count for
// nothing. Processes that have a slot go on using it. It is not an error if another process does the same.
void unseal_snapshots_after(Env& env, const Digest& run, std::uint64_t trusted_step);

// Counts the snapshots of the run in this host's shared memory when it resumes from `resumed` (none: from
// elsewhere).
struct OldSnapshots {
  SharedSnapshots resumed;   // one copy of each part of that step; those of other hosts that are visible here
  SharedSnapshots unneeded;  // all others: other steps, second copies, unsealed slots
};
OldSnapshots count_old_snapshots(Env& env, const Digest& run, const std::optional<SnapshotStep>& resumed);
// Returns the names of those that count as `resumed`; every rank of the host finds the same.
std::set<std::string> needed_snapshots(Env& env, const Digest& run,
                                       const std::optional<SnapshotStep>& resumed);
// Removes what counts as `unneeded`, except what `except_writer` has made; it is not an error if another
// process removes some at the same time.
Result<void> remove_unneeded_snapshots(Env& env, const Digest& run,
                                       const std::optional<SnapshotStep>& resumed,
                                       std::optional<std::uint64_t> except_writer = {});

// Returns the newest (generation, step) after `after` that is in RAM whole: the slots that the ranks offer,
// each those of its host, hold every part of it. Which host has which part does not matter. Never one of
// `passed_over`, which turned out to be damaged. Of two starts that both have the step, the one with the
// greater writer. Pure.
std::optional<SnapshotStep> newest_whole_step(const std::vector<std::vector<SnapshotIdentity>>& offers,
                                              const SnapshotStep& after,
                                              std::span<const SnapshotStep> passed_over = {});

// SnapshotSet: the slots of one step on this host, and what was added from others. Where a rank's own slot is
// missing or damaged, the replica counts.
class SnapshotSet {
 public:
  // Opens the set. `pace` is called with the bytes of every part that was verified or copied: a rank that
  // gets little processor time shows with it that it is slow, not stuck.
  static SnapshotSet open(Env& env, const Digest& run, const SnapshotStep& step, Pace pace = {});
  // Returns whether no slot is sound; why_empty() gives the reason for an error message.
  bool empty() const { return readers_.empty(); }
  Error why_empty(Env& env, const SnapshotStep& step) const;
  const Manifest& manifest() const { return readers_.front().manifest(); }

  // Returns the ranks that have a slot here, ascending; pieces_of() returns what is in a rank's slot.
  std::vector<std::uint32_t> ranks() const;
  const std::vector<ShardSpec>& pieces_of(std::uint32_t rank) const;
  // Returns a piece after its checksum was verified, in the slot or a replica. ExitCode::checkpoint: neither
  // is sound.
  Result<std::span<const std::byte>> piece(std::uint32_t rank, std::size_t index);
  // Verifies the parts of the set that are wanted. Removes the ranks in whose slots a part is damaged, in the
  // replicas too, from the set, and returns them.
  std::vector<std::uint32_t> drop_damaged(const std::vector<ShardSpec>& wanted);
  // Returns the block digests of a piece that piece() has returned; empty where they are unknown.
  std::span<const std::byte> digests(std::uint32_t rank, std::size_t index) const;
  // Adds bytes from another host, verified there; as many as `spec` has, and their block digests, if known.
  void add(const ShardSpec& spec, OwnedMemory bytes, std::vector<std::byte> digests = {});

  // Reads as Checkpoint::read does; verifies what it touches first.
  Result<void> read(std::span<const Checkpoint::Wanted> wanted);
  // Reads the block digests of `weights`, pieces that have some and were read before, one after another. Empty: not
  // all are known.
  Result<std::vector<std::byte>> read_digests(const std::vector<ShardSpec>& weights) const;
  // Returns whether all of `wanted` is here, as far as the indices say.
  bool holds(const std::vector<ShardSpec>& wanted) const;
  // Returns a sentence for each slot that was found to be damaged.
  const std::vector<std::string>& damages() const { return damages_; }

 private:
  // A piece of a rank's slot, or one that was added.
  struct Slot {
    ShardSpec spec;
    std::uint32_t rank = 0;
    std::size_t index = 0;
    bool added = false;
  };
  std::vector<Slot> slots() const;
  void note(const Error& damage);

  Pace pace_;
  std::vector<std::unique_ptr<SharedMemory>> memory_;
  std::vector<SnapshotReader> readers_;  // those of a rank one after another
  struct Added {
    ShardSpec spec;
    OwnedMemory bytes;
    std::vector<std::byte> digests;
  };
  std::vector<Added> added_;
  std::vector<std::string> damages_;
};

}  // namespace holdfast::checkpoint
