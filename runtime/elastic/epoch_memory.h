// EpochMemory holds the memory that is kept from one epoch to the next, and what the ranks have decided about it. It
// also seals the live state, one of the sources of a recovery: a step that is given up although no rank with a
// coordinate was lost (a transport that failed, a rank that was late for longer than the others wait) leaves every part
// of the state of the step before in the memory of the ranks. Each rank seals its part as one more RAM snapshot, and a
// recovery finds it by the same rule as any other snapshot: the newest step that exists whole. So this step is redone,
// and nothing else. If the ranks differ in the step that they have reached (only some have received the result of a
// vote), or one cannot seal its part, no such step is whole, and the newest snapshot counts.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/elastic/group.h"
#include "runtime/elastic/inventory.h"
#include "runtime/elastic/new_rank.h"
#include "runtime/rank/memory_agreement.h"

namespace holdfast::elastic {

class EpochMemory {
 public:
  // The memory is what this process has prepared before it joined, if it has. `group`, `setup`, `known`: outlive this
  // object.
  EpochMemory(const Group& group, const RunSetup& setup, const RecoveryInventory& known);

  ProcessMemory& of_process() const { return memory_; }
  const KeptMemory& kept() const { return memory_.kept; }
  bool lacks() const { return memory_.decision.lacks; }  // for the last worker
  bool has_snapshots() const { return memory_.decision.room.tiers != SnapshotTiers::none; }
  // Returns the terms of the agreement on memory. A start that finds snapshots of the run had the tiers that
  // made them; a recovery knows its tiers. If memory was lacking with more ranks, the wait is over.
  MemoryTerms terms();
  // Begins to count which steps this process has proved to compute right. A new rank has computed none of those before
  // it came. A process of a start may have had another one before it on the same hardware.
  void begin_to_prove(const RunState& state);
  // Gives all of it back on a rank that does not compute in this epoch: ranks that compute may need it.
  void give_back();
  // Drops the old slots when all ranks have loaded their state, if there will be no new ones.
  void drop_unneeded();
  // Removes old snapshots; called after all ranks have read. A snapshot that cannot be removed now is removed
  // later; one copy of each part of `resumed` stays.
  void remove_old_snapshots(const std::optional<SnapshotStep>& resumed) const;
  // Seals the live state of a worker whose epoch had the members `of_epoch`. A rank that cannot do so leaves its part
  // out, and thus that whole step. `slot`: as for seal_live_state(); none: there is none for it.
  void keep_live_state(Worker& worker, const MembershipView& of_epoch, std::optional<int> slot) const;

 private:
  const Group& group_;
  const RunSetup& setup_;
  const RecoveryInventory& known_;
  ProcessMemory own_;  // used if the caller has prepared nothing
  ProcessMemory& memory_;
};

// Returns true if all ranks that had a coordinate are left. `assignment`: by rank of `before`. Pure.
bool no_coordinate_is_lost(const RankAssignment& assignment, const MembershipView& before,
                           const MembershipView& now);

// Seals the live state. `worker`: between two updates, and for the last time; its communicator is not used.
// `slot`: StateSaver::unused_slot() of this `writer`, whose object is gone (it may have drained this slot). Errors: those
// of the device, that the slot does not exist any more, or that the state has changed in memory since the last update.
Result<void> seal_live_state(Worker& worker, std::uint64_t writer, int slot);

}  // namespace holdfast::elastic
