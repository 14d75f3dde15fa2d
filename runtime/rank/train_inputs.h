// TrainInputs holds the inputs of a run on one rank before anything is agreed on; StopSource is the source of
// requests to stop or to save.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "parallel/group/membership.h"
#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/device/nccl_library.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/memory_agreement.h"
#include "runtime/rank/rank_context.h"

namespace holdfast::rank {

// StopSource is asked between steps whether this rank is requested to stop or to save.
class StopSource {
 public:
  virtual ~StopSource() = default;
  virtual bool stop_requested() = 0;               // save and stop
  virtual bool save_requested() { return false; }  // save and go on; true until save_begun() answers it
  // Answers this rank's request: the current state is being saved. `asked_for`: some rank was requested to
  // save.
  virtual void save_begun(bool asked_for) { static_cast<void>(asked_for); }
  // Reports that run.directory is local to each host, so another host cannot read what is written there.
  virtual void directory_is_local() {}
};

// ProcessInputs holds what a run gets from the process of a rank.
struct ProcessInputs {
  std::string build = {};  // identity of the binary, which must be equal on all ranks
  DevicePlace place = {};  // of the device of this rank, among those of the host
  std::int64_t started_ns =
      0;  // Env::monotonic_ns() when the program started: run.stop_after counts from there
  // Loads NCCL if it is wanted; empty: NCCL comes from the CUDA module.
  std::function<Result<std::unique_ptr<NcclLibrary>>()> load_nccl = {};
  // Membership that owns RankInputs::communicator; it outlives the run. Null: a death ends the run.
  Membership* membership = nullptr;
  // Memory that this process prepared before it joined (runtime/elastic/new_rank.h); outlives the run. Null:
  // nothing was prepared.
  ProcessMemory* prepared = nullptr;
  // Storage that fails for a moment is not tried again: the answer is about this moment.
  bool tries_storage_once = false;
  // Fills memory that is used again with unusable numbers, for tests (KeptMemory::spoil_reused).
  bool spoil_kept_memory = false;
  // Runs ops when they are launched, for simulations (DeviceShare::runs_at_launch).
  bool runs_at_launch = false;
};

struct TrainInputs : RankInputs, ProcessInputs {
  StopSource& stop;
  const Result<LoadedConfig>& config;  // as this rank loaded it
};

}  // namespace holdfast::rank
