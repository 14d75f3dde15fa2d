// The parts of TrainRun: what a rank knows of its run, by what belongs together. What the ranks have agreed on
// is RunSetup (prepare.h). No file but those of TrainRun includes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/kept_rollback.h"
#include "checkpoint/slot_pool.h"
#include "checkpoint/store.h"
#include "runtime/core/kept_memory.h"
#include "runtime/elastic/inventory.h"
#include "runtime/elastic/membership_epoch.h"
#include "runtime/elastic/new_rank.h"
#include "runtime/rank/device_loss.h"
#include "runtime/rank/memory_agreement.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/failure_record.h"
#include "runtime/run/hardware_record.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/save_cadence.h"
#include "runtime/train/progress.h"
#include "runtime/train/sample_log.h"

namespace holdfast::elastic {

// EpochMemory holds memory that is kept from one epoch to the next.
struct EpochMemory {
  PreparedRank own = {};  // used if the caller has prepared nothing
  KeptMemory& kept;       // memory of the workers
  SlotPool& slots;        // slots of their snapshots and replicas
  MemoryDecision decision = {.room = {.tiers = SnapshotTiers::none}};  // for the last worker
};

// RunSaves holds where the newest trainer saves.
struct RunSaves {
  std::optional<CheckpointStore> store;
  std::unique_ptr<ShardCopies> copies;  // null: there are none
  std::optional<DiskTier> tier;         // none: checkpoints are in one directory
  std::optional<SaveCadence> cadence;   // measures over all epochs
  bool survives_host = false;           // replicas of all snapshots are on other hosts
  bool saves_first = false;             // a generation began from a state that was in RAM alone
};

// RecoveryState holds what this rank knows when it recovers.
struct RecoveryState {
  RecoveryInventory inventory;
  std::uint64_t step = 0;         // newest step while there is no worker
  std::int64_t disturbed_ns = 0;  // time of the last fault or attempt to grow; 0: none so far
  bool failed = false;            // the ranks that are left could not rebuild a group, or gave up
  bool joins = false;             // joiners have come, and take part in this phase
  bool system_refused = false;    // in the phase that ended last; most likely a thread
  std::optional<DecidedRollback> rollback = {};  // until it is certain to be in the lineage
  std::optional<std::uint64_t> sound_step = {};  // Worker::verified_step() of this process
  bool reported_lost_starter = false;            // RecoveryInventory::lost_starter was logged
};

// RunGrowth holds what is known of growing back.
struct RunGrowth {
  bool on_several_hosts = false;             // the run was on several hosts at its start
  bool explained = false;                    // a message has said that the run does not grow by itself
  std::vector<std::string> left_alone = {};  // places that a message has named
};

}  // namespace holdfast::elastic
