// AsyncSaver: checkpoints and RAM snapshots that are made while training goes on.
//
//   HF_TRY(const bool begun, saver.begin(to_disk));  // after a step, where one is due
//   run_step(worker, {.saver = &saver});       // no update before the copy is whole; the vote carries vote()
//   HF_TRY_VOID(saver.advance(outcome.saves));
//   for (const SaveReport& report : saver.take_reports()) tell(report);
//   HF_TRY_VOID(saver.finish());               // before anything else uses the store, and at the end
//
// A save goes through four hands:
//   copy     a thread of every rank copies the state while the next forward and backward run (snapshot.h);
//            when all ranks have voted since, the snapshot is confirmed
//   drain    the same thread writes the copy as the rank's shard and makes it durable
//   vote     ranks say so in the vote of some later step; then rank 0 learns what the shards are
//   publish  a thread of rank 0 writes the manifest, renames, and removes what is too old; a later vote says
//            so. One rank alone publishes what it has drained, and asks nobody. Where run.directory is local
//            to each host (disk_tier.h), a rank also gives its shard to a rank of another host before it
//            votes, one rank of each host publishes, and what is too old goes before the next one is
//            published, when all hosts have published this one
// A RAM snapshot ends with the first, or, where ranks keep replicas for each other (replicas.h), goes on so:
//   send     a thread of every rank copies it to the rank's buddy; ranks say so in the vote of some later
//            step, and when all have, the snapshot is confirmed
// Confirmed is then what a lost host does not take with it, and nothing else: where a buddy cannot be given
// its copy, that is told, the snapshot is given up, and the confirmed one stays until a newer one has all its
// replicas. Slots of given up snapshots are whole all the same, and found by a start on the same hosts. One
// snapshot is sent at a time: RAM snapshots that are due meanwhile are left out, and saves to the disk go on
// without being sent.
//
// One save is drained at a time, and the one before may be published meanwhile. A slot is free when it is
// neither waiting for the disk, nor being sent, nor, in shared memory, the newest confirmed one; of those
// that are, the oldest is taken. Where none is, a RAM snapshot is left out, and a save waits for the disk: a
// run has the checkpoints it was asked for, and whoever wants to wait less saves less often. A save that
// fails is reported and given up; nothing visible has changed, and the next one that is due is another try.
//
// From the copy's end on its threads give way to those that train (Env::lower_thread_priority). Whoever waits
// for them computes nothing meanwhile, so they have what they need then.
//
// Threads: one, that of the training loop. Its own never use the communicator. Ranks call the same functions
// in the same order; what they do next follows from the votes alone. Errors: communication only, but for
// prepare(); what happened to a save is in its report.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "checkpoint/store.h"
#include "runtime/rank/background_job.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/replicas.h"
#include "runtime/save/save_records.h"
#include "runtime/save/snapshot.h"
#include "runtime/save/snapshot_memory.h"
#include "runtime/save/state_view.h"

namespace holdfast::inline save {

class AsyncSaver {
 public:
  // The view and the store outlive it. `writer`: StartPoint::writer. `resumed`: the RAM snapshot that the
  // state came from, which stays until a newer step is confirmed; none: from elsewhere.
  // `tier`: where checkpoints are; none: in one directory.
  AsyncSaver(StateView& view, CheckpointStore& store, std::uint64_t writer,
             const std::optional<SnapshotStep>& resumed = {}, std::optional<DiskTier> tier = {});
  // Gives up what is under way: nobody will vote for it any more. Waits for nobody.
  void cancel();
  // Cancels, and waits for its threads, which a disk may hold in a write that is under way. Snapshots in
  // shared memory stay.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Removes what dead writers left on the disk, and makes the slots; called once, before anything else, when
  // the state is there. Its error is any rank's.
  Result<void> prepare();
  // Says, after prepare(), why snapshots are not in shared memory though they should be; else empty.
  const std::string& warning() const { return memory_->warning(); }
  // Says the same of replicas.
  const std::string& replica_warning() const { return replica_warning_; }
  // Returns whether snapshots outlive the process.
  bool has_ram_tier() const { return memory_->outlives_process(); }
  // Returns the number of a slot of the RAM tier in which nothing is that could still be of use; none: there
  // is no such slot, or no RAM tier.
  std::optional<int> unused_slot() const;
  // Copies the state after the step that was just made, and saves it if `to_disk`. False: a RAM snapshot was
  // left out.
  Result<bool> begin(bool to_disk);
  // Waits for the copy of the state that the coming update would overwrite.
  SaveVotes vote();
  Result<void> advance(const SaveVotes& sums);
  // Waits until no save is under way; the second one, until no snapshot is being sent to a buddy, either, so
  // that a slot is free.
  Result<void> finish();
  Result<void> finish_with_replicas();
  // Returns whether a snapshot is being copied or sent to the buddies; is_saving(): whether a save is neither
  // visible nor given up yet. Equal on all ranks.
  bool is_snapshotting() const { return is_copying() || sent_ != nullptr; }
  bool is_saving() const;
  // Returns the steps of those saves, the oldest first. Equal on all ranks.
  std::vector<std::uint64_t> saves_under_way() const;
  // Returns, once, how long the newest copy that is whole had the processors that train; none: no copy became
  // whole since, or it takes no processors that train.
  std::optional<std::int64_t> take_copy_ns() { return std::exchange(copy_ns_, std::nullopt); }
  // Returns whether all ranks have the slots of this epoch and no older ones, so that they take no more
  // memory.
  bool is_settled() const { return !has_ram_tier() || is_settled_; }
  // Returns the step of the newest confirmed snapshot of this epoch in shared memory; none: there is none.
  // Equal on all ranks.
  std::optional<std::uint64_t> confirmed_step() const;
  // Returns whether the snapshots of this epoch are copied to buddies.
  bool has_replicas() const { return replicas_ != nullptr; }
  std::vector<SaveReport> take_reports() { return std::exchange(reports_, {}); }
  std::vector<ReplicaReport> take_replica_reports() { return std::exchange(replica_reports_, {}); }

 private:
  struct Save {
    SaveReport report;
    std::int64_t begin_ns = 0;
    bool to_disk = false;
    Snapshot* snapshot = nullptr;
    bool confirmed = false;
    // Written by its threads.
    std::atomic<bool> copied = false;
    bool is_whole = false;  // known when it is copied
    std::atomic<std::uint64_t> drained_bytes = 0;
    std::int64_t copy_ns = 0, copy_processor_ns = 0, drain_ns = 0, processor_ns = 0, durable_ns = 0;
    std::optional<Result<std::int64_t>> published = {};  // where no other rank has a part
    BackgroundJob<ShardFile> job = {};                   // of no file, if not to_disk
  };

  bool is_copying() const { return !saves_.empty() && !saves_.back()->confirmed; }
  void wait_for_copy(const Save& save);
  Snapshot* free_snapshot() const;
  Result<ShardFile> copy_and_drain(Save& save);
  Result<ShardFile> drain(Save& save);
  Result<std::int64_t> publish(Save& save, const Manifest& manifest);
  std::vector<std::uint64_t> slot_lengths() const;
  Result<void> make_replicas();
  void fault_in_slots();
  void confirm_newest();
  void confirm(const Snapshot& snapshot);
  Result<void> replace_older();
  Result<void> wait_for_room();
  void begin_sending(const Snapshot& snapshot);
  Result<void> end_sending(const SaveVotes& sums);
  void wait_for_disk();
  Result<void> complete_round();
  Result<void> begin_publishing();
  void end_publishing(bool published);
  Result<void> give_up();
  void report(Save& save, const Result<void>& outcome);
  bool is_alone() const { return view_->rank.communicator.size() == 1; }

  StateView* view_;
  CheckpointStore* store_;
  std::uint64_t writer_;
  std::optional<SnapshotStep> resumed_;
  DiskTier tier_;
  bool
      all_published_;  // the newest checkpoint, on every host; where hosts have parts, false until it is seen
  std::optional<SnapshotMemory> memory_;
  std::vector<std::unique_ptr<Snapshot>> snapshots_;
  const Snapshot* confirmed_ = nullptr;  // in shared memory
  const Snapshot* sent_ = nullptr;       // to the buddies, at the moment
  std::string replica_warning_;
  bool older_removed_ = false;
  bool is_settled_ = false;
  std::atomic<bool> cancelled_ = false;
  std::mutex disk_;                          // of threads that drain
  std::deque<std::unique_ptr<Save>> saves_;  // copied and drained, the oldest first
  std::unique_ptr<Save> publishing_;
  std::vector<SaveReport> reports_;
  std::optional<std::int64_t> copy_ns_;
  std::vector<ReplicaReport> replica_reports_;
  BackgroundJob<std::int64_t> publish_;     // how long it took, in ns
  BackgroundJob<std::monostate> cleanup_;   // of other starts' snapshots, one of which becomes the last slot
  std::unique_ptr<Replicas> replicas_;      // null: none
  BackgroundJob<std::monostate> prefault_;  // the pages of the slots, beside the first steps
};

}  // namespace holdfast::inline save
