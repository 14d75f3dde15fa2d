// The store: the checkpoints of one run directory. A checkpoint is whole when RUN/checkpoints/step-%08d/
// holds a manifest that verifies; it gets there by one rename, after everything in it is durable. Nothing
// else is visible in RUN/checkpoints: work in progress is in RUN/.pending and is removed by the next writer.
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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_file.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"

namespace holdfast::checkpoint {

struct CheckpointCandidate;

// WriterFence keeps a writer that has been replaced, and does not know it, from changing the checkpoints.
struct WriterFence {
  std::uint64_t epoch = 0;  // epoch of its claim of the run; in every manifest. 0: none
  WriterCheck check = {};
};

class CheckpointStore {
 public:
  // Opens the store. `writer` tells this start's unfinished saves from those of a process that does not know
  // yet that it has been replaced: what that one still writes has no effect.
  CheckpointStore(Env& env, FaultPoints& faults, std::string run_directory, std::uint64_t writer = 0);

  std::string pending_directory(std::uint64_t step) const;
  std::string checkpoint_directory(std::uint64_t step) const;  // .../checkpoints/step-%08d
  static std::string shard_name(int rank);                     // "shard-%05d.hfs"
  // Returns the directory of the newest checkpoint with a readable manifest, which a delta refers to; empty
  // when there is none.
  std::string newest_directory() const;

  // Sets the fence, before anything is saved: from then on it is called, on whichever thread saves, before
  // anything becomes visible or is removed.
  void fence(WriterFence fence) { fence_ = std::move(fence); }

  // Removes leftovers of dead writers, and of this one's saves that failed; no save of its own is under way. What
  // another writer begins meanwhile stays.
  Result<void> remove_leftovers();
  // Calls remove_leftovers() and makes an empty pending directory. Where several saves of one writer are
  // under way, each of their ranks makes the directory itself.
  Result<void> begin_save(std::uint64_t step);
  // Publishes a checkpoint. Opens the shards and adds `tensors` and `parent` to the manifest; then manifest
  // durable, directory durable, rename, parents durable. A whole checkpoint of the same step and content
  // stays; one of other content counts until the new one is in its place. On error the pending directory is
  // removed; the fence's error stays what it is.
  Result<void> publish(const Manifest& manifest);
  // Records a roll-back in the lineage of the run, and replaces all of the lineage. publish(), which records the
  // newest checkpoint there on another thread, does not undo that. Thread: any.
  Result<void> record_rollback(const std::string& run_id, const Generation& generation);
  Result<void> replace_lineage(const Lineage& lineage);
  // Frees the disk space of a save after a shard could not be written.
  Result<void> abandon_save(std::uint64_t step);
  // Removes the checkpoint of this step: out of sight by one rename, then file by file. The fence's error
  // stays what it is.
  Result<void> remove(std::uint64_t step);
  // Restores a whole checkpoint that a dead writer was about to replace.
  Result<void> restore_replaced();
  // Removes checkpoints older than the newest `keep` (>= 1) whole ones, as remove() does. Before it removes
  // anything, this object has read one of those that stay to the last byte: the newest whole one, and again
  // when that one is about to be removed. In a directory of parts, those beyond what is known to be on all
  // hosts stay and do not count; before anything is known nothing is removed.
  // With `keep` >= 3 the newest whole discarded one has one of these places until the run has a whole one of its
  // step or a later one: whoever went back may have been wrong, and may name it to go on from there.
  Result<void> retain(std::int64_t keep);
  // Makes retain() keep the checkpoints of steps that are multiples of `every_steps`; 0: of none.
  void keep_for_good(std::int64_t every_steps);
  // Makes retain() keep the newest checkpoint that is not newer than `step`, to which a run may have to go back,
  // and the oldest one that is newer, which takes its place when `step` has grown. Thread: any.
  void keep_around(std::uint64_t step);
  // Says that this directory is that of one host of several, which has the shards whose ShardFile::hosts name
  // it. Manifests to publish then have their tensors already.
  void holds_part_of(std::string host) { host_ = std::move(host); }
  bool has_part() const { return !host_.empty(); }
  // Says that all hosts together have this checkpoint whole, in parts.
  void all_hosts_have(const ParentCheckpoint& state) { on_all_hosts_ = state; }
  // Returns the newest checkpoint that all hosts are known to have; std::nullopt if none is known.
  const std::optional<ParentCheckpoint>& on_all_hosts() const { return on_all_hosts_; }
  // Published holds the checkpoints of the directory, and what is recorded of those that were ever published.
  struct Published {
    Result<std::vector<CheckpointCandidate>> candidates;
    Result<Lineage> lineage;
  };
  // Reads both. One that a save is publishing meanwhile is in both or in neither. Thread: any.
  Published published();
  // Sets the steps whose checkpoints are being read, or will be, so retain() leaves them. Thread: any.
  void set_in_use(std::vector<std::uint64_t> steps);

 private:
  Result<void> check_fence() const { return fence_.check ? fence_.check() : Result<void>(); }
  Result<void> publish_pending(Manifest manifest);
  std::optional<ParentCheckpoint> parent_of(const Manifest& manifest) const;
  bool stays(const CheckpointCandidate& candidate);
  std::vector<std::string> kept_around(std::span<const CheckpointCandidate> candidates);
  std::string newest_ahead(std::span<const CheckpointCandidate> candidates) const;
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
  std::mutex mutex_;             // guards the members below
  std::vector<std::uint64_t> steps_in_use_;
  std::optional<std::uint64_t> around_;  // keep_around()
  std::mutex lineage_mutex_;  // guards the file between reading and writing it, and the directory with it
};

}  // namespace holdfast::checkpoint
