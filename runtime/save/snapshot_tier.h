// SnapshotTier keeps the slots that the state is copied into, and decides which of the RAM snapshots in them
// is confirmed. state_saver.h describes the stages of a snapshot.
//
//   Snapshot* const free = tier.free_snapshot(waiting);  // `waiting`: for the disk
//   launch_update(device, scalars, &tier.begin_by_update(*free));  // and complete_by_update(), or:
//   const auto copy = tier.begin_copy(*free, now_ns);    // after an update
//   tier.copy_in_background();                           // or the saver to disk makes the copy
//   tier.vote(votes);                                    // before the next update; waits for the copy
//   HF_TRY_VOID(tier.advance(sums));                     // confirms, or sends to the buddies
//
// A confirmed snapshot survives the loss of a process or, with replicas, of a host. Where a replica cannot be
// sent to a buddy, this is reported, the snapshot is abandoned, and the confirmed one stays until a newer one
// has all its replicas. Slots of abandoned snapshots are complete all the same, and are found by a start on
// the same hosts. One snapshot is sent at a time.
//
// Threads: one owner, the training loop; its own threads never use the communicator. Errors: communication
// only, except for prepare().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "runtime/os/background_job.h"
#include "runtime/save/keepers.h"
#include "runtime/save/save_cadence.h"
#include "runtime/save/save_records.h"
#include "runtime/save/snapshot.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

class SnapshotTier {
 public:
  // Builds the tier. The view outlives it. `writer`: StartPoint::writer.
  SnapshotTier(StateView& view, std::uint64_t writer);
  // Ends transfers to buddies and the making of slots.
  void cancel();
  // Waits until no slot is being made, so that snapshots that are removed from now on stay removed. Nothing is
  // saved after it.
  void finish_making_slots();
  // Waits for its threads. Snapshots in shared memory remain.
  ~SnapshotTier();
  SnapshotTier(const SnapshotTier&) = delete;
  SnapshotTier& operator=(const SnapshotTier&) = delete;

  // Releases the slots of the epoch before that this one does not need. `resumed`: the RAM snapshot that the
  // state came from, which stays until a newer step is confirmed; none: the state came from elsewhere.
  void release_old_slots(const std::optional<SnapshotStep>& resumed);
  // Makes the slots when all ranks of the host have released their old ones; all ranks call it together. It
  // returns the error of any rank.
  Result<void> prepare(const std::optional<SnapshotStep>& resumed);
  // Returns, after prepare(), why snapshots are not in shared memory though the config requests it; else
  // empty.
  const std::string& warning() const { return memory_->warning(); }
  // Returns, after prepare(), why there are no replicas though the config requests them; else empty.
  const std::string& replica_warning() const { return replication_.warning; }
  // Returns whether snapshots outlive the process.
  bool outlives_process() const { return memory_->outlives_process(); }
  // Returns whether the snapshots of this epoch are copied to buddies.
  bool has_replicas() const { return replication_.replicas != nullptr; }
  // Returns whether all ranks have the slots of this epoch and no older ones, so that they allocate no more
  // memory.
  bool is_settled() const { return !outlives_process() || is_settled_; }
  // Returns the step of the newest confirmed snapshot of this epoch in shared memory; none: no such snapshot.
  // Equal on all ranks.
  std::optional<std::uint64_t> confirmed_step() const;

  // Returns the oldest snapshot that is neither in `waiting`, nor being copied or sent, nor the newest
  // confirmed one in shared memory; null: no such snapshot. Equal on all ranks.
  Snapshot* free_snapshot(const std::vector<const Snapshot*>& waiting) const;
  // Has the missing slot made beside the steps, because no snapshot is free; all ranks use it from a vote on.
  void want_slot();
  // Returns the number of that snapshot's slot in the RAM tier, or of the oldest one that waits for the disk
  // where nothing else is free: its save is given up. None: no such slot, or no RAM tier.
  std::optional<int> unused_slot(const std::vector<const Snapshot*>& waiting) const;

  // Has the coming update write a free snapshot: returns the table for it (Snapshot::begin_by_update()).
  const std::vector<OptimizerTensor>& begin_by_update(Snapshot& free);
  // Says how long an update took; what is more than others take is what the snapshot that it wrote cost.
  void updated(std::int64_t duration_ns);
  // Returns whether the last update wrote a snapshot that is not complete yet. complete_by_update() completes it, and
  // returns false where there is none.
  bool has_written() const { return written_ != nullptr; }
  bool complete_by_update();

  // Begins a copy of the current state to a free snapshot. The caller makes the returned copy on a thread, or
  // else calls copy_in_background(). `begin_ns`: when the loop began to wait for a snapshot.
  std::shared_ptr<SnapshotCopy> begin_copy(Snapshot& free, std::int64_t begin_ns);
  void copy_in_background();
  // Returns whether some rank has not voted since the newest copy was begun. Equal on all ranks.
  bool is_copying() const { return copy_ != nullptr; }
  // Returns whether a copy is made, or sent to the buddies, beside the coming step.
  bool is_beside_step() const { return (is_copying() && !copy_->is_by_update) || is_sending(); }
  // Returns whether that copy is still being made; wait() waits for it. Error of wait(): the device failed.
  bool is_busy() const { return is_copying() && !copy_->is_done; }
  Result<void> wait();
  // Returns whether a snapshot is being sent to the buddies. Equal on all ranks.
  bool is_sending() const { return replication_.sent != nullptr; }

  // Waits for the copy of the state that the coming update would overwrite, and adds the state of this rank's
  // slots and replica.
  void vote(SaveVotes& votes);
  // Continues with the sums of the votes of all ranks; all ranks call it.
  Result<void> advance(const SaveVotes& sums);
  // Returns, once, how long the newest complete copy used the processors that train; none: no copy was
  // completed since, or copies do not use these processors.
  std::optional<std::int64_t> take_copy_ns() { return std::exchange(copy_ns_, std::nullopt); }
  std::vector<ReplicaReport> take_replica_reports() { return std::exchange(replication_.reports, {}); }

 private:
  struct Replication {
    std::unique_ptr<Replicas> replicas = {};  // null: no replicas
    const Snapshot* sent = nullptr;           // being sent to the buddies now
    std::string warning = {};
    std::vector<ReplicaReport> reports = {};
  };

  std::vector<std::uint64_t> slot_lengths() const;
  Result<void> make_replicas();
  void fault_in_slots();
  void wait_for_copy();
  void confirm_newest();
  void confirm(const Snapshot& snapshot);
  Result<void> replace_older();
  Result<void> make_last_slot();
  bool is_making_slot() const { return last_slot_.started() && !last_slot_.finished(); }
  Result<void> wait_for_room();
  void begin_sending(const Snapshot& snapshot);
  Result<void> end_sending(const SaveVotes& sums);

  StateView* view_;
  std::uint64_t writer_;
  std::optional<SnapshotMemory> memory_;
  std::vector<std::unique_ptr<Snapshot>> snapshots_;
  std::shared_ptr<SnapshotCopy> copy_;      // newest copy, until all ranks have voted since
  BackgroundJob<std::monostate> copy_job_;  // makes the copy where the snapshot is not saved to disk
  std::optional<std::int64_t> copy_ns_;
  Snapshot* written_ = nullptr;          // by the last update, and not complete yet
  RecentMedian update_seconds_;          // of updates that wrote none
  std::int64_t longer_update_ns_ = 0;    // by what the last one that wrote one took longer
  const Snapshot* confirmed_ = nullptr;  // newest confirmed snapshot, in shared memory
  bool is_settled_ = false;
  std::atomic<bool> cancelled_ = false;
  BackgroundJob<std::monostate> cleanup_;  // removes snapshots of other starts; one may become the last slot
  BackgroundJob<std::monostate> last_slot_;  // makes it where cleanup_ did not
  Replication replication_;
};

}  // namespace holdfast::save
