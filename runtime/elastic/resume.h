// Chooses where a run starts from, on one rank (source.h has all of them look).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/find_checkpoint.h"
#include "checkpoint/lineage.h"
#include "checkpoint/ram_tier.h"
#include "runtime/config/loader.h"
#include "runtime/core/kernel_fault.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::elastic {

// Extra time for waits on rank 0, which may wait for another writer and then verifies every byte of the
// newest checkpoint.
inline constexpr std::int64_t verify_timeout_ms = 3'600'000;

struct StartPoint {
  std::string checkpoint = {};             // directory to resume from; empty = a fresh run
  std::uint64_t generation = 0, step = 0;  // of the checkpoint
  // Digest of its shards if it is in parts on several hosts (part_start.h); empty: the directory has all.
  std::string content = {};
  // Identifies the run's objects in shared memory (run_directory.h); empty for a fresh run of which none are
  // known.
  std::string shm_run_id = {};
  // Snapshot that is newer than the checkpoint, and is used if it turns out to be sound.
  std::optional<SnapshotStep> snapshot = {};
  std::vector<SnapshotStep> passed_over = {};  // newer snapshots that are not sound
  std::string config = {};                     // config stored with the newest of them, as TOML
  std::string device = {};                     // device that the state was made on
  std::string device_plan = {};         // the plan of all ranks there (JoinedPlans), where there is one
  std::vector<std::string> notes = {};  // for the user: damaged checkpoints that were skipped
  std::string copy_of = {};             // run directory that this one is a copy of
  // Lineage as in RUN/lineage.json. If the start begins a generation (`begins`), that one is included, so
  // that the lineage says which states count from now on; the file gets it before the first step
  // (state_loader.h).
  Lineage lineage = {};
  std::string begins = {};  // why a generation begins here, whatever the settings; empty: none begins
  // Reason why no checkpoint can be used although there are some: then only a snapshot in RAM can be used.
  std::string unusable = {};
  ExitCode unusable_code = ExitCode::checkpoint;
  Reach unusable_reach =
      Reach::run;  // Reach::minute: one may be read at another time, or with the hosts that are away
  std::uint64_t writer = 0;  // drawn anew by every start; identifies its unfinished saves

  static void visit_fields(auto& self, auto&& visit) {
    visit("checkpoint", self.checkpoint);
    visit("generation", self.generation);
    visit("step", self.step);
    visit("content", self.content);
    visit("shm_run_id", self.shm_run_id);
    visit("snapshot", self.snapshot);
    visit("passed_over", self.passed_over);
    visit("config", self.config);
    visit("device", self.device);
    visit("device_plan", self.device_plan);
    visit("notes", self.notes);
    visit("copy_of", self.copy_of);
    visit("lineage", self.lineage);
    visit("begins", self.begins);
    visit("unusable", self.unusable);
    visit("unusable_code", self.unusable_code);
    visit("unusable_reach", self.unusable_reach);
    visit("writer", self.writer);
  }
};

// OwnCheckpoint is a checkpoint of run.directory that was verified.
struct OwnCheckpoint {
  Manifest manifest = {};
  std::string directory = {};
  std::vector<std::string> skipped = {};  // a sentence for each newer one that cannot be used
  std::string content = {};               // StartPoint::content
};

// OwnStates holds the states in run.directory from which a run can go on.
struct OwnStates {
  Result<std::optional<OwnCheckpoint>> newest =
      std::optional<OwnCheckpoint>();  // error: there are several, and none is whole
  Lineage lineage = {};
  bool has_newest_recorded = false;  // Lineage::newest_checkpoint exists, whole or not
  std::string shm_run_id = {};       // StartPoint::shm_run_id
  std::string copy_of = {};
};
// `use`: verifies a checkpoint; empty: this rank reads all of it.
Result<OwnStates> states_of_directory(Env& env, const std::string& run_directory,
                                      const CheckpointUse& use = {});

// Chooses the start as run.resume says:
//   auto   the newest whole checkpoint of run.directory, else fresh
//   never  fresh; refused when run.directory holds checkpoints (nothing is overwritten)
//   must   the newest whole checkpoint, else ExitCode::checkpoint; like auto if there is a
//          checkpoint.download_command, which may still fetch one (download.h)
//   path   that checkpoint, once: the run goes back to it and begins a generation there, and a later start
//          with the same path and the same numeric settings goes on in that generation. A path outside of
//          run.directory counts only until run.directory has a later state.
// Nothing of a discarded future (checkpoint/lineage.h) is chosen. If the newest checkpoint that was published
// is gone, the user has gone back to an older one, unless the run has not ended yet (`in_place`).
// `own`: the states of run.directory; `pace`: as for read_chunks(), while a path is verified.
Result<StartPoint> choose_start(Env& env, const Config& config, const OwnStates& own, bool in_place = false,
                                const Pace& pace = {});
// Returns the error of run.resume = "must" if nothing is found.
Error nothing_to_resume(const std::string& run_directory);
// Returns StartPoint::unusable, which is not empty, as the error that ends the start.
Error why_unusable(const StartPoint& start);
// Returns "checkpoints/step-00000010", or a phrase for a snapshot.
std::string name_of(const StartPoint& start);
// Returns whether the state was made on a device of other bits than one of this identity.
bool changes_device(const StartPoint& start, const Config& config, const std::string& identity);

// Adopts the stored logical shape (lanes, tensor lanes, model shapes), which the first start has fixed, if
// the user leaves it out.
Result<void> adopt_stored_shape(Env& env, const StartPoint& start, Config& config);

// ResumeChanges lists the differences from the stored config, a line each with its effect ("safe",
// "numeric").
struct ResumeChanges {
  std::vector<std::string> lines = {};
  std::string numeric = {};  // the keys that change bits; empty: none
};
// Compares the configs. ExitCode::config with every forbidden key when it is not the same run any more.
Result<ResumeChanges> compare_with_stored(Env& env, const StartPoint& start, const Config& config);

// Returns those of the kernels that a run does without of which that has to be told: the state was made with them, or there is
// none.
Result<KernelFaults> left_out_anew(Env& env, const StartPoint& start, const KernelFaults& left_out);

// Returns the digest of the numeric settings. `config` is resolved.
std::string numeric_settings(const Config& config);

}  // namespace holdfast::elastic
