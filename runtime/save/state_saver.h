// StateSaver makes checkpoints and RAM snapshots while training goes on. It joins the slots that the state is
// copied into (snapshot_tier.h) and the part that writes them to the disk (disk_saver.h).
//
//   HF_TRY(const bool begun, saver.begin(to_disk));  // after a step, where one is due
//   run_step(worker, {.saver = &saver});       // no update before the copy is whole; the vote carries vote(). Before
//                                              // the update confirm(), and where a snapshot is due by_update()
//   HF_TRY_VOID(saver.advance(outcome.saves));
//   for (const SaveReport& report : saver.disk().take_reports()) tell(report);
//   HF_TRY_VOID(saver.finish());               // before anything else uses the store, and at the end
//
// A save goes through four stages:
//   copy     a thread of every rank copies the state while the next forward and backward run (snapshot.h), or, of a
//            RAM snapshot, the update has written it; when all ranks have voted since, the snapshot is confirmed
//   drain    the same thread writes the copy as the rank's shard and makes it durable
//   vote     each rank reports this in the vote of some later step; then rank 0 gathers the shards' records
//   publish  a thread of rank 0 writes the manifest, renames, and removes old checkpoints; a later vote says
//            so. A rank without peers publishes what it has drained, without a vote. Where run.directory is
//            local to each host (disk_tier.h), a rank also sends its shard to a rank of another host before
//            it votes, one rank of each host publishes, and old checkpoints are removed before the next one
//            is published, when all hosts have published this one
// A RAM snapshot ends with the copy. Where ranks keep replicas for each other (keepers.h), it has one more
// stage:
//   send     a thread of every rank sends the copy to the rank's buddy; each rank reports this in the vote of
//            some later step, and when all have, the snapshot is confirmed
// A snapshot that is due while another is being sent is skipped; saves to the disk go on without being sent.
//
// A slot is free when it is neither waiting for the disk, nor being sent, nor, in shared memory, the newest
// confirmed one; the oldest free slot is used. Where none is free, a RAM snapshot is skipped, and a save
// waits for the disk: a run has the checkpoints it was asked for, and a user who wants shorter waits saves
// less often. A shard that cannot be written for a moment is written again beside the steps. After a save that failed,
// the next one that is due is another try.
//
// Threads that drain, publish or send yield to those that train (Env::lower_thread_priority). A thread that
// waits for them computes nothing meanwhile, so they then have the processors that they need.
//
// Threads: one, that of the training loop. Ranks call the same functions in the same order; what they do next
// follows from the votes alone. Errors: communication, and those of save_failure.h where some ranks are unfit, except
// for prepare(); the outcome of a save is in its report.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/save/disk_saver.h"
#include "runtime/save/snapshot_tier.h"

namespace holdfast::save {

class StateSaver {
 public:
  // Builds the saver. The view and the store outlive it. `writer`: StartPoint::writer. `resumed`: the RAM
  // snapshot that the state came from, which stays until a newer step is confirmed; none: the state came from
  // elsewhere. `tier`: where checkpoints are; none: in one directory.
  StateSaver(StateView& view, CheckpointStore& store, std::uint64_t writer,
             const std::optional<SnapshotStep>& resumed = {}, std::optional<DiskTier> tier = {});
  // Abandons the saves that are under way, because no rank will vote for them any more. It does not wait.
  void cancel();
  // Cancels, and waits for its threads, which a disk may block in a write that is under way. Snapshots in
  // shared memory remain.
  ~StateSaver();
  StateSaver(const StateSaver&) = delete;
  StateSaver& operator=(const StateSaver&) = delete;

  // Removes files that dead writers left on the disk, and makes the slots; called once, before anything else,
  // when the state is there. It returns the error of any rank.
  Result<void> prepare();
  // Return the two parts, for what is asked of one of them alone: reports, warnings, what is under way. This class
  // begins their copies and saves, and moves them on.
  SnapshotTier& snapshots() { return snapshots_; }
  DiskSaver& disk() { return disk_; }
  // Returns the number of a slot of the RAM tier whose content is of no use once the saves under way are given
  // up; none: no such slot, or no RAM tier.
  std::optional<int> unused_slot() const { return snapshots_.unused_slot(disk_.snapshots()); }

  // Has the coming update write the RAM snapshot that is due after its step, for begin(): returns the table for it
  // (Snapshot::begin_by_update()). Null: the update cannot, or no snapshot is free, and begin() copies the state.
  const std::vector<OptimizerTensor>* by_update();
  // Copies the state after the step that was just made, and saves it if `to_disk`; where by_update() has had a RAM
  // snapshot written, completes that. Returns false where a RAM snapshot was skipped.
  Result<bool> begin(bool to_disk);
  // Waits for the copy of the state that the coming update would overwrite, and returns this rank's votes.
  SaveVotes vote();
  // Continue with the sums of the votes of all ranks: confirm() with RAM snapshots, once the vote is over, and advance()
  // with saves to the disk, when the step is made.
  Result<void> confirm(const SaveVotes& sums) { return snapshots_.advance(sums); }
  Result<void> advance(const SaveVotes& sums) { return disk_.advance(sums); }
  // Waits until no save is under way. finish_with_replicas() also waits until no snapshot is being sent to a
  // buddy, so that a slot is free.
  Result<void> finish();
  Result<void> finish_with_replicas();

  // Returns whether a snapshot is being copied or sent to the buddies. Equal on all ranks.
  bool is_snapshotting() const { return snapshots_.is_copying() || snapshots_.is_sending(); }

 private:
  void wait_beside_watch();
  Result<void> complete_round();

  StateView* view_;
  std::optional<SnapshotStep> resumed_;
  SnapshotTier snapshots_;
  DiskSaver disk_;  // the last member: its threads read snapshots_
};

}  // namespace holdfast::save
