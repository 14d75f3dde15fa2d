// Saves and restores the state of a rank, together with all ranks. checkpoint/ defines the formats; this
// header decides which rank writes what.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "checkpoint/store.h"
#include "runtime/run/claim.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

// Saves a checkpoint: every rank writes the state that it owns; rank 0 publishes when all shards are durable,
// and keeps the newest `keep`. All ranks get the same outcome: the total bytes of the shards. On error
// nothing visible has changed; where some ranks are unfit for it, its reach says so (save_failure.h). Training waits
// for all of it (state_saver.h saves without waiting). `tier`: where checkpoints are; none: in one directory.
Result<std::uint64_t> save_checkpoint(StateView& view, CheckpointStore& store, std::int64_t keep,
                                      const std::optional<DiskTier>& tier = {});

// Fills the owned state from a checkpoint that any layout wrote, restores its RunState, and publishes the
// parameters. Every rank calls it with the same directory; all get the same outcome.
Result<void> restore_checkpoint(StateView& view, const std::string& checkpoint_directory);
// Restores a checkpoint that is in parts on several hosts. `content` is StartPoint::content, `domains` are
// those of the ranks that train, `check` is of the claim of a rank that writes.
Result<void> restore_parts(StateView& view, const std::string& checkpoint_directory,
                           const std::string& content, const StorageDomains& domains,
                           const ClaimCheck& check);
// Restores the snapshots that the ranks' hosts have in shared memory. On an error no state was restored.
// `changed_links`: see fetch_missing_parts().
Result<void> restore_snapshot(StateView& view, const SnapshotStep& step, const std::string& shm_run_id,
                              std::vector<std::string>& changed_links);
// Restores only the weights (run.initialize_from), from any layout and any number of tensor lanes. Moments
// stay zero, and the RunState stays unchanged.
Result<void> restore_weights(StateView& view, const std::string& checkpoint_directory);
// Initializes the weights from run.seed.
Result<void> initialize_weights(StateView& view);

}  // namespace holdfast::save
