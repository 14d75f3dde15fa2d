// AsyncSaver: checkpoints that are made while training goes on.
//
//   saver.begin()                               after a step, where a save is due
//   run_step(worker, {.saver = &saver})         no update before the copy is whole; its vote carries vote()
//   saver.advance(outcome.saves)                then whoever tells people reads take_reports()
//   saver.finish()                              before anything else uses the store, and at the end
//
// A save goes through four hands:
//   copy     a thread of every rank copies the state while the next forward and backward run (snapshot.h)
//   drain    the same thread writes the copy as the rank's shard and makes it durable
//   vote     ranks say so in the vote of some later step; then rank 0 learns what the shards are
//   publish  a thread of rank 0 writes the manifest, renames, removes what is too old; a later vote tells
// One save is copied and drained at a time, while the one before may be published. When the next is due
// before the last is drained, training waits for the disk: a run has the checkpoints it was asked for, and
// whoever wants to wait less saves less often. A save that fails is reported and given up; nothing visible
// has changed, and the next one that is due is another try.
//
// Threads: one, that of the training loop. Its own never use the communicator. Ranks call the same functions
// in the same order; what they do next follows from the votes alone. Errors: communication only; what
// happened to a save is in its report.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/train/background_job.h"
#include "runtime/train/save_records.h"
#include "runtime/train/snapshot.h"
#include "runtime/train/worker.h"

namespace holdfast {

class AsyncSaver {
 public:
  // The worker, which has memory for a snapshot, and the store outlive it.
  AsyncSaver(Worker& worker, CheckpointStore& store);
  // Waits for its threads.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Once, before anything else: removes what dead writers left. Its error is any rank's.
  Result<void> prepare();
  // The state after the step that was just made is saved. Waits only while the save before is being drained.
  Result<void> begin();
  // Waits for the copy of the state that the coming update would overwrite.
  SaveVotes vote();
  Result<void> advance(const SaveVotes& sums);
  // Until nothing is under way.
  Result<void> finish();
  std::vector<SaveReport> take_reports() { return std::exchange(reports_, {}); }

 private:
  struct Save {
    SaveReport report;
    std::int64_t begin_ns = 0;
  };

  Result<ShardFile> copy_and_drain();
  Result<void> complete_round();
  Result<void> begin_publishing();
  void end_publishing(bool published);
  Result<void> give_up();
  void report(Save& save, const Result<void>& outcome);

  Worker* worker_;
  CheckpointStore* store_;
  bool first_;  // rank 0, which publishes
  Snapshot snapshot_;
  std::optional<Save> draining_, publishing_;
  std::vector<SaveReport> reports_;

  // Between the training loop and the thread that copies and drains.
  Result<void> copy_begun_;
  std::atomic<bool> copied_ = true;
  std::int64_t drain_ns_ = 0;  // of drain_, once it has finished
  BackgroundJob<ShardFile> drain_;
  BackgroundJob<std::int64_t> publish_;  // how long it took, in ns
};

}  // namespace holdfast
