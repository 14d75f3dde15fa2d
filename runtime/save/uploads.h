// Uploads copies the checkpoints of a run elsewhere, as its config says: whole by rank 0 (uploader.h), file
// by file by every rank (shard_uploads.h), or not at all.
//
//   HF_TRY_VOID(uploads.offer_newest(communicator, waiter));   // at a start
//   uploads.offer(step);                                       // a checkpoint is visible
//   run_step(worker, {.uploads = &uploads});                   // the vote carries vote()
//   HF_TRY_VOID(uploads.advance(communicator, waiter, outcome.saves));
//   HF_TRY_VOID(uploads.finish(communicator, waiter, look));   // at the end
//
// Threads: one, that of the training loop. Ranks call the same functions in the same order. Errors:
// communication only; the outcome of an upload is in its report.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "parallel/comm/collectives.h"
#include "runtime/config/config.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"
#include "runtime/save/save_records.h"
#include "runtime/save/shard_uploads.h"
#include "runtime/save/storage_domains.h"
#include "runtime/save/uploader.h"

namespace holdfast::save {

class Uploads {
 public:
  struct Setup {
    Env& env;
    FaultPoints& faults;
    CheckpointStore& store;  // outlives it
    const Config& config;
    int rank = 0;
    int ranks = 1;
    std::optional<StorageDomains> domains = {};  // of all ranks; none: all see one directory
  };
  explicit Uploads(const Setup& setup);

  // Offers the newest checkpoint, unless RUN/uploaded says on some host that it is there. The processes of an earlier
  // start, or the ranks before a recovery, may not have sent it completely.
  Result<void> offer_newest(Communicator& communicator, const Waiter& waiter);
  void offer(std::uint64_t step);
  void vote(SaveVotes& votes) const;
  Result<void> advance(Communicator& communicator, const Waiter& waiter, const SaveVotes& sums);
  // Kills the upload that is under way. Checkpoints that were offered and are not uploaded yet are sent by
  // the next start.
  void cancel();
  // Blocks until no upload is under way on any rank; calls `look` between two checks.
  Result<void> finish(Communicator& communicator, const Waiter& waiter, const std::function<void()>& look);
  // Returns the uploads that have ended: on every rank with the commands of every rank, on rank 0 for a whole
  // upload.
  std::vector<UploadReport> take_reports();

 private:
  struct Newest;
  bool wanted() const { return !command_.line.empty(); }
  Newest find_newest() const;

  Env* env_;
  CheckpointStore* store_;
  UserCommand command_;            // without a line: no uploads
  std::string record_;             // path of RUN/uploaded
  bool first_;                     // rank 0
  bool looks_;                     // rank 0, or the first rank of each host
  std::optional<Uploader> whole_;  // set on rank 0
  std::optional<ShardUploads> shards_;
};

}  // namespace holdfast::save
