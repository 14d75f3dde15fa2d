// ShardUploads uploads checkpoints that are durable by checkpoint.upload_shard_command. Every rank sends its
// own shard, on a thread of its own, while training goes on.
//
//   uploads.offer(step);               // all ranks: the checkpoint of this step is visible
//   run_step(worker, {.uploads = &uploads});
//   HF_TRY_VOID(uploads.advance(communicator, waiter, outcome.saves));
//
// An upload has two phases, and one before them where run.directory is local to each host:
//   parts      the first rank of each host looks which shards are there (upload_name.h), and reports this in the vote
//              of some later step; then all share out the shards
//   shards     every rank sends its files, and reports this in the vote of some later step
//   manifest   when all have, one rank (rank 0 where there is one directory) sends the manifest, and reports this in
//              another vote; files without a manifest do not count as a checkpoint, so what is visible there is
//              complete
// One upload is under way at a time; of the checkpoints that are offered meanwhile only the newest waits for
// its turn. An upload that fails on some rank is abandoned by all, and the checkpoint stays where it is.
//
// Threads: one, that of the training loop; its own threads never use the communicator. Ranks call the same
// functions in the same order, and what they do next follows from the votes alone. Errors: communication
// only; the outcome of an upload is in its report.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store.h"
#include "parallel/comm/collectives.h"
#include "runtime/os/background_job.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/save/save_records.h"
#include "runtime/save/storage_domains.h"
#include "runtime/save/upload_name.h"
#include "runtime/save/uploader.h"
#include "runtime/save/user_command.h"

namespace holdfast::save {

class ShardUploads {
 public:
  struct Settings {
    UserCommand command;
    std::string record = {};  // path of RUN/uploaded; empty: none
    int rank = 0;
    int ranks = 1;
    std::optional<StorageDomains> domains = {};  // of all ranks; none: all see one directory
  };
  // The store outlives it.
  ShardUploads(Env& env, FaultPoints& faults, CheckpointStore& store, Settings settings);
  // Calls cancel().
  ~ShardUploads();
  ShardUploads(const ShardUploads&) = delete;
  ShardUploads& operator=(const ShardUploads&) = delete;

  void offer(std::uint64_t step);
  // Adds the state of this rank's part.
  void vote(SaveVotes& votes) const;
  Result<void> advance(Communicator& communicator, const Waiter& waiter, const SaveVotes& sums);
  // Returns whether an upload is under way or waits; equal on all ranks.
  bool busy() const { return phase_ != Phase::idle; }
  // Kills the command of this rank; nothing is offered after this.
  void cancel();
  // Returns, on every rank, the uploads that have ended, with the times of this rank.
  std::vector<UploadReport> take_reports() { return std::exchange(reports_, {}); }

 private:
  enum class Phase { idle, parts, shards, manifest };

  void begin();
  void begin_shards();
  void begin_manifest();
  Result<void> advance_phase(Communicator& communicator, const Waiter& waiter);
  Result<void> share_out(Communicator& communicator, const Waiter& waiter);
  void end(Result<void> outcome);
  void mark_in_use();
  // Returns how many ranks report the end of the phase.
  int awaited() const;
  bool takes_part() const;
  bool sends_manifest() const { return share_.has_value() ? share_->sends_manifest : settings_.rank == 0; }
  Result<int> send_shards(std::uint64_t step);
  Result<int> send_manifest(std::uint64_t step);
  CommandAttempts send(const Manifest& manifest, const std::string& name, const std::string& directory,
                       const std::string& file);

  Env* env_;
  FaultPoints* faults_;
  CheckpointStore* store_;
  Settings settings_;
  std::atomic<bool> cancelled_ = false;
  Phase phase_ = Phase::idle;
  std::uint64_t uploading_ = 0;        // step being uploaded, unless idle
  std::optional<std::uint64_t> next_;  // step that waits
  std::int64_t begin_ns_ = 0;
  int attempts_ = 0;                  // most attempts that a file of this rank needed
  UploadPart part_;                   // of the directory that this rank looks into
  std::optional<UploadShare> share_;  // of this rank, where the checkpoint is in parts
  std::vector<UploadReport> reports_;
  BackgroundJob<int> job_;  // attempts; the last member: it uses the others
};

}  // namespace holdfast::save
