// Worker holds everything that one rank needs while it trains, built once and planned as one memory. The only
// mutable state of a run is here and in the run directory; several workers can live in one process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/memory_plan.h"
#include "runtime/data/loader.h"
#include "runtime/device/host_access.h"
#include "runtime/device/nccl_library.h"
#include "runtime/os/span_recorder.h"
#include "runtime/rank/memory_agreement.h"
#include "runtime/rank/rank_context.h"
#include "runtime/rank/rank_links.h"
#include "runtime/save/run_state.h"
#include "runtime/save/snapshot_plan.h"
#include "runtime/save/state_view.h"
#include "runtime/train/lane_runner.h"
#include "runtime/train/run_state_check.h"
#include "runtime/train/sample_log.h"
#include "runtime/train/step_parts.h"
#include "runtime/train/workload.h"

namespace holdfast::train {

// WorkerInputs holds what a worker is built from; the referenced objects outlive the worker.
struct WorkerInputs {
  PlacedRank rank;
  // Rank that stores the replicas of the RAM snapshots of each rank, by rank (replica_buddies()); empty: no
  // replicas are stored.
  std::vector<int> buddies = {};
  std::shared_ptr<DataSet> data;
  // Library that moves device memory between the ranks of every axis, set on all of them or on none; null:
  // the communicator moves it.
  NcclLibrary* nccl = nullptr;
  int gpu = 0;  // CUDA ordinal of the device, for NCCL
  // NCCL is connected beside the steps, which begin over the host's memory: a run that recovers does not wait for it.
  bool connects_beside = false;
  std::uint64_t epoch = 0;      // membership epoch of the communicator; part of names in NCCL's log
  SampleLog* ledger = nullptr;  // ledger of this process; null unless data.ledger
  MemoryTerms memory = {};      // rules for hosts that have too little memory
  // Memory that this worker takes over and hands on; it learns what all ranks decided about memory, also where
  // create() fails for lack of it. Null: memory is allocated and freed, and nothing is handed on.
  ProcessMemory* process_memory = nullptr;
};

class Worker {
 public:
  // Connects NCCL, plans and allocates all memory and prepares every kernel; all ranks call it together.
  // Errors: those of agree_on_memory() where some host has too little memory.
  static Result<std::unique_ptr<Worker>> create(const WorkerInputs& inputs);
  // Builds the worker as a planner needs it (planned_rank.h): all memory is reserved and bound, but the ranks
  // do not agree on whether it fits and no kernel is prepared. The peers need not exist, and the device need
  // not run. `with_nccl`: the run exchanges by NCCL.
  static Result<std::unique_ptr<Worker>> plan(const WorkerInputs& inputs, bool with_nccl = false);
  // Waits for ops and exchanges that may still be running after an error, or ends them, before their memory
  // is freed.
  ~Worker();

  const RankContext& rank() const { return rank_; }
  const Workload& workload() const { return workload_; }
  StageModel& stage() { return parts_->stage; }
  StateView& state_view() { return *state_view_; }  // state that saves and restores use
  const MemoryPlan& memory_plan() const { return memory_.plan; }
  ShardedOptimizer& optimizer() { return parts_->update.optimizer; }
  LaneReduction& reduction() { return parts_->update.reduction; }
  // Gathers the parameters that their owners have updated. Call finish() before reading parameters, except in
  // the forwards of the next step.
  ParameterGather& parameter_gather() { return parts_->update.gather; }
  LaneRunner& lane_runner() { return *lane_runner_; }
  HardwareChecks& checks() { return parts_->checks; }
  // Returns the ledger; null where samples are not logged, or another rank logs them for this one.
  SampleLog* ledger() { return rank_.counts_samples() ? inputs_.ledger : nullptr; }
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  const DataSet& data() const { return *inputs_.data; }

  // Returns the step whose state this worker began with. Valid after start_loader().
  std::uint64_t first_step() const { return state_.first_step.value_or(0); }

  // Returns the newest step up to which this rank has not computed wrong, as far as audits say: of the last one that
  // it passed, else the one that it began with.
  std::uint64_t verified_step() const {
    return (inputs_.process_memory != nullptr ? inputs_.process_memory->verified_step : state_.verified_step)
        .value_or(0);
  }
  void note_verified_step() { own_verified_step() = state_.step; }

  // Returns where the steps that this worker has made have taken the run.
  RunPosition& position() { return position_; }
  const RunPosition& position() const { return position_; }

  // Goes on with what is connected beside the steps; all ranks call it together between two of them. Returns the news of
  // it for a person, empty where there are none. Errors: a peer is gone.
  Result<std::string> advance_connections();

  // Starts the loader at state().data_cursor.
  Result<void> start_loader();
  // Returns a loader of one lane of the next step.
  std::unique_ptr<DataLoader> loader_of_lane(int lane) const;
  // Launches every kind of step once in planning mode: the kernels create their primitives and report the
  // workspace that they need. create() has already called it.
  Result<void> prepare_kernels();

 private:
  // Memory of a worker: planned by all objects that need some, then allocated as one.
  struct PlannedMemory {
    MemoryPlan plan;
    MemoryArena arena;
  };

  explicit Worker(const WorkerInputs& inputs);
  NcclOptions nccl_options();
  void connect_faults();  // those that change numbers
  std::optional<std::uint64_t>& own_verified_step() {
    return inputs_.process_memory != nullptr ? inputs_.process_memory->verified_step : state_.verified_step;
  }
  void reserve();
  ShardedUpdate reserve_update();
  Result<void> agree_it_fits();
  Result<MemoryArena> make_arena();
  Result<void> allocate();

  WorkerInputs inputs_;
  Workload workload_;
  SpanRecorder spans_;
  Waiter::Background gathering_;  // of parameter_gather(), for collectives between two steps
  Waiter waiter_;
  RankLinks links_;
  HostAccess host_access_;
  RankContext rank_;  // refers to the members above
  RunState state_;
  RunPosition position_;
  SnapshotPlan snapshots_;
  PlannedMemory memory_;
  std::unique_ptr<StepParts> parts_;
  std::unique_ptr<LaneRunner> lane_runner_;
  std::optional<StateView> state_view_;  // set by allocate()
};

}  // namespace holdfast::train
