// RunSaves holds where the steps of this rank are saved: the store of checkpoints, which checkpoints and copies of shards
// other hosts have if run.directory is local to each, what is measured over all epochs, and the saves that a fault has
// given up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/elastic/group.h"
#include "runtime/train/training_saves.h"

namespace holdfast::elastic {

class RunSaves {
 public:
  // `group`, `setup`: outlive this object.
  RunSaves(const Group& group, const RunSetup& setup) : group_(group), setup_(setup) {}

  // Makes the store, and the disk tier: which checkpoints the store has, and which ranks store copies of them. The
  // objects of the epoch before are gone. `worker`: outlives the epoch.
  Result<void> begin_epoch(Worker& worker);
  SavePlaces& places() { return places_; }
  CheckpointStore& store() { return *places_.store; }  // of an epoch that has begun
  // Publishes a lineage. A save of the epoch before may still be published by a thread of its store.
  Result<void> replace_lineage(const Lineage& lineage, const ClaimCheck& check);
  // The epoch begins with a save if a generation begins from a state that is in RAM alone.
  void save_first(bool begins) { saves_first_ = begins; }
  bool take_saves_first() { return std::exchange(saves_first_, false); }
  void replicas_cross_hosts(bool all_do) { places_.survives_host = all_do; }

  // Keeps what a fault leaves of the saves; finish_given_up() waits for those under way, which may wait for the disk.
  void give_up(GivenUpSaves saves) { given_up_ = std::move(saves); }
  void finish_given_up(std::uint64_t step);
  std::uint64_t kept_step() const { return given_up_.kept_step.value_or(0); }
  // Returns, once, the slot for the live state.
  std::optional<int> take_unused_slot() { return std::exchange(given_up_.unused_slot, std::nullopt); }
  // Makes the steps after `trusted_step`, in RAM snapshots and in the live state, count for nothing. The saves of this
  // rank end first, so that none is sealed afterwards.
  void distrust(const RunState& state, std::uint64_t trusted_step);
  // Drops the copies of shards; this may wait for the disk, because a copy may be arriving.
  void drop_copies();

  // Uploads the last checkpoint of a run that was killed when only the upload was left to do.
  Result<void> upload_last();

 private:
  const Group& group_;
  const RunSetup& setup_;
  SavePlaces places_;
  bool saves_first_ = false;
  GivenUpSaves given_up_ = {};  // uses the store, so it goes before that
};

}  // namespace holdfast::elastic
