// Where a run starts from: decided by rank 0, told to all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "checkpoint/ram_tier.h"
#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::inline elastic {

// Rank 0 may wait for another writer, and then verifies every byte of the newest checkpoint: how much longer
// than for a peer that may take.
inline constexpr std::int64_t verify_timeout_ms = 3'600'000;

struct StartPoint {
  std::string checkpoint = {};             // directory to resume from; empty = a fresh run
  std::uint64_t generation = 0, step = 0;  // of the checkpoint
  // Digest of its shards where it is in parts on several hosts (part_start.h); empty: the directory has all.
  std::string content = {};
  // Names what the run has in shared memory (run_identity.h); empty = nothing that is known of, for a fresh
  // run.
  std::string shm_run_id = {};
  // Newer than the checkpoint, if it turns out to be sound.
  std::optional<SnapshotStep> snapshot = {};
  std::vector<SnapshotStep> passed_over = {};  // newer ones that did not
  std::string config = {};                     // stored with the newest of them, as TOML
  std::string device = {};                     // what it was made on
  std::vector<std::string> notes = {};         // for the user: damaged checkpoints that were skipped
  std::string copy_of = {};                    // the run directory that this one is a copy of
  // As RUN/lineage.json has it. Where the start begins a generation (`begins`), that one is in it, too, so
  // that it says what counts from now on; in the file it is before the first step (generation.h).
  Lineage lineage = {};
  std::string begins = {};  // why a new generation begins here whatever the settings are; empty: it does not
  // Why no checkpoint can be used though there are some: only a snapshot in RAM is left to go on from.
  std::string unusable = {};
  std::uint64_t writer = 0;  // drawn anew by every start: names its unfinished saves
};

// A checkpoint of run.directory that was verified.
struct OwnCheckpoint {
  Manifest manifest = {};
  std::string directory = {};
  std::vector<std::string> skipped = {};  // a sentence for each newer one that cannot be used
  std::string content = {};               // StartPoint::content
};

// OwnStates is what run.directory has, from which a run can go on.
struct OwnStates {
  Result<std::optional<OwnCheckpoint>> newest =
      std::optional<OwnCheckpoint>();  // error: none of several is whole
  Lineage lineage = {};
  bool has_newest_recorded = false;  // Lineage::newest_checkpoint is there, whole or not
  std::string shm_run_id = {};       // StartPoint::shm_run_id
  std::string copy_of = {};
};
Result<OwnStates> states_of_directory(Env& env, const std::string& run_directory);

// Follows run.resume:
//   auto   the newest whole checkpoint of run.directory, else fresh
//   never  fresh; refused when run.directory holds checkpoints (nothing is overwritten)
//   must   the newest whole checkpoint, else ExitCode::checkpoint; with a checkpoint.download_command that
//   may
//          still bring one (download.h), as auto
//   path   that checkpoint, once: the run goes back to it and begins a generation there, and a later start
//   with
//          the same path and the same numeric settings goes on in that generation. A path outside of
//          run.directory counts only until run.directory is further on.
// Nothing of a discarded future (checkpoint/lineage.h) is chosen. Where the newest checkpoint that was
// published is gone, the user has gone back to an older one, unless the run has not ended yet (`in_place`).
Result<StartPoint> choose_start(Env& env, const Config& config, bool in_place = false);
// Does the same where somebody has looked already; `own`: of run.directory.
Result<StartPoint> choose_start(Env& env, const Config& config, const OwnStates& own, bool in_place);
// Returns the error of run.resume = "must" where nothing is found.
Error nothing_to_resume(const std::string& run_directory);
// "checkpoints/step-00000010", or words for a snapshot.
std::string name_of(const StartPoint& start);
std::string to_text(const StartPoint& start);
StartPoint start_from_text(const std::string& text);  // written by to_text

// The logical shape (lanes, tensor lanes, model shapes) is fixed by the first start: where the user leaves it
// out, the stored one holds.
Result<void> adopt_stored_shape(Env& env, const StartPoint& start, Config& config);

// Lists what differs from the stored config, a line each with its effect ("safe", "numeric").
struct ResumeChanges {
  std::vector<std::string> lines = {};
  std::string numeric = {};  // the keys that change bits; empty: none
};
// ExitCode::config, naming every forbidden key, when it is not the same run any more.
Result<ResumeChanges> compare_with_stored(Env& env, const StartPoint& start, const Config& config);

// Digest of the settings that are numeric. `config` is resolved.
std::string numeric_settings(const Config& config);

}  // namespace holdfast::inline elastic
