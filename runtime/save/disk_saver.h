// DiskSaver writes checkpoints while training goes on: it writes copies of the state to the disk, and makes
// them visible when all ranks have theirs there. state_saver.h describes the stages of a save.
//
//   saver.begin(tier.begin_copy(snapshot, now_ns));  // a thread makes the copy, and drains it
//   saver.vote(votes);                               // in the vote of a later step
//   HF_TRY_VOID(saver.advance(sums));                // publishes what all ranks have drained
//
// One save is drained at a time, and the one before may be published meanwhile. What storage fails for a moment is
// tried again (save_failure.h). A save that fails is reported and abandoned; nothing visible has changed.
//
// Threads: one owner, the training loop; its own threads never use the communicator. Errors: communication, and
// those of agree_on_written() where some ranks are unfit; the outcome of a save is in its report.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/os/background_job.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/save_records.h"
#include "runtime/save/snapshot.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

class DiskSaver {
 public:
  // Builds the saver. The view and the store outlive it. `tier`: where checkpoints are; none: in one
  // directory.
  DiskSaver(StateView& view, CheckpointStore& store, std::optional<DiskTier> tier);
  // Abandons the saves that are under way, without waiting for other ranks or threads.
  void cancel();
  // Waits for its threads, which a disk may block in a write that is under way.
  ~DiskSaver();
  DiskSaver(const DiskSaver&) = delete;
  DiskSaver& operator=(const DiskSaver&) = delete;

  // Removes, on a rank that publishes, files that dead writers left on the disk.
  Result<void> remove_leftovers();
  // Starts the thread that makes the copy and drains it. The snapshot must not change until snapshots() no
  // longer contains it.
  void begin(std::shared_ptr<SnapshotCopy> copy);
  // Adds the state of this rank's part of the oldest save, and whether this rank has published. Where updates
  // check the state that they read (ShardedOptimizer::finding()), a part counts as durable only once its state
  // was found sound: see let_publish().
  void vote(SaveVotes& votes);
  // Says that the states up to this step were found sound: by the update after each.
  void let_publish(std::uint64_t checked_step);
  // Continues with the sums of the votes of all ranks; all ranks call it.
  Result<void> advance(const SaveVotes& sums);

  // Returns whether a save is neither visible nor abandoned yet. Equal on all ranks.
  bool is_saving() const { return publishing_ != nullptr || !saves_.empty(); }
  // Returns the steps of those saves, oldest first. Equal on all ranks.
  std::vector<std::uint64_t> steps() const;
  // Returns the snapshots that a save still reads. Equal on all ranks.
  std::vector<const Snapshot*> snapshots() const;
  std::vector<SaveReport> take_reports() { return std::exchange(reports_, {}); }

  // Returns whether one of its threads works; drained_bytes() returns the progress of those that drain.
  bool is_busy() const;
  std::uint64_t drained_bytes() const;
  // Waits until none of its threads works.
  void wait();

 private:
  struct Save {
    SaveReport report;
    std::shared_ptr<SnapshotCopy> copy;
    // Values that its threads write.
    std::atomic<std::uint64_t> drained_bytes = 0;
    std::int64_t drain_ns = 0, processor_ns = 0, durable_ns = 0;
    std::optional<Result<std::int64_t>> published = {};  // set where no other rank has a part
    BackgroundJob<ShardFile> job = {};
  };

  Result<ShardFile> copy_and_drain(Save& save);
  Result<ShardFile> drain(Save& save);
  Result<ShardFile> write_shard(Save& save);
  Result<std::int64_t> publish(Save& save, const Manifest& manifest);
  Result<void> begin_publishing();
  Result<void> end_publishing(bool published);
  Result<void> give_up();
  Result<void> tell_failure(Save& save, const Result<void>& mine);
  void report(Save& save, const Result<void>& outcome);
  bool is_alone() const { return view_->rank.communicator.size() == 1; }
  bool is_checked_later() const { return view_->optimizer.checks_state(); }
  bool wait_until_checked(std::uint64_t step) const;

  StateView* view_;
  CheckpointStore* store_;
  DiskTier tier_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<std::uint64_t> checked_step_ = 0;  // newest step whose state a later update has found sound
  LongMutex drain_mutex_;                        // held by the thread that drains
  std::deque<std::unique_ptr<Save>> saves_;      // saves being copied and drained, oldest first
  std::unique_ptr<Save> publishing_;
  std::vector<SaveReport> reports_;
  BackgroundJob<std::int64_t> publish_;  // result: its duration in ns
};

}  // namespace holdfast::save
