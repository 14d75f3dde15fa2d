// The store: the checkpoints of one run directory. A checkpoint is whole when RUN/checkpoints/step-%08d/
// holds a manifest that verifies; it gets there by one rename, after everything in it is durable. Nothing
// else is visible in RUN/checkpoints: work in progress lives in RUN/.pending and is removed by the next
// writer.
//
// Where run.directory is another directory on each host, each holds a part of a checkpoint: the manifest, and
// some of the shards that it names (part_inventory.h). Every host publishes its part when all of them are
// durable; the checkpoint is whole when each shard is on some host.
//
// Saving, on R ranks that share the directory:
//   rank 0   begin_save(step)                      (then a barrier)
//   each     write_shard_file(pending_directory(step), shard_name(rank), ...)
//            -> the ShardFiles travel to rank 0, after all ranks agreed that theirs is durable
//   rank 0   publish(manifest); retain(keep)
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_file.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"

namespace holdfast::inline checkpoint {

struct CheckpointCandidate;

// WriterFence keeps a writer that has been replaced, and does not know it, from changing the checkpoints.
struct WriterFence {
  std::uint64_t epoch = 0;                   // of its claim of the run; into every manifest. 0: has none
  std::function<Result<void>()> check = {};  // fails, with communication, when another has replaced it
};

class CheckpointStore {
 public:
  // `writer` tells this start's unfinished saves from those of a process that does not know yet that it has
  // been replaced: what that one still writes lands nowhere.
  CheckpointStore(Env& env, FaultPoints& faults, std::string run_directory, std::uint64_t writer = 0);

  std::string pending_directory(std::uint64_t step) const;
  std::string checkpoint_directory(std::uint64_t step) const;  // .../checkpoints/step-%08d
  static std::string shard_name(int rank);                     // "shard-%05d.hfs"
  // Of the newest one with a manifest that can be read: what a delta refers to; empty when there is none.
  std::string newest_directory() const;

  // Called before anything is saved: from then on the fence is asked, on whichever thread saves, before
  // anything becomes visible or goes.
  void fence(WriterFence fence) { fence_ = std::move(fence); }

  // Of dead writers, and of this one's saves that failed; none of its is under way.
  Result<void> remove_leftovers();
  // remove_leftovers(), and an empty pending directory. Where several saves of one writer are under way, each
  // of their ranks makes the directory itself.
  Result<void> begin_save(std::uint64_t step);
  // Opens the shards and adds `tensors` and `parent` to the manifest; then manifest durable, directory
  // durable, rename, parents durable. A whole checkpoint of the same step and
  // content stays; one of other content counts until the new one is in its place. On error the pending
  // directory is removed; the fence's error stays what it is.
  Result<void> publish(const Manifest& manifest);
  // After a shard could not be written: gives the disk its space back.
  Result<void> abandon_save(std::uint64_t step);
  // Removes the checkpoint of this step: out of sight by one rename, then file by file. The fence's error
  // stays what it is.
  Result<void> remove(std::uint64_t step);
  // Puts a whole checkpoint back that a dead writer was about to replace.
  Result<void> restore_replaced();
  // Removes what is older than the newest `keep` (>= 1) whole ones, as remove() does. Before anything goes,
  // one of those that stay was read to the last byte by this object: the newest whole one, and again when
  // that one is about to go. In a directory of parts, those beyond what is known to be on all hosts stay and
  // do not count; before anything is known nothing goes.
  Result<void> retain(std::int64_t keep);
  // From now on retain() leaves the checkpoints of steps that this divides; 0: of none.
  void keep_for_good(std::int64_t every_steps);
  // Says that this directory is that of one host of several, which has the shards whose ShardFile::hosts name
  // it. Manifests to publish then have their tensors already.
  void holds_part_of(std::string host) { host_ = std::move(host); }
  bool has_part() const { return !host_.empty(); }
  // Says that all hosts together have this one whole, in parts.
  void all_hosts_have(const ParentCheckpoint& state) { on_all_hosts_ = state; }
  // Returns the newest that they are known to have; none: nothing is known.
  const std::optional<ParentCheckpoint>& on_all_hosts() const { return on_all_hosts_; }
  // Of any thread: the checkpoints of these steps are being read, or will be, so retain() leaves them.
  void set_in_use(std::vector<std::uint64_t> steps);

 private:
  Result<void> check_fence() const { return fence_.check ? fence_.check() : Result<void>(); }
  Result<void> publish_pending(Manifest manifest);
  std::optional<ParentCheckpoint> parent_of(const Manifest& manifest) const;
  bool stays(const CheckpointCandidate& candidate);
  bool is_beyond(const CheckpointCandidate& candidate) const;
  bool is_known_whole(const CheckpointCandidate& candidate) const;
  Result<void> remove_directory(const std::string& directory);
  Result<void> remove_checkpoint(const std::string& directory);
  Result<Checkpoint> open_own(const std::string& directory) const;
  Result<Checkpoint> verify_own(const std::string& directory) const;
  Env* env_;
  FaultPoints* faults_;
  std::string run_directory_;
  std::uint64_t writer_;
  WriterFence fence_;
  std::string host_;  // empty: the directory has all shards
  std::uint64_t good_every_steps_ = 0;
  std::optional<ParentCheckpoint> on_all_hosts_;
  std::string read_to_the_end_;  // encoded manifest of the one that retain() has read; empty: none yet
  std::mutex mutex_;             // of what follows
  std::vector<std::uint64_t> steps_in_use_;
};

}  // namespace holdfast::inline checkpoint
