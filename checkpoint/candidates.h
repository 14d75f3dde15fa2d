// Lists the checkpoint directories of a run in the order in which they are to be used; find_checkpoint and
// retention share it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace holdfast::checkpoint {

struct CheckpointCandidate {
  std::uint64_t step = 0;  // from its name
  std::string directory;
  Result<Manifest> manifest;  // read and verified; the error says why it cannot be used
  bool discarded = false;     // of a future that the run has left (lineage.h); never resumed from
};

// Returns the candidates, newest first by (generation, step) of the manifest, discarded ones last. One
// without a usable manifest is ordered by its step among those of the newest generation. Includes a
// checkpoint that a dead writer was about to replace. Empty when there are none.
Result<std::vector<CheckpointCandidate>> list_candidates(Env& env, const std::string& run_directory);
// Lists them again while a manifest fails to be read for the moment (retry_storage()): it says whether the checkpoint
// is of a future that the run has left.
Result<std::vector<CheckpointCandidate>> list_candidates_patiently(Env& env,
                                                                   const std::string& run_directory);

// Calls Checkpoint::open, then Checkpoint::verify on every processor of this process: the caller has nothing
// else to do.
Result<Checkpoint> open_verified(Env& env, const std::string& directory);

}  // namespace holdfast::checkpoint
